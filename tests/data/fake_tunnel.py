"""As much of MaxCompute's tunnel as pyodps calls to read a table, over HTTP.

The body of a download is the chunked Arrow stream that pyodps reads: the size of a chunk,
the messages of the batches, and a checksum. Not the service: what it does not know, it
refuses.
"""

import json
import re
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
from odps.tunnel.checksum import Checksum

TYPES = {pa.int64(): "bigint", pa.float64(): "double", pa.string(): "string"}


class FakeTunnel:
    """A server of tables: {(table, partition or None): pyarrow.Table}.

    A download sees the table as it was when its session was made. calls: (verb, path).
    """

    def __init__(self, tables):
        self.tables = tables
        self.sessions = {}
        self.calls = []
        self.expired = set()
        self.short = 0  # records that downloads leave out at the end
        tunnel = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_POST(self):
                tunnel.answer(self, "POST")

            def do_GET(self):
                tunnel.answer(self, "GET")

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}
        )

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, request, verb):
        url = urlsplit(request.path)
        query = parse_qs(url.query, keep_blank_values=True)
        self.calls.append((verb, request.path))
        assert request.headers["Authorization"].startswith("ODPS ")
        found = re.fullmatch(r"/projects/shop(?:/schemas/\w+)?/tables/(\w+)", url.path)
        partition = query.get("partition", [None])[0]
        key = (found and found[1], partition and partition.replace("'", ""))
        if verb == "POST" and "downloads" in query and key in self.tables:
            identity = f"session-{len(self.sessions)}"
            self.sessions[identity] = self.tables[key]
            self.send(request, self.described(identity))
        elif verb == "GET" and query.get("downloadid", [""])[0] in self.sessions:
            identity = query["downloadid"][0]
            if "data" in query:
                assert "arrow" in query
                self.send(request, self.body(self.sessions[identity], query))
            else:
                self.send(request, self.described(identity))
        else:
            error = {"Code": "NoSuchObject", "Message": f"there is no {key}"}
            self.send(request, json.dumps(error).encode(), 404)

    def send(self, request, body, status=200):
        request.send_response(status)
        request.send_header("Content-Length", str(len(body)))
        request.send_header("x-odps-request-id", "fake")
        request.end_headers()
        request.wfile.write(body)

    def described(self, identity):
        table = self.sessions[identity]
        columns = [
            {"name": field.name, "type": TYPES[field.type], "nullable": True}
            for field in table.schema
        ]
        status = "expired" if identity in self.expired else "normal"
        return json.dumps(
            {
                "DownloadID": identity,
                "Status": status,
                "RecordCount": table.num_rows,
                "Schema": {"columns": columns, "partitionKeys": []},
            }
        ).encode()

    def body(self, table, query):
        start, count = map(int, query["rowrange"][0].strip("()").split(","))
        part = table.slice(start, count - self.short)
        if "columns" in query:
            part = part.select(query["columns"][0].split(","))
        messages = b"".join(
            batch.serialize().to_pybytes() for batch in part.to_batches(max_chunksize=7)
        )
        checksum = Checksum()
        checksum.update(messages)
        total = struct.pack("!I", int(checksum.getvalue()) & 0xFFFFFFFF)
        return struct.pack("!I", len(messages) + 1) + messages + total
