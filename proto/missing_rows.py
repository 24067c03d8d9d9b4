"""What an id without a row reads: the one rule, for servers and for what stands in for them.

native/answer.h has it once more, for pulls that are answered without Python.
"""

from __future__ import annotations

from typing import Literal

from shoal.proto import shoal_pb2 as pb


def missing_row(table: pb.TableSpec, *, training: bool) -> Literal["initial", "default"]:
    """Whether it reads its initial value, or the row that is the table's default.

    With admission training reads what evaluation and an export have: most ids will never get
    a row, and the model is to learn what it will be served.
    """
    if table.admit_after > 1:
        return "default"
    return "initial" if table.vocabulary or (training and not table.frozen) else "default"
