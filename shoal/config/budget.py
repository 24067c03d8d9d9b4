"""The most that the pods of a job may request together, --max-resources."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """By resource: what all may request, and what a worker and a server request.

    In cores and bytes. A resource that is not in `most` is not limited.
    """

    most: Mapping[str, float]
    worker: Mapping[str, float]
    server: Mapping[str, float]

    def lacks(self, workers: int, servers: int) -> str:
        """The resource that so many would request too much of; "" for none."""
        for resource, most in self.most.items():
            # Of sums of tenths: what is as much as allowed is not too much.
            if self.requested(resource, workers, servers) > most * (1 + 1e-9):
                return resource
        return ""

    def requested(self, resource: str, workers: int, servers: int) -> float:
        """The amount of a resource that so many workers and servers request."""
        worker, server = self.worker.get(resource, 0.0), self.server.get(resource, 0.0)
        return workers * worker + servers * server

    def most_workers(self, servers: int) -> int | None:
        """The largest number of workers beside so many servers; None: any number."""
        counts = [
            math.floor((most - servers * self.server.get(resource, 0.0)) / each + 1e-9)
            for resource, most in self.most.items()
            if (each := self.worker.get(resource, 0.0))
        ]
        return max(0, min(counts)) if counts else None
