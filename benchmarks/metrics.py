"""Measure the CPU time of --serve-metrics: of a call, a stage, a look at a push, and a page.

    python benchmarks/metrics.py

In process, one thread; processor time, so that it may be measured beside other work. Each figure is
the median of TURNS. The push is of 26 tables with 4,096 rows of dim 16 each.
"""

import statistics
import time

import numpy as np
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from shoal.metrics.calls import Calls
from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.values.routing import Routing
from shoal.proto.wire import frames
from shoal.ps.metrics import SampleMetrics, ServerMetrics
from shoal.ps.push_samples import PushSamples
from shoal.ps.service import ParameterServer
from shoal.worker.metrics import WorkerMetrics
from shoal.worker.reports.progress import Progress

TABLES, ROWS, DIM, TURNS, CALLS = 26, 4096, 16, 15, 20_000


def seconds_of(work, times):
    """Processor seconds of this thread for one call of `work`, the median of TURNS."""
    found = []
    for _ in range(TURNS):
        began = time.thread_time()
        for _ in range(times):
            work()
        found.append((time.thread_time() - began) / times)
    return statistics.median(found)


def served():
    """A server with the model, and the frame of a push to it that it has applied."""
    rule = OptimizerSpec("adagrad").to_json()
    initial = InitializerSpec("uniform").to_json()
    tables = [
        pb.TableSpec(name=f"t{i}", dim=DIM, optimizer=rule, initializer=initial)
        for i in range(TABLES)
    ]
    server = ParameterServer(0, Routing.even(1))
    server.registration.begin_anew()
    spec = pb.ModelSpec(tables=tables, dense_optimizer=rule)
    server.registration.register(pb.RegisterRequest(model=spec))
    empty = np.zeros(0, np.float32)
    server.registration.initialize_dense(frames.encode(pb.InitializeDenseRequest(), [empty, empty]))
    chance = np.random.default_rng(1)
    ids = [np.unique(chance.integers(0, 1 << 40, ROWS)) for _ in range(TABLES)]
    gradients = [chance.random((len(each), DIM), np.float32) for each in ids]
    request = pb.PushRequest(
        identity=pb.PushIdentity(sequence=1),
        routing_epoch=1,
        tables=range(TABLES),
        ids_of=range(TABLES),
        learning_rate=0.1,
    )
    frame = frames.encode(request, [*ids, *gradients])
    server.push(frame)
    return server, frame


def main():
    server, frame = served()
    counted = Calls().counted({methods.STATUS: str})[methods.STATUS]
    call = seconds_of(lambda: counted(1), CALLS) - seconds_of(lambda: str(1), CALLS)
    progress = Progress()
    before = seconds_of(lambda: progress.spent("pull", 0.001), CALLS)
    worker = WorkerMetrics(progress)
    stage = seconds_of(lambda: progress.spent("pull", 0.001), CALLS) - before
    samples = PushSamples(server, hot_ids=10, clock=lambda: 0.0)
    look = seconds_of(lambda: samples.look(frame), 1)
    registry = CollectorRegistry()
    for each in (ServerMetrics(server), SampleMetrics(samples), worker):
        registry.register(each)
    ProcessCollector(registry=registry)
    page = seconds_of(lambda: generate_latest(registry), 1)
    print(f"a call:          {call * 1e6:8.2f} us")
    print(f"a stage:         {stage * 1e6:8.2f} us")
    print(f"a look at a push:{look * 1e3:8.2f} ms")
    print(f"a page:          {page * 1e3:8.2f} ms, {len(generate_latest(registry)):,} bytes")


if __name__ == "__main__":
    main()
