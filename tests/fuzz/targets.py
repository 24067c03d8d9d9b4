"""What is fuzzed: each parser of bytes that come from a connection or a disk, with whole inputs.

A target's `parse` either takes an input or refuses it with the error that the parser documents.
Any other error, a crash, a hang, or memory that the input does not pay for is a defect. The
`sealed` targets get the content of a record or manifest, and give it right checksums: behind those
a parser must not trust it either.
"""

from __future__ import annotations

import functools
import json
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from shoal.checkpoints import folders
from shoal.checkpoints.formats import arrow, export_schema, manifests, schema
from shoal.checkpoints.formats.manifests import CheckpointError
from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.files.storage import LocalStorage
from shoal.master.job.events import JobBegun, Noted
from shoal.master.journal import records
from shoal.master.journal.events import Entry
from shoal.master.journal.records import Header
from shoal.master.journal.segments import Segment
from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.plane import hello, message
from shoal.proto.plane.link import BrokenError, Link
from shoal.proto.plane.server import request
from shoal.proto.protocol import own_protocol
from shoal.proto.values.routing import Routing
from shoal.proto.wire import frames
from shoal.ps.model.pushes import PushRegister
from shoal.ps.model.tables import ServerModel
from shoal.ps.model.unpack import ids_of_tables, unpack
from shoal.ps.saved.checkpoint import cut, write_shard
from shoal.ps.update_log.batches import packed, unpacked
from shoal.ps.update_log.file_sink import FileSink
from shoal.ps.update_log.records import BASE, ENTRY, read_records, record
from shoal.ps.update_log.sinks import LogDamagedError, LogLostError
from tests.native import answer_reader
from tests.native import pull_reader as native_pulls
from tests.native.pull_reader import PullReader
from tests.ps import twins

CORPUS = Path(__file__).with_name("corpus")
"""A folder for each target: inputs that once were defects, and rare ones."""


@dataclass(frozen=True)
class Target:
    """A parser. seeds: makes whole inputs. refused: its errors for what it does not take."""

    parse: Callable[[bytes], object]
    seeds: Callable[[], list[bytes]]
    refused: tuple[type[Exception], ...]

    def take(self, data: bytes) -> bool:
        """Parse an input; whether it was taken. Raises what no parser may."""
        try:
            self.parse(data)
        except self.refused:
            return False
        return True


@functools.cache
def scratch() -> Path:
    """A folder for inputs that are files; goes with the process."""
    folder = tempfile.TemporaryDirectory(prefix="shoal-fuzz-")
    scratch.folder = folder  # type: ignore[attr-defined]
    return Path(folder.name)


def corpus(name: str) -> list[bytes]:
    """The kept inputs of a target."""
    return [file.read_bytes() for file in sorted((CORPUS / name).glob("*"))]


# ---------------------------------------------------------------- frames


def push_frames() -> list[bytes]:
    """Pushes: of two tables with the dense block, and of halves with scales."""
    identity = pb.PushIdentity(worker=1, incarnation=2, sequence=3)
    ids = np.arange(5, dtype=np.int64)
    rows = np.ones((5, 3), np.float32)
    dense = np.ones(4, np.float32)
    both = pb.PushRequest(identity=identity, tables=[0, 1], ids_of=[0, 0], has_dense=True)
    halves = pb.PushRequest(identity=identity, tables=[0], ids_of=[0], scales=[2.0])
    return [
        frames.encode(both, [ids, rows, rows, dense, dense[:2]]),
        frames.encode(halves, [ids, rows.astype(np.float16)]),
    ]


def pull_frames() -> list[bytes]:
    """A pull of two tables."""
    ids = np.arange(5, dtype=np.int64)
    return [frames.encode(pb.PullRequest(tables=[0, 1], ids_of=[1, 0]), [ids, ids[:0]])]


def parse_pull(data: bytes) -> None:
    request, arrays = frames.decode(data, pb.PullRequest)
    ids_of_tables(arrays, request)


@functools.cache
def pull_reader() -> PullReader:
    return PullReader()


# ---------------------------------------------------------------- the data plane


def callers() -> list[bytes]:
    """All that a caller sends: a hello, a proof, and calls."""
    said = pb.Hello(protocol=own_protocol(), meant="ps-0", nonce=b"n" * 32).SerializeToString()
    proof = pb.HelloProof(proof=b"p" * 32).SerializeToString()
    label = pb.LogGroup(first=1, entries=[entry(1)], sizes=[3]).SerializeToString()
    messages = [
        (message.HELLO, said),
        (message.PROOF, proof),
        (methods.PUSH.kind, b"frame"),
        (methods.APPEND_LOG.kind, message.LABEL.pack(len(label)) + label + b"abc"),
        (methods.READ_TABLE.kind, pb.ReadTableRequest(table=1).SerializeToString()),
    ]
    return [b"".join(message.prefix(kind, len(data)) + data for kind, data in messages)]


def parse_caller(data: bytes) -> None:
    """What a server that takes everybody does with a connection that sends this and ends."""
    near, far = socket.socketpair()
    with near, far:
        near.settimeout(10.0)
        near.sendall(data)
        near.shutdown(socket.SHUT_WR)
        link = Link(far)
        hello.answer(link, "")
        while True:
            try:
                link.wait(10.0)
            except BrokenError:  # after a whole message
                return
            kind, size = link.next_prefix(time.monotonic() + 10.0)
            if size > len(data):
                raise WireError(pb.BAD_REQUEST, "more than comes")
            payload = link.read(size, time.monotonic() + 10.0)
            method = next((each for each in _OF_ARRAYS if each.kind == kind), None)
            if method is not None:
                request(method, payload)


_OF_ARRAYS = (methods.PUSH, methods.APPEND_LOG, methods.READ_TABLE, methods.TAKE_LOG)


# ---------------------------------------------------------------- the log of updates


def entry(step: int) -> pb.LogEntry:
    return pb.LogEntry(log="a", server=0, incarnation=1, step=step)


def log_base() -> pb.LogBase:
    return pb.LogBase(log="a", server=0, incarnation=1, applied=[pb.PushIdentity(worker=1)])


def batches() -> list[bytes]:
    entries = [(entry(1), push_frames()[0]), (entry(2), b"")]
    labelled = [(each.SerializeToString(), frame) for each, frame in entries]
    return [message.joined() for message in packed(labelled)]


def log_files() -> list[bytes]:
    parts = record(BASE, 0, log_base())
    for number, frame in enumerate(push_frames(), 1):
        parts += record(ENTRY, number, entry(number), frame)
    return [b"".join(parts)]


def parse_log_file(data: bytes) -> None:
    path = scratch() / "a.log"
    path.write_bytes(data)
    for _ in read_records(path):
        pass


def log_segment_name() -> str:
    """The name that a log's first segment has."""
    folder = scratch() / "named"
    sink = FileSink(folder, 0, 1, sync=False)
    try:
        sink.begin(log_base())
        sink.append(entry(1), b"")()
    finally:
        sink.close()
    (path,) = folder.iterdir()
    return path.name


def parse_log_record(data: bytes) -> None:
    """A byte for the kind of the record, and the length of its message; the message; a push."""
    folder = scratch() / "log"
    folder.mkdir(exist_ok=True)
    kind, at = (data[0], data[1] + 2) if len(data) > 1 else (0, 0)
    magic = BASE if kind & 1 else ENTRY
    sealed = _Label(data[2:at])
    before = [] if kind & 2 else record(BASE, 0, log_base())
    path = folder / _segment_name()
    path.write_bytes(b"".join([*before, *record(magic, kind >> 2, sealed, data[at:])]))
    sink = FileSink(folder, 0, 2, sync=False)
    try:
        taken = sink.take()
        for _ in taken.entries if taken else ():
            pass
    finally:
        sink.close()


_segment_name = functools.cache(log_segment_name)


@dataclass(frozen=True)
class _Label:
    """Stands for a message, with bytes that may be none."""

    content: bytes

    def SerializeToString(self) -> bytes:  # noqa: N802
        return self.content


def log_records() -> list[bytes]:
    found = []
    for kind, said in ((0 | 1 << 2, entry(1)), (1 | 2, log_base()), (2 | 1 << 2, entry(1))):
        label = said.SerializeToString()
        found.append(bytes([kind, len(label)]) + label + push_frames()[0])
    return found


# ---------------------------------------------------------------- the journal


def config() -> JobConfig:
    return JobConfig(model_def="model.custom_model", training_data="/a.csv", token="0")


def journal_header() -> Header:
    return Header(config(), 1, records.beginning(config(), 7), 0.0, 0.0, "")


def journals() -> list[bytes]:
    header = journal_header()
    payloads = [records.payload_of(Entry(each, 1.0)) for each in (Noted("a"), JobBegun())]
    one, position = records.record_of(payloads[0], header.before)
    two, last = records.record_of(payloads[1], position)
    return [header.to_bytes() + one + two + records.followed_record(last)]


def parse_journal(data: bytes) -> None:
    path = scratch() / "000001.journal"
    path.write_bytes(data)
    for _ in Segment(path).entries():
        pass


def parse_journal_event(data: bytes) -> None:
    """An event's payload, in a record that is as it should be."""
    header = journal_header()
    checksum = records.chained(1, data, header.before.checksum)
    parse_journal(header.to_bytes() + records.record_bytes(records.EVENT, 1, checksum, data))


def parse_journal_header(data: bytes) -> None:
    """The JSON of a header."""
    body = records._SIZES.pack(len(data), 0) + data
    head = (records.MAGIC, records.FORMAT, len(body), xxhash.xxh3_64_intdigest(body))
    parse_journal(records.HEADER.pack(*head) + body)


def journal_events() -> list[bytes]:
    return [records.payload_of(Entry(Noted("a"), 1.0, {"clocks": {"1": 2}}, 3))]


def journal_headers() -> list[bytes]:
    whole = journal_header().to_bytes()
    size, _ = records._SIZES.unpack_from(whole, records.HEADER.size)
    begin = records.HEADER.size + records._SIZES.size
    return [whole[begin : begin + size]]


# ---------------------------------------------------------------- checkpoints

MODEL = pb.ModelSpec(
    tables=[
        pb.TableSpec(
            name="items",
            dim=3,
            initializer=InitializerSpec("uniform").to_json(),
            optimizer=OptimizerSpec("adam").to_json(),
        )
    ],
    trainable=[pb.VariableSpec(name="w", shape=[4])],
    dense_optimizer=OptimizerSpec("adam").to_json(),
)
COLUMNS = arrow.table_columns(3, OptimizerSpec("adam"))


@functools.cache
def checkpoint() -> Path:
    """The folder of a whole checkpoint of one server."""
    root = LocalStorage(scratch() / "checkpoints")
    model = ServerModel(MODEL, 0, 1, 16384)
    model.dense.initialize(np.zeros(4, np.float32), np.zeros(0, np.float32))
    model.tables[0].lookup(np.arange(40, dtype=np.int64))
    attempt = folders.begin(root, 1, "job")
    shard = write_shard(attempt, 0, Routing.even(1), model, cut(model, PushRegister()))
    folders.complete(attempt, [shard], {})
    return scratch() / "checkpoints" / folders.folder_name(1)


def manifest_texts() -> list[bytes]:
    found = []
    for path in sorted(checkpoint().glob("*.json")):
        content = json.loads(path.read_bytes())
        del content["checksum"]
        found.append(json.dumps(content).encode())
    return found


def parse_manifest_file(data: bytes) -> None:
    _read_manifests(data)


def parse_manifest(data: bytes) -> None:
    """The JSON of a manifest, which gets its checksum."""
    try:
        content = json.loads(data)
        sealed = manifests._sealed({**content, "format": manifests.FORMAT})
    except (ValueError, TypeError, RecursionError):
        sealed = data
    _read_manifests(sealed)


def _read_manifests(data: bytes) -> None:
    storage = LocalStorage(scratch())
    (scratch() / "manifest.json").write_bytes(data)
    refused = []
    checks = (
        schema.checked_manifest,
        schema.checked_shard,
        schema.checked_begun,
        export_schema.checked_export,
    )
    for checked in checks:
        try:
            manifests.read(storage, "manifest.json", manifests.FORMAT, checked)
        except CheckpointError as error:
            # Without its traceback, whose frames keep the input and all that was parsed of it.
            refused.append(error.with_traceback(None))
    if len(refused) == len(checks):
        raise refused[0]


def manifest_files() -> list[bytes]:
    return [path.read_bytes() for path in sorted(checkpoint().glob("*.json"))]


def arrow_pages(number: int) -> list[bytes]:
    """Page `number` of a table's file: the first has the schema before it."""
    ids, values = np.arange(6, dtype=np.int64), np.ones((6, 3), np.float32)
    width = OptimizerSpec("adam").slot_width(3)
    slots = {name: np.ones((6, width), np.float32) for name in OptimizerSpec("adam").slot_names}
    columns = arrow.row_columns(ids, values, slots, ids, np.ones(6, np.uint32))
    storage = LocalStorage(scratch())
    described = arrow.write(storage, "table.arrow", [(columns, (0, 9)), (columns, (9, 20))])
    data = (scratch() / "table.arrow").read_bytes()
    begin = sum(page["bytes"] for page in described["pages"][:number])
    return [data[begin : begin + described["pages"][number]["bytes"]]]


def parse_page(number: int, data: bytes) -> None:
    for column in arrow.piece("table.arrow", data, number, COLUMNS).values():
        column.sum()  # which reads all that it refers to


TARGETS = {
    "push": Target(unpack, push_frames, (WireError,)),
    "pull": Target(parse_pull, pull_frames, (WireError,)),
    "push-native": Target(lambda data: twins.begun().check(data), twins.seeds, (WireError,)),
    "pull-native": Target(lambda data: pull_reader().check(data), native_pulls.seeds, (WireError,)),
    "answer-native": Target(answer_reader.check, answer_reader.seeds, (WireError,)),
    "caller": Target(parse_caller, callers, (WireError, BrokenError)),
    "log-batch": Target(lambda data: list(unpacked(data)), batches, (LogDamagedError,)),
    "log-file": Target(parse_log_file, log_files, ()),
    "log-record-sealed": Target(parse_log_record, log_records, (LogLostError,)),
    "journal": Target(parse_journal, journals, (UserError,)),
    "journal-event-sealed": Target(parse_journal_event, journal_events, (UserError,)),
    "journal-header-sealed": Target(parse_journal_header, journal_headers, (UserError,)),
    "manifest": Target(parse_manifest_file, manifest_files, (CheckpointError,)),
    "manifest-sealed": Target(parse_manifest, manifest_texts, (CheckpointError,)),
    "arrow-first-page": Target(
        functools.partial(parse_page, 0), lambda: arrow_pages(0), (CheckpointError,)
    ),
    "arrow-page": Target(
        functools.partial(parse_page, 1), lambda: arrow_pages(1), (CheckpointError,)
    ),
}

if __name__ == "__main__":
    print("\n".join(TARGETS))
