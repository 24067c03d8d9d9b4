"""The commands for what a job publishes while it trains.

serve.py has predictions and rows over HTTP, follow.py rows into another store.
"""
