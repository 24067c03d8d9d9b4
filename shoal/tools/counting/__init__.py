"""The model of `shoal chaos --count`, whose weights count how often each record was trained.

A user module like any other (counts.py): workers load it, and nothing else imports it.
"""
