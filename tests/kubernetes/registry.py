"""A registry of images, as little as `buildah push` and a cluster's pull need of one."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

CHUNK = 1 << 20


class Registry:
    """Keeps blobs and manifests in a folder; `address` is host:port, without encryption."""

    def __init__(self, folder: Path):
        for name in ("blobs", "manifests", "uploads"):
            (folder / name).mkdir(parents=True)
        handler = type("Handler", (_Handler,), {"folder": folder})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    folder: Path
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        """Say nothing."""

    def _answer(self, code, **headers):
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        if "Content_Length" not in headers:
            self.send_header("Content-Length", "0")
        self.end_headers()

    def _file(self):
        """The file that the request names; one that is not there for an unknown name."""
        _, kind, name = self.path.partition("?")[0].rsplit("/", 2)
        if kind == "blobs":
            return self.folder / "blobs" / name
        if kind == "manifests" and not name.startswith("sha256:"):
            tag = self.folder / "manifests" / name
            name = tag.read_text() if tag.exists() else "none"
        return self.folder / "blobs" / name

    def do_HEAD(self):
        self.do_GET(body=False)

    def do_GET(self, *, body=True):
        if self.path == "/v2/":
            self._answer(200)
            return
        file = self._file()
        if not file.exists():
            self._answer(404)
            return
        kind = "application/octet-stream"
        if "/manifests/" in self.path:
            kind = json.loads(file.read_text())["mediaType"]
        self._answer(
            200,
            Content_Type=kind,
            Content_Length=file.stat().st_size,
            Docker_Content_Digest=file.name,
        )
        if body:
            with file.open("rb") as source:
                shutil.copyfileobj(source, self.wfile, CHUNK)

    def do_POST(self):
        self._body(Path("/dev/null"))
        upload = f"/v2/uploads/{uuid.uuid4().hex}"
        self._answer(202, Location=upload, Range="0-0")

    def do_PATCH(self):
        upload = self._upload()
        self._body(upload)
        self._answer(202, Location=self.path, Range=f"0-{max(0, upload.stat().st_size - 1)}")

    def do_PUT(self):
        if "/manifests/" in self.path:
            upload = self.folder / "uploads" / uuid.uuid4().hex
            self._body(upload)
            digest = "sha256:" + hashlib.sha256(upload.read_bytes()).hexdigest()
            (self.folder / "manifests" / self.path.rsplit("/", 1)[1]).write_text(digest)
        else:
            upload = self._upload()
            self._body(upload)
            digest = re.search(r"digest=(sha256(?::|%3A)\w+)", self.path)[1].replace("%3A", ":")
        upload.rename(self.folder / "blobs" / digest)
        self._answer(201, Location=self.path, Docker_Content_Digest=digest)

    def _upload(self):
        return self.folder / "uploads" / self.path.partition("?")[0].rsplit("/", 1)[1]

    def _body(self, target):
        with target.open("ab") as file:
            if self.headers.get("Transfer-Encoding") == "chunked":
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    file.write(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
            else:
                left = int(self.headers.get("Content-Length") or 0)
                while left and (data := self.rfile.read(min(left, CHUNK))):
                    file.write(data)
                    left -= len(data)
