"""The commands that go on: for what a job publishes while it trains, and for statements.

serve.py has predictions and rows over HTTP, follow.py rows into another store, sql.py models from
SQL.
"""
