"""The engine of PyTorch: torch.nn.Modules whose tables are on the servers.

Nothing else in worker/ imports PyTorch. Importing this package does, with as many threads as the
process may use.
"""

import os

# Read when PyTorch is imported. Its threads would else spin after each operation, on the cores
# that pulls and pushes want.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

from shoal.native.cores import allowed_cores

# PyTorch counts the machine's cores, not those of a container's quota. To be told starts a thread.
if allowed_cores() < torch.get_num_threads():
    torch.set_num_threads(allowed_cores())

# Its shortcut for padded steps in evaluation has shapes by values: it fails for a batch of padding
# alone, and no trace and no exported program can have it.
torch.backends.mha.set_fastpath_enabled(False)
