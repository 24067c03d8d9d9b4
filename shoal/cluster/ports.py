"""The ports of a job's pods: whoever listens, connects, probes or forwards takes them from here.

deploy/base/network.yaml repeats them; a test compares the two.
"""

from __future__ import annotations

MASTER_PORT = 7000
MASTER_ARRAYS_PORT = 7002
SERVER_PORT = 7100
SERVER_ARRAYS_PORT = 7102
"""Of the data plane, by proto/wire/transport.py's ARRAYS_PORT, which a test holds against them."""

PORTS: dict[str, dict[str, int]] = {
    "master": {"master": MASTER_PORT, "master-arrays": MASTER_ARRAYS_PORT},
    "ps": {"ps": SERVER_PORT, "ps-arrays": SERVER_ARRAYS_PORT},
    "worker": {},
}
"""Role -> name in the Service -> port. All of them take callers with certificates only."""

METRICS_PORT = 7300
"""Of all pods of a job with --serve-metrics, in plain text, for readers with the token of a
Secret. Prometheus asks the pods themselves, so no Service has it."""

HEALTH_PORT = 7200
"""Of masters and servers, in plain text, for the kubelet's probes, which have no certificate. It
answers the health check and refuses everything else. No pod calls it, so no Service has it."""
