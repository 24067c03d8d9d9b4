"""Runs a notebook in a real kernel, which is this interpreter.

usage: python -m tests.jobs.notebook NOTEBOOK EXECUTED [AGAIN ...]

EXECUTED gets the notebook with its outputs, also if a cell fails. AGAIN: texts; a cell that has one
of them runs a second time, as a cell of its own. It is a process of its own, since warnings and
threads of the libraries are no concern of ours.
"""

import sys
import tempfile
from pathlib import Path

import nbformat
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from nbclient import NotebookClient


class ThisInterpreter(KernelSpecManager):
    """Whatever kernels are installed, there is one: this interpreter."""

    def get_kernel_spec(self, kernel_name):
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=command, display_name="Python 3", language="python")


def with_repeated(notebook, again):
    """The notebook; each cell that has a text of `again` stands there twice."""
    cells = []
    for cell in notebook.cells:
        cells.append(cell)
        if cell.cell_type == "code" and any(text in cell.source for text in again):
            cells.append(nbformat.v4.new_code_cell(cell.source, id=f"{cell.id}-again"))
    notebook.cells = cells
    return notebook


def main(source, executed, *again):
    notebook = with_repeated(nbformat.read(source, as_version=4), again)
    # Sockets in a folder: no port of them can be taken by others, and their paths are short.
    with tempfile.TemporaryDirectory(prefix="kernel-", dir="/tmp") as folder:
        manager = AsyncKernelManager(
            kernel_spec_manager=ThisInterpreter(),
            transport="ipc",
            connection_file=str(Path(folder, "kernel.json")),
        )
        client = NotebookClient(notebook, km=manager, timeout=None)
        try:
            client.execute()
        finally:
            nbformat.write(notebook, executed)


if __name__ == "__main__":
    main(*sys.argv[1:])
