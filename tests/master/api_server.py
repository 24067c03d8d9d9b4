"""What tests' own servers of the Kubernetes API have in common."""

import json


class JsonAnswers:
    """Of a BaseHTTPRequestHandler: answers in JSON, and logs nothing."""

    def answer(self, code, content):
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass
