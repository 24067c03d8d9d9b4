"""Processes of one machine, forked from a *seed* that has imported what they need.

A seed is a process that imports modules, starts no thread, and forks itself where it is asked. The
forked process has the arguments, environment, streams, session and limits that an executed one
would have; it only begins with its imports done.

kinds.py says which processes have a seed, pool.py starts and finds seeds, and starting.py starts
processes, by a seed or by execution. __main__.py is the seed; forked.py makes its children.
"""
