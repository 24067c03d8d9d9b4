"""Bodies of requests and answers: those of TensorFlow Serving's REST API and KServe's V1 protocol.

Pure functions: JSON's values to the model's features, and arrays to JSON's values. The forms are
described at https://www.tensorflow.org/tfx/serving/api_rest and in KServe's "V1 protocol".
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from shoal.base.words import near
from shoal.errors import UserError

SIGNATURE = "serving_default"
"""The one that models have here."""

B64 = "b64"
"""The key of bytes, which are no text."""

BYTES = "_bytes"
"""The end of the name of an output that is told as bytes."""

TYPES = {"float32": "FLOAT", "float64": "DOUBLE", "float16": "HALF"}
"""The names of dtypes in TensorFlow's messages, where they are others than NumPy's."""


def parsed(body: bytes) -> dict[str, Any]:
    """The object that a body is. Raises UserError."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UserError(f"the body is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise UserError("the body must be a JSON object")
    return found


def features_of(
    body: Mapping[str, Any], inputs: Collection[str], texts: Collection[str]
) -> tuple[dict[str, Any], bool]:
    """The features of a request, and whether it has them record by record (`instances`).

    inputs: names of the model's. texts: those of strings. Raises UserError.
    """
    check_signature(body.get("signature_name"))
    if ("instances" in body) == ("inputs" in body):
        raise UserError("give either instances, a list of records, or inputs, their columns")
    by_record = "instances" in body
    columns = _columns(body["instances"], inputs) if by_record else body["inputs"]
    if not isinstance(columns, dict) or [*columns] == [B64]:
        columns = {_only(inputs): columns}
    return {
        name: _bytes_in(name, value) if name in texts else value for name, value in columns.items()
    }, by_record


def check_signature(name: Any) -> None:
    """Raises UserError for another signature than the one that models have; none is that one."""
    if (name or SIGNATURE) != SIGNATURE:
        raise UserError(f"signature_name: there is no {name!r}; there is {SIGNATURE}")


def _columns(instances: Any, inputs: Collection[str]) -> dict[str, list[Any]]:
    if not isinstance(instances, list) or not instances:
        raise UserError("instances must be a list of at least one record")
    first = instances[0]
    if not isinstance(first, dict) or [*first] == [B64]:
        return {_only(inputs): instances}
    for position, each in enumerate(instances):
        if not isinstance(each, dict) or each.keys() != first.keys():
            raise UserError(
                f"instances[{position}] must have the inputs of the first one: {', '.join(first)}"
            )
    return {name: [each[name] for each in instances] for name in first}


def _only(inputs: Collection[str]) -> str:
    if len(inputs) != 1:
        raise UserError(f"name the inputs: the model takes {', '.join(inputs)}")
    return next(iter(inputs))


def _bytes_in(name: str, value: Any) -> Any:
    """A value whose parts of the form {"b64": ...} are bytes."""
    if isinstance(value, list):
        return [_bytes_in(name, each) for each in value]
    if isinstance(value, dict) and [*value] == [B64]:
        try:
            return base64.b64decode(value[B64], validate=True)
        except (binascii.Error, ValueError, TypeError) as error:
            raise UserError(f"input {name!r}: b64 has no bytes in base64: {error}") from error
    return value


def predicted(outputs: Mapping[str, np.ndarray[Any, Any]], *, by_record: bool) -> dict[str, Any]:
    """The answer to a request for predictions. Raises UserError if it has none by record."""
    values = {name: _values(name, each) for name, each in outputs.items()}
    single = next(iter(values.values())) if len(values) == 1 else None
    if not by_record:
        return {"outputs": values if single is None else single}
    sizes = {len(each) if each.ndim else None for each in outputs.values()}
    if len(sizes) > 1 or None in sizes:
        raise UserError(
            "the model's outputs do not have a row for each record: ask with inputs, not instances"
        )
    if single is not None:
        return {"predictions": single}
    rows = zip(*values.values(), strict=True)
    return {"predictions": [dict(zip(values, row, strict=True)) for row in rows]}


def _values(name: str, array: np.ndarray[Any, Any]) -> Any:
    found = array.tolist()
    return _told(name, found) if array.dtype.kind in "OS" else found


def _told(name: str, value: Any) -> Any:
    """Strings as text where they are, and as base64 where not."""
    if isinstance(value, list):
        return [_told(name, each) for each in value]
    if isinstance(value, bytes):
        if not name.endswith(BYTES):
            try:
                return value.decode()
            except UnicodeDecodeError:
                pass
        return {B64: base64.b64encode(value).decode()}
    return value


def dumped(answer: Any) -> bytes:
    """An answer as JSON; with NaN and Infinity, as TensorFlow Serving has them."""
    return json.dumps(answer).encode()


def status(name: str, version: int, ready: bool, why: str) -> dict[str, Any]:
    """The state of the model, as both protocols tell it. why: it is not ready."""
    error = {"error_code": "OK" if ready else "UNAVAILABLE", "error_message": why}
    state = "AVAILABLE" if ready else "START"
    versions = [{"version": str(version), "state": state, "status": error}]
    return {"name": name, "ready": ready, "model_version_status": versions}


def metadata(
    name: str, version: int, inputs: Mapping[str, Any], outputs: Mapping[str, Any]
) -> dict[str, Any]:
    """The signature of the model. inputs, outputs: of each its TensorSpec, or its like."""
    signature = {
        "inputs": {key: _tensor(key, each) for key, each in inputs.items()},
        "outputs": {key: _tensor(key, each) for key, each in outputs.items()},
        "method_name": "tensorflow/serving/predict",
    }
    definition = {"signature_def": {SIGNATURE: signature}}
    return {
        "model_spec": {"name": name, "signature_name": "", "version": str(version)},
        "metadata": {"signature_def": definition},
    }


def _tensor(name: str, spec: Any) -> dict[str, Any]:
    rank = spec.shape.rank
    dims = [] if rank is None else spec.shape.as_list()
    sizes = [{"size": "-1" if each is None else str(each), "name": ""} for each in dims]
    shape = {"dim": sizes, "unknown_rank": rank is None}
    dtype = f"DT_{TYPES.get(spec.dtype.name, spec.dtype.name.upper())}"
    return {"dtype": dtype, "tensor_shape": shape, "name": name}


def no_model(name: str, own: str) -> str:
    """The error for another model's name."""
    return f"there is no model {name!r}{near(name, [own])}; there is {own}"


def no_version(version: str, name: str, number: str) -> str:
    """The error for a version that is not served. number: of the one that is; 0: none is."""
    there = f"there is {number}" if number != "0" else "there is none yet"
    return f"there is no version {version} of {name}; {there}"
