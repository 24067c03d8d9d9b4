"""The spec of a batch's arrays in no framework's words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class ArraySpec:
    """The spec of one array of a batch, of any number of records.

    shape: the first axis, of records, is None, as is every other one whose size varies. dtype:
    object for texts, which are bytes.
    """

    shape: tuple[int | None, ...]
    dtype: np.dtype[Any]
