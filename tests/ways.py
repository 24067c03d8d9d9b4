"""A TCP address behind which another one is, for tests that disturb what goes through."""

import contextlib
import socket
import threading

PATIENCE = 120.0


class Way:
    """Carries connections to `target`, (host, port), both ways, until it is closed.

    `passes` decides of each piece whether it goes on; subclasses override it.
    """

    def __init__(self, target=None):
        self.target = target
        self._pairs = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def passes(self, size, answers, target):
        """Whether so many bytes go on. answers: they come from the target; target: the one that
        this connection was made to. None ends the connection."""
        return True

    def end(self):
        """End all connections, in both directions."""
        for pair in self._pairs:
            for each in pair:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def close(self):
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # closing alone does not wake its thread
        self._listener.close()
        self.end()
        for thread in self._threads:
            thread.join(PATIENCE)
        for pair in self._pairs:
            for each in pair:
                each.close()

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            target = self.target
            far = socket.create_connection(target, PATIENCE)
            self._pairs.append((near, far))
            for ends in ((near, far, False), (far, near, True)):
                self._threads.append(threading.Thread(target=self._carry, args=(*ends, target)))
                self._threads[-1].start()

    def _carry(self, source, sink, answers, target):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                passes = self.passes(len(data), answers, target)
                if passes is None:
                    return
                if passes:
                    sink.sendall(data)
