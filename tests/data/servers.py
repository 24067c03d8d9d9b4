"""Servers of this machine, as those that URLs name: web servers, an S3 and a GCS."""

from __future__ import annotations

import contextlib
import functools
import http.server
import re
import threading
from pathlib import Path


class PlainHandler(http.server.SimpleHTTPRequestHandler):
    """Python's own web server: whoever asks for a range gets the whole file."""

    def log_message(self, *_):
        self.server.answered += 1  # it writes a line of each


class RangeHandler(PlainHandler):
    """The same with ranges, of one part."""

    def do_GET(self):
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if wanted is None:
            super().do_GET()
            return
        begin, end = int(wanted[1]), int(wanted[2]) + 1
        with open(self.translate_path(self.path), "rb") as file:
            content = file.read()
        part = content[begin:end]
        self.server.ranges.append((begin, end))
        self.send_response(206)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")
        self.end_headers()
        self.wfile.write(part)


class ChunkedHandler(PlainHandler):
    """A server that tells no sizes."""

    def send_header(self, keyword, value):
        if keyword != "Content-Length":
            super().send_header(keyword, value)


@contextlib.contextmanager
def web_server(folder, handler):
    """The server of a folder, and its URL. ranges: that were asked for. answered: how often."""
    served = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(handler, directory=str(folder))
    )
    served.ranges, served.answered = [], 0
    thread = threading.Thread(target=served.serve_forever)
    thread.start()
    try:
        yield served, f"http://127.0.0.1:{served.server_port}"
    finally:
        served.shutdown()
        served.server_close()
        thread.join()


def is_ours(place):
    """Whether a place where Python looks for packages is this repository's."""
    return Path(place or ".").resolve() == Path(__file__).resolve().parents[2]
