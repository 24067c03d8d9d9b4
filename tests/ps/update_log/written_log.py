"""The log of a job whose only server has died."""

import random

from tests.ps.logged import Faults, World, content, numbers

PUSHES = 8


class Written:
    """A job of one server that has died, and how its model was after each push.

    cut_at: after which push a checkpoint was fixed, 0 for none. complete: it is whole, and the
    server was not told any more.
    """

    def __init__(self, folder, cut_at, complete):
        self.job = World(1, folder, Faults())
        draw = random.Random(7)
        self.contents = [content(self.job.servers[0].model)]
        for turn, ids in enumerate(numbers(PUSHES)):
            self.job.push(turn % 2, ids, draw)
            self.contents.append(content(self.job.servers[0].model))
            if turn + 1 == cut_at:
                self.job.checkpoint("complete" if complete else "begun")
        self.job.kill(0)
        self.segments = self.job.logs[0]._sink._segments()
        self.bytes = [each.read_bytes() for each in self.segments]

    def restart(self):
        """The server, started again from what is there, and what it says of its log."""
        self.job.start(0)
        self.job.meet(0)
        return self.job.servers[0], self.job.status(0).unprotected

    def mend(self):
        self.job.kill(0)
        for each in self.job.logs[0]._sink._segments():
            each.unlink()
        for path, data in zip(self.segments, self.bytes, strict=True):
            path.write_bytes(data)
