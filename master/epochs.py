"""Which ranges each epoch of training has, and in which order they are given out.

A pure function of the sources, the seed and the epoch, so that it is the same in every run
and after every restart. Owns cutting, shuffling and --max-steps; which of it is still to be
trained is tasks.py's. No state.
"""

from __future__ import annotations

import math
import random
from collections.abc import MutableSequence, Sequence
from dataclasses import replace
from typing import Any

from shoal.master.work import Source, Span, cut


class Epochs:
    """The spans of every epoch.

    sources: what to train on, in any order that is the same in every run.
    records_per_task: length of a whole span.
    count: passes over the sources; fewer if max_steps ends in an earlier one.
    seed: with the epoch it decides the order of spans; nothing else does.
    max_steps: train no more than this many minibatches of `minibatch_size` records, the first
        of the order that they have anyway; 0 for all.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        records_per_task: int,
        count: int,
        seed: int,
        max_steps: int,
        minibatch_size: int,
    ) -> None:
        self._spans = cut(sources, records_per_task)
        self._seed = seed
        self._max_steps = max_steps
        self._minibatch_size = minibatch_size
        self._steps_per_epoch = sum(self._steps(span) for span in self._spans)
        self.count = count
        if max_steps and self._steps_per_epoch:
            self.count = min(count, math.ceil(max_steps / self._steps_per_epoch))
        last = self.order(self.count - 1)
        self.records_in_each = sum(map(len, self._spans))
        self.records = self.records_in_each * (self.count - 1) + sum(map(len, last))
        self.tasks = len(self._spans) * (self.count - 1) + len(last)

    def _steps(self, span: Span) -> int:
        return math.ceil(len(span) / self._minibatch_size)

    def shuffle(self, items: MutableSequence[Any], what: str) -> None:
        """Put items into an order that depends on the seed and on `what` alone."""
        # Seeding by text: Random hashes it with SHA-512, so neighbouring seeds and
        # epochs give unrelated orders, the same on every platform.
        random.Random(f"{self._seed}/{what}").shuffle(items)

    def order(self, epoch: int) -> list[Span]:
        """The spans of an epoch in the order in which they are given out."""
        order = list(self._spans)
        self.shuffle(order, str(epoch))
        if not self._max_steps:
            return order
        left = self._max_steps - epoch * self._steps_per_epoch
        kept = []
        for span in order:
            if left <= 0:
                break
            kept.append(replace(span, end=min(span.end, span.start + left * self._minibatch_size)))
            left -= self._steps(span)
        return kept
