"""A way to the API server that a test can cut: it passes bytes on, or does not."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from urllib.parse import urlsplit

from kubernetes import client, config

from tests.kubernetes.conftest import kubectl

CHUNK = 1 << 16


class Proxy:
    """Listens on this machine and passes every connection on to the API server.

    Encrypted bytes are passed as they are, so what breaks is the network, not HTTP.
    """

    def __init__(self):
        self._configuration = json.loads(kubectl("config", "view", "--raw", "-o", "json"))
        self._server = urlsplit(self._configuration["clusters"][0]["cluster"]["server"])
        self._lock = threading.Lock()
        self._open = set()
        self._refusing = False
        # Where the API server itself is, which is this machine: pods reach that too.
        self.host = self._server.hostname
        self._listener = socket.create_server((self.host, 0))
        self.port = self._listener.getsockname()[1]
        self.address = f"https://{self.host}:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.cut()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def kubeconfig(self):
        """The present kubectl configuration, by way of this proxy."""
        made = json.loads(json.dumps(self._configuration))
        made["clusters"][0]["cluster"]["server"] = self.address
        return json.dumps(made)

    def pod_template(self):
        """A Pod template by which a job's master reaches the API server by this proxy."""
        values = {"KUBERNETES_SERVICE_HOST": self.host, "KUBERNETES_SERVICE_PORT": str(self.port)}
        env = [{"name": name, "value": value} for name, value in values.items()]
        return json.dumps({"master": {"spec": {"containers": [{"env": env}]}}})

    def api(self):
        """A client of the Kubernetes library, by way of this proxy."""
        configuration = client.Configuration()
        config.load_kube_config(client_configuration=configuration)
        configuration.host = self.address
        return client.ApiClient(configuration)

    def cut(self):
        """Break what is open; what comes later is refused until `mend`."""
        with self._lock:
            self._refusing = True
            broken, self._open = self._open, set()
        for each in broken:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def mend(self):
        """Pass connections on again."""
        with self._lock:
            self._refusing = False

    def _accept(self):
        while True:
            try:
                here, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._refusing:
                    here.close()
                    continue
                there = socket.create_connection((self._server.hostname, self._server.port))
                self._open |= {here, there}
            for pair in ((here, there), (there, here)):
                threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
