"""Damage to files, from a seed: to checkpoints, exports, journals, logs and their manifests.

`Damager.any` does to a folder what disks, users and other programs do: flipped bits, cut,
empty, zeroed, swapped, missing and foreign files, and things that are no files. The
`resealed` ones are worse: the content is wrong, and every checksum is right.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import faulthandler
import json
import os
import random
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.checkpoints.formats import manifests
from shoal.errors import UserError
from shoal.files.storage import LocalStorage
from shoal.proto import shoal_pb2 as pb

SECONDS = 60
"""After which a case is a hang, on a busy machine too."""


def outcome(call: Callable[[], Any]) -> tuple[Any, str]:
    """(what the call gives, ""), or (None, why it is refused): in one line."""
    try:
        return call(), ""
    except UserError as error:
        why = str(error)
    assert "\n" not in why
    return None, why


@dataclass(frozen=True)
class Damage:
    """What was done, and to which file or files of the folder."""

    kind: str
    paths: tuple[Path, ...]


class HangError(BaseException):
    """A case did not end in time."""


@contextlib.contextmanager
def watchdog() -> Iterator[None]:
    """Raise HangError in the body if it does not end; end the process if it does not hear."""

    def hang(*_: object) -> None:
        raise HangError

    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(SECONDS)
    faulthandler.dump_traceback_later(4 * SECONDS, exit=True)
    try:
        yield
    finally:
        signal.alarm(0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)


class Damager:
    """Damages folders; the same seed does the same."""

    BYTES = ("flip", "flip", "flips", "cut", "cut", "extend", "empty", "zeroed", "noise", "deep")
    FILES = ("missing", "swap", "duplicate", "foreign")
    OTHERS = ("directory", "fifo", "zero-device", "dangling", "loop", "socket")

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def any(self, folder: Path, other: Path) -> Damage:
        """Damage a folder. other: of the same kind, of which files may come."""
        while True:
            groups = (self.BYTES, self.FILES, self.OTHERS)
            kind = self.chance.choice([self.chance.choice(kinds) for kinds in groups])
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            path = self.chance.choice(files)
            if kind in self.BYTES:
                before = path.read_bytes()
                path.write_bytes(after := self.changed(kind, before))
                if after == before:
                    continue
                return Damage(kind, (path,))
            if kind in self.OTHERS:
                self._replaced(kind, path)
                return Damage(kind, (path,))
            if kind == "missing":
                path.unlink()
                return Damage(kind, (path,))
            if kind == "foreign":
                files = sorted(each for each in other.rglob("*") if each.is_file())
            source = self.chance.choice(files)
            ours, theirs = path.read_bytes(), source.read_bytes()
            if ours == theirs:
                continue
            path.write_bytes(theirs)
            if kind == "swap":
                source.write_bytes(ours)
                return Damage(kind, (path, source))
            return Damage(kind, (path,))

    def changed(self, kind: str, data: bytes) -> bytes:
        """What a file of `data` has then."""
        chance, changed = self.chance, bytearray(data)
        if kind in ("flip", "flips"):
            for _ in range(1 if kind == "flip" else chance.randint(2, 50)):
                changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        elif kind == "cut":
            del changed[chance.randrange(len(data)) :]
        elif kind == "extend":
            changed += chance.randbytes(chance.randint(1, 5000))
        elif kind == "empty":
            changed.clear()
        elif kind == "zeroed":
            page = chance.choice((64, 512, 4096))
            start = chance.randrange(0, len(data), page)
            changed[start : start + page] = bytes(len(changed[start : start + page]))
        elif kind == "noise":
            changed = bytearray(chance.randbytes(len(data)))
        else:
            changed = bytearray(chance.choice((b"[", b'{"a":')) * 200_000)
        return bytes(changed)

    @staticmethod
    def _replaced(kind: str, path: Path) -> None:
        path.unlink()
        if kind == "directory":
            path.mkdir()
        elif kind == "fifo":
            os.mkfifo(path)
        elif kind == "socket":
            with socket.socket(socket.AF_UNIX) as bound, _within(path.parent):
                bound.bind(path.name)
        else:
            names = {"zero-device": "/dev/zero", "dangling": "gone", "loop": path.name}
            path.symlink_to(names[kind])

    # ------------------------------------------------------------ right checksums

    def value(self, value: Any) -> Any:
        """Something else than a value of JSON."""
        chance = self.chance
        if chance.random() < 0.5:
            if isinstance(value, bool):
                return not value
            if isinstance(value, (int, float)):
                return chance.choice([-value - 1, value + 1, value * 1000 + 1, 0, -1])
            if isinstance(value, str):
                return chance.choice([value[:-1], value * 2, "x" + value, value.upper(), ""])
            if isinstance(value, list):
                return chance.choice([value[:-1], value + value[:1], value[::-1], [value], []])
            if isinstance(value, dict):
                return chance.choice([{}, [value], {"extra": 1, **value}, list(value)])
        nested: Any = []
        for _ in range(chance.choice((3, 200))):
            nested = [nested]
        others = [
            None,
            True,
            -1,
            2**63,
            2**200,
            1e308,
            1.5,
            float("nan"),
            float("inf"),
            "",
            "/etc/passwd",
            "../manifest.json",
            "a/../../b",
            "nul\0byte",
            "\ud800",
            "é" * 100,
            "x" * 100_000,
            {},
            [None],
            nested,
        ]
        return chance.choice(others)

    def content(self, content: dict[str, Any]) -> dict[str, Any]:
        """The content of a manifest with one thing in it changed."""
        changed = copy.deepcopy(content)
        while json.dumps(changed, sort_keys=True) == json.dumps(content, sort_keys=True):
            container, key = self.chance.choice(_places(changed))
            if self.chance.random() < 0.2:
                del container[key]
            else:
                container[key] = self.value(container[key])
        return changed

    def resealed_checkpoint(self, folder: Path) -> Damage:
        """Wrong content in a checkpoint whose checksums are right, all of them."""
        shards = sorted(folder.glob("server-*.json"))
        path = self.chance.choice([folder / manifests.MANIFEST, *shards, *shards])
        if path not in shards:
            reseal(path, self.content(unsealed(path)))
            return Damage("resealed manifest", (path,))
        kind = self.chance.choice(["content", "content", "message", "grafted"])
        contents = {shard: unsealed(shard) for shard in shards}
        if kind == "content":
            contents[path] = self.content(contents[path])
        elif kind == "message":
            every = self.chance.random() < 0.7
            field = self.chance.choice(["model", "routing"])
            text = self._message(field, contents[path][field])
            for shard in shards if every else [path]:
                contents[shard][field] = text
        else:
            # Files of the same kind: the rows of another server, or of another table.
            source = self.chance.choice([shard for shard in shards if shard != path])
            count = len(contents[path]["files"])
            ours, theirs = self.chance.randrange(count), self.chance.randrange(count)
            file = contents[path]["files"][ours]
            other = contents[source]["files"][theirs]
            shutil.copy(folder / other["name"], folder / file["name"])
            file |= {**other, "name": file["name"]}
        manifest = unsealed(folder / manifests.MANIFEST)
        for entry in manifest["shards"]:
            shard = folder / entry["manifest"]["name"]
            entry["manifest"] = reseal(shard, contents[shard])
            with contextlib.suppress(KeyError, TypeError):
                sizes = [file["bytes"] for file in contents[shard]["files"]]
                entry["bytes"] = entry["manifest"]["bytes"] + sum(sizes)
                entry["version"] = contents[shard]["version"]
        with contextlib.suppress(TypeError):
            manifest["bytes"] = sum(entry["bytes"] for entry in manifest["shards"])
            manifest["version"] = max(entry["version"] for entry in manifest["shards"])
        reseal(folder / manifests.MANIFEST, manifest)
        return Damage(f"resealed {kind}", (path,))

    def resealed_export(self, folder: Path) -> Damage:
        """Wrong content in an export whose checksums are right."""
        path = folder / manifests.MANIFEST
        content = unsealed(path)
        if self.chance.random() < 0.25:
            # One table's file, or the dense variables, as another's.
            names = [table["file"] for table in content["tables"]] + [content["dense"]]
            ours, theirs = self.chance.sample(names, 2)
            shutil.copy(folder / theirs, folder / ours)
            files = {file["name"]: file for file in content["files"]}
            files[ours].update({**files[theirs], "name": ours})
            reseal(path, content)
            return Damage("resealed grafted", (folder / ours,))
        reseal(path, self.content(content))
        return Damage("resealed manifest", (path,))

    def _message(self, field: str, text: str) -> str:
        chance = self.chance
        if chance.random() < 0.2:
            return chance.choice(["", "!", text[:-7], base64.b64encode(b"\xff" * 9).decode()])
        data = base64.b64decode(text)
        if field == "routing":
            routing = pb.RoutingTable.FromString(data)
            half = len(routing.owners) // 2
            chance.choice(
                [
                    lambda: setattr(routing, "servers", chance.choice([0, 1, 9, 2**31])),
                    lambda: setattr(routing, "owners", routing.owners[:half]),
                    lambda: setattr(routing, "owners", routing.owners[1:]),
                    lambda: setattr(routing, "owners", bytes(2 * half)),
                    lambda: setattr(routing, "owners", routing.owners[::-1]),
                    lambda: setattr(routing, "owners", b"\xff" * 2 * half),
                    lambda: setattr(routing, "owners", b""),
                ]
            )()
            return base64.b64encode(routing.SerializeToString()).decode()
        model = pb.ModelSpec.FromString(data)
        table, variable = model.tables[0], model.trainable[0]
        specs = ["", "{}", "null", "[" * 5000, '{"kind": "sgd", "hyperparameters": {}}']
        specs += ['{"kind": "adam", "hyperparameters": []}', '{"kind": [], "parameters": {}}']
        chance.choice(
            [
                lambda: setattr(table, "dim", chance.choice([0, 1, 4, 65537, 2**32 - 1])),
                lambda: setattr(table, "optimizer", chance.choice(specs)),
                lambda: setattr(table, "initializer", chance.choice(specs)),
                lambda: setattr(table, "value_dtype", chance.choice(["float64", "object"])),
                lambda: setattr(table, "seed", -(2**63)),
                lambda: setattr(table, "name", chance.choice(["unused", "", "x" * 9999])),
                lambda: setattr(model, "dense_optimizer", chance.choice(specs)),
                lambda: model.tables.add(),
                lambda: model.tables.pop(),
                lambda: model.tables.reverse(),
                lambda: variable.shape.append(chance.choice([-1, 0, 2, 2**62])),
                lambda: variable.shape.pop(),
                lambda: setattr(variable, "offset", chance.choice([-1, 1, 2**62])),
                lambda: model.trainable.add(name="more", shape=[2**40]),
                lambda: model.trainable.pop(),
                lambda: model.non_trainable.pop(),
            ]
        )()
        return base64.b64encode(model.SerializeToString()).decode()


def unsealed(path: Path) -> dict[str, Any]:
    """The content of a manifest without its checksum."""
    content: dict[str, Any] = json.loads(path.read_bytes())
    del content["checksum"]
    return content


def reseal(path: Path, content: dict[str, Any]) -> Any:
    """Write a manifest as shoal would, with its checksum; returns its description."""
    return manifests.write(LocalStorage(path.parent), path.name, content)


def _places(content: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a value of JSON."""
    keys = list(content) if isinstance(content, dict) else range(len(content))
    found = [(content, key) for key in keys]
    for key in keys:
        if isinstance(content[key], (dict, list)):
            found += _places(content[key])
    return found


@contextlib.contextmanager
def _within(folder: Path) -> Iterator[None]:
    """In `folder`: a socket's whole path may be too long."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
