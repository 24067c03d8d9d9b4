"""The commands for what a job publishes while it trains.

serve.py      predictions and rows over HTTP
"""
