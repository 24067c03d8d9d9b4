"""The metrics of a process for Prometheus: the page, what is on it in every process, its address.

What each role has to tell is in ps/metrics.py, master/metrics.py and worker/metrics.py. All of it
is made when somebody asks for the page, of facts that the process counts anyway; but for the calls
that it handles (calls.py), which are counted only where the page is served.
"""
