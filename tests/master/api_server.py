"""What tests' own servers of the Kubernetes API have in common."""

import json
import threading
from contextlib import contextmanager
from http.server import ThreadingHTTPServer

POLL = 0.01
"""Seconds after which a server sees that it is to end: half a second unless told."""


class Answers:
    """Of a BaseHTTPRequestHandler: answers in a line of JSON, or in plain text; logs nothing."""

    def answer(self, code, content):
        text = isinstance(content, str)
        body = (content if text else f"{json.dumps(content)}\n").encode(errors="surrogateescape")
        self.send_response(code)
        self.send_header("Content-Type", "text/plain" if text else "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextmanager
def served(handler):
    """The address at which a server with this handler answers."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(POLL,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
