"""A process serves its metrics while it runs, if its job has --serve-metrics.

What it imports of Prometheus' client takes a third of a second, so only jobs with that flag import
this module.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.registry import Collector

from shoal.base.disk.job_folder import JobFolder
from shoal.cluster.metrics import TOKEN_FILE
from shoal.cluster.ports import METRICS_PORT
from shoal.config.job import JobConfig
from shoal.metrics import targets
from shoal.metrics.families import ProcessInfo
from shoal.metrics.page import PATH, MetricsPage

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def serving(
    config: JobConfig, folder: JobFolder, role: str, index: int, incarnation: int, *own: Collector
) -> Iterator[None]:
    """Serve the metrics of one process until the block ends, and tell Prometheus where.

    A pod's are at a port that all have; there the manifests tell.

    own: what this role tells; the process itself, its memory and processor time come with it.

    Without a page the job goes on: why there is none is in the process's log.
    """
    registry = CollectorRegistry()
    for each in (ProcessInfo(config.job_name, role, index, incarnation), *own):
        registry.register(each)
    ProcessCollector(registry=registry)
    with contextlib.ExitStack() as stack:
        try:
            if config.image:
                page = MetricsPage(registry, "0.0.0.0", METRICS_PORT, Path(TOKEN_FILE))
            else:
                page = MetricsPage(registry)
            stack.callback(page.close)
            if not config.image:
                targets.put(folder, config.job_name, role, index, page.address)
                stack.callback(_remove, folder, role, index, page.address)
            logger.info("metrics at http://%s%s", page.address, PATH)
        except (OSError, RuntimeError) as error:
            logger.error("--serve-metrics: this process has no metrics page: %s", error)
        except Exception:  # a mistake of ours must not end the process
            logger.exception("--serve-metrics: this process's metrics page failed")
        yield


def _remove(folder: JobFolder, role: str, index: int, address: str) -> None:
    with contextlib.suppress(OSError):  # of a job whose folder is gone
        targets.remove(folder, role, index, address)
