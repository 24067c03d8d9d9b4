"""The one rule for reading an id without a row, for servers and for their stand-ins.

native/answer.h has it once more, for pulls that are answered without Python.
"""

from __future__ import annotations

from typing import Literal

from shoal.proto import shoal_pb2 as pb


def missing_row(table: pb.TableSpec, *, training: bool) -> Literal["initial", "default"]:
    """The row that such an id reads: its initial value, or the table's default row.

    With admission, training reads the same as evaluation and an export: most ids will never get
    a row, and the model is to learn on the values that it will be served.
    """
    if table.admit_after > 1:
        return "default"
    return "initial" if table.vocabulary or (training and not table.frozen) else "default"
