"""A job's certificates: its authority, and who has which.

proto/ has the certificates' names, and gives them to gRPC; here they are made and kept.
"""
