"""Training: steps from batches to acknowledged pushes, and when each may begin.

    pipeline.py     pull ahead, compute, push behind, in four threads
    synchronous.py  with --sync: gradients that wait for their update
    steps.py        one step from its batches to its push, in both
    staleness.py    the staleness bound: wait while too far ahead

Leasing tasks is worker/tasks.py's, the arithmetic of a step the model's.
"""
