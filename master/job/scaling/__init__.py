"""The numbers of workers and servers, and when a job changes them."""
