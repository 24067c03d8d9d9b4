"""The native core: row store, optimizer kernels, id deduplication and partition.

Buffers in, buffers out: everything here takes and returns NumPy arrays and plain
numbers and imports nothing else of the project. Hot loops are C headers behind
thin Cython shells; see README.md in this folder for the local rules.
"""
