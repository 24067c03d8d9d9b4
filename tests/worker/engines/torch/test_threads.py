"""The threads of PyTorch in workers that share a machine."""

import subprocess
import sys

import pytest

pytest.importorskip("torch")

# In a process of its own, as PyTorch's threads are of the whole process.
THREADS = """
import sys
from shoal.worker.engines import choose_engine, chosen_engine

choose_engine("torch")
from shoal.worker.engines.torch import engine
import torch

torch.set_num_threads(int(sys.argv[1]))
engine.allowed_cores = lambda: int(sys.argv[2])
chosen_engine().share_cores(int(sys.argv[3]))
print(torch.get_num_threads())
"""


def threads(begun, cores, workers, variables, monkeypatch):
    """Threads of a worker that began with `begun` of them."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    command = [sys.executable, "-c", THREADS, str(begun), str(cores), str(workers)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(done.stdout)


@pytest.mark.parametrize(
    ("begun", "cores", "workers", "given"), [(4, 4, 2, 2), (2, 2, 4, 1), (1, 8, 2, 1)]
)
def test_workers_on_a_machine_divide_its_cores(begun, cores, workers, given, monkeypatch):
    assert threads(begun, cores, workers, {}, monkeypatch) == given


def test_a_users_number_of_threads_stands(monkeypatch):
    assert threads(2, 2, 4, {"OMP_NUM_THREADS": "2"}, monkeypatch) == 2
