"""A folder of deltas, written by hand as a job writes it."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from shoal.checkpoints.folders import text
from shoal.checkpoints.formats import manifests
from shoal.deltas import chain, shares
from shoal.deltas.schema import (
    DELTA_FORMAT,
    MODEL_FORMAT,
    DeltaManifest,
    LiveModel,
    Share,
    runs_of,
)
from shoal.files.storage import Storage
from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.proto import shoal_pb2 as pb
from shoal.proto.values.routing import SLOTS

JOB = "0123456789abcdef"
ALL = np.ones(SLOTS, bool)
NONE = np.zeros(SLOTS, bool)


def model_spec(*dims: int) -> pb.ModelSpec:
    """A model of tables a, b, ... of these dims, and a dense variable of two elements."""
    sgd = OptimizerSpec("sgd").to_json()
    uniform = InitializerSpec("uniform").to_json()
    return pb.ModelSpec(
        tables=[
            pb.TableSpec(name=chr(97 + n), dim=dim, optimizer=sgd, initializer=uniform)
            for n, dim in enumerate(dims)
        ],
        trainable=[pb.VariableSpec(name="w", shape=[2])],
        dense_optimizer=sgd,
    )


def write_model(root: Storage, spec: pb.ModelSpec, job: str = JOB) -> LiveModel:
    """Write the folder of a model without a SavedModel."""
    folder = root.child(chain.model_name(job))
    folder.make()
    content: dict[str, Any] = {
        "format": MODEL_FORMAT,
        "job": job,
        "engine": "tensorflow",
        "created": 1e9,
        "spec": text(spec),
        "tables": [
            {
                "name": each.name,
                "dim": each.dim,
                "default": [0.0] * each.dim,
                "vocabulary": each.vocabulary,
            }
            for each in spec.tables
        ],
        "saved_model": None,
        "lacks": "it was written by a test",
        "files": [],
    }
    described = manifests.write(folder, chain.MODEL_MANIFEST, content)
    return {"folder": chain.model_name(job), "manifest": described}


def write_delta(
    root: Storage,
    number: int,
    previous: str,
    model: LiveModel,
    parts: Sequence[tuple[np.ndarray, np.ndarray, Iterable[shares.Page]]],
    **changes: Any,
) -> chain.Delta:
    """Write a delta. parts: of each server, the slots that it owns, those told whole, its pages."""
    folder = root.child(chain.delta_name(number))
    folder.make()
    nonce = secrets.token_hex(8)
    written: list[Share] = []
    for server, (owned, whole, pages) in enumerate(parts):
        file = shares.write(folder, chain.share_name(server, nonce), pages)
        written.append(
            {
                "server": server,
                "life": "0" * 16,
                "since": 0,
                "to": number,
                "version": number,
                "owned": runs_of(owned),
                "whole": runs_of(whole),
                "dense": True,
                "file": file,
            }
        )
    base = all((own == whole).all() for own, whole, _ in parts)
    manifest: DeltaManifest = {
        "format": DELTA_FORMAT,
        "number": number,
        "nonce": nonce,
        "job": JOB,
        "job_name": "job",
        "created": 1e9 + number,
        "previous": previous,
        "base": base,
        "newest_base": number if base else 1,
        "base_bytes": 0,
        "bytes_since": 0,
        "epoch": 1,
        "version": number,
        "records": number,
        "model": model,
        "shares": written,
    } | changes  # type: ignore[assignment]
    manifests.write(folder, manifests.MANIFEST, manifest)
    return chain.Delta(manifest, manifests.checksum_of(manifest))
