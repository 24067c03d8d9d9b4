"""Commands of users, on this machine or in a cluster.

run/ starts jobs, found/ finds them, ask/ asks and changes them, show/ displays them.
"""
