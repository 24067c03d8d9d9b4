"""Followers of a job's deltas: memory and reads meanwhile, Redis, lookups below Python.

    python -m benchmarks.follow [--rows N] [--changed N] [--folder FOLDER]

Another process publishes a base of N rows of dim 16, deltas of so many changed rows and one more
base. Measured are the resident memory of the follower by what it is at rest, the time from a
manifest to its application, and reads of 200 ids at rest and while the base is applied. Then, if
redis-server is installed, rows a second and core into Redis, and the server's processor time of a
lookup by `shoal serve --rows` beside Redis's MGET of the same rows, in turns. Seconds of a busy
machine drift: ratios of one run count.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from shoal.deltas.following import Follower
from shoal.deltas.shares import Page
from shoal.deltas.to_redis import RedisRows, follow_into
from shoal.files.storage import LocalStorage
from shoal.serve.data_plane import Lookups
from tests.deltas.published import ALL, NONE, model_spec, write_delta, write_model

DIM, DELTAS = 16, 15
PAGE_ROWS = 65_536


def publisher(folder: str, rows: int, changed: int, pipe: Connection) -> None:
    """Publish a base or a delta whenever it is told to."""
    root, numbers, previous, number = LocalStorage(folder), np.random.default_rng(1), "", 0
    model = write_model(root, model_spec(DIM))

    def pages(ids: np.ndarray) -> Iterator[Page]:
        for some in np.array_split(ids, max(1, ids.size // PAGE_ROWS)):
            values = numbers.normal(size=(some.size, DIM)).astype(np.float32)
            yield Page("rows", 0, ids=some, values=values)
        yield Page("trainable", values=np.zeros(2, np.float32))

    while what := pipe.recv():
        number += 1
        base = what == "base"
        ids = np.arange(rows) if base else np.sort(numbers.choice(rows, changed, replace=False))
        parts = [(ALL, ALL if base else NONE, pages(ids))]
        made = write_delta(root, number, previous, model, parts, created=time.time())
        previous = made.checksum
        pipe.send(number)


def resident() -> float:
    """Megabytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


def cpu(pid: int) -> float:
    """Seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def follower(folder: str, rows: int, tell: Callable[[str], int]) -> None:
    """Memory and reads while deltas and a base are applied."""
    tell("base")
    followed = Follower(folder)
    followed.step()
    print(f"{followed.rows.memory_bytes() / rows:.1f} bytes a row")
    followed.start()
    numbers, peak, ends = np.random.default_rng(2), [0.0], threading.Event()

    def watch() -> None:
        while not ends.wait(0.01):
            peak[0] = max(peak[0], resident())

    def reads(goes_on: Callable[[], bool]) -> str:
        times = []
        while goes_on():
            ids = numbers.integers(0, rows, 200)
            began = time.perf_counter()
            followed.lookup("a", ids)
            times.append(1e6 * (time.perf_counter() - began))
            time.sleep(0.001)
        p50, p99 = np.percentile(times, [50, 99])
        return f"p50 {p50:.0f} us, p99 {p99:.0f} us of {len(times)}"

    for _ in range(3):
        followed.wait(tell("delta"))
    threading.Thread(target=watch, daemon=True).start()
    end = time.monotonic() + 3
    print("reads at rest:", reads(lambda: time.monotonic() < end))
    rest, peak[0], lags = resident(), 0.0, []
    for _ in range(DELTAS):
        number, began = tell("delta"), time.perf_counter()
        followed.wait(number)
        lags.append(1e3 * (time.perf_counter() - began))
    print(f"manifest to application: p50 {np.median(lags):.0f} ms, most {max(lags):.0f} ms")
    print(f"memory while deltas come: {peak[0] / rest:.3f} of that at rest")
    peak[0], number = 0.0, tell("base")
    print("reads while a base is applied:", reads(lambda: followed.number < number))
    print(f"memory while a base is applied: {peak[0] / rest:.3f} of that at rest")
    ends.set()
    followed.close()


def redis_server() -> tuple[subprocess.Popen[bytes], int]:
    """A Redis that keeps nothing, and its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--save", "", "--appendonly", "no"]
    made = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return made, port
        except ConnectionRefusedError:
            time.sleep(0.05)


def into_redis(folder: str, rows: int, changed: int, pid: int, url: str) -> None:
    """Rows a second into Redis: the first base and the deltas, up to the second base."""
    written, last = RedisRows(url), DELTAS + 4
    for until, count, what in ((1, rows, "base"), (last, (last - 1) * changed, "deltas")):
        used, began = cpu(pid), time.perf_counter()
        follow_into(folder, written, until)
        seconds = time.perf_counter() - began
        core = count / max(cpu(pid) - used, 1e-9)
        print(f"{what} into Redis: {count / seconds:,.0f} rows/s, {core:,.0f} a second of its core")
    written.close()


def lookups(folder: str, rows: int, pid: int, port: int) -> None:
    """Processor time of a lookup, of `shoal serve --rows` and of Redis."""
    command = [sys.executable, "-m", "shoal", "serve", folder, "--listen", "127.0.0.1:0"]
    served = subprocess.Popen([*command, "--rows", "0"], stdout=subprocess.PIPE, text=True)
    assert served.stdout is not None
    url = served.stdout.readline().split()[-1].partition("/v1/")[0]
    while True:
        try:
            ours = Lookups(url)
            break
        except Exception:
            time.sleep(0.1)
    client = socket.create_connection(("127.0.0.1", port))
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    random = np.random.default_rng(3)
    for count in (26, 200, 4000):
        asked = [random.integers(0, rows, count) for _ in range(64)]
        texts = [b"".join(_bulk(f"shoal:a:{each}") for each in ids) for ids in asked]
        size = len(b"*%d\r\n" % count) + count * (len(b"$64\r\n") + 4 * DIM + 2)
        buffer = memoryview(bytearray(size))

        def mget(at: int, texts=texts, count=count, buffer=buffer) -> None:
            client.sendall(b"*%d\r\n%b%b" % (count + 1, _bulk("MGET"), texts[at]))
            view = buffer
            while view.nbytes:
                view = view[client.recv_into(view) :]

        ways = {
            "shoal": (served.pid, lambda at, asked=asked: ours.lookup("a", asked[at])),
            "redis": (pid, mget),
        }
        used, done = dict.fromkeys(ways, 0.0), dict.fromkeys(ways, 0)
        for _ in range(3):
            for name, (process, once) in ways.items():
                before, end = cpu(process), time.perf_counter() + 1
                while time.perf_counter() < end:
                    once(done[name] % 64)
                    done[name] += 1
                used[name] += cpu(process) - before
        ours_us, theirs = (1e6 * used[name] / done[name] for name in ways)
        told = f"{ours_us:.0f} us of the server's CPU, Redis {theirs:.0f} us"
        print(f"lookup of {count} ids: {told}, {theirs / ours_us:.1f} times")
    ours.close()
    client.close()
    served.kill()
    served.wait()


def _bulk(text: str) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(text), text.encode())


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--changed", type=int, default=50_000)
    parser.add_argument("--folder", default=None)
    given = parser.parse_args()
    print(json.dumps(vars(given)))
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        live = f"{folder}/live"
        mine, theirs = multiprocessing.Pipe()
        made = multiprocessing.get_context("spawn").Process(
            target=publisher, args=(live, given.rows, given.changed, theirs), daemon=True
        )
        made.start()

        def tell(what: str) -> int:
            mine.send(what)
            return int(mine.recv())

        follower(live, given.rows, tell)
        mine.send("")
        made.join()
        if shutil.which("redis-server") is None:
            print("there is no redis-server here: the rest is not measured")
            return
        redis, port = redis_server()
        into_redis(live, given.rows, given.changed, redis.pid, f"redis://127.0.0.1:{port}")
        lookups(live, given.rows, redis.pid, port)
        redis.kill()
        redis.wait()


if __name__ == "__main__":
    main()
