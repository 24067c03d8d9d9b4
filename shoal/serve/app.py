"""The addresses of `shoal serve`: predictions, rows, health and metrics.

    POST /v1/models/NAME:predict      instances or inputs; see rest.py
    GET  /v1/models/NAME              state and version, which is the number of the newest delta
    GET  /v1/models/NAME/metadata     inputs and outputs
    .../models/NAME/versions/N...     the same three, if N is the number of the newest delta
    GET  /v1/tables                   names, dims and rows of the tables
    POST /v1/tables/NAME:lookup       rows of ids, in JSON or as an Arrow stream
    GET  /healthz, /readyz, /metrics

Owns which error has which status. A wrong request is 400 with the names that exist.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from shoal.deltas.following import Follower
from shoal.errors import Error, UserError
from shoal.serve import rest
from shoal.serve.figures import Page

BODY_BYTES = 64 << 20
"""Of a request; a larger one is refused before it is read."""

JSON = "application/json"
ARROW = "application/vnd.apache.arrow.stream"
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class StatusError(Error):
    """A request that is answered with another status than 200 and 400."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Service:
    """Answers requests with a follower's model. ready: "" or why it is not."""

    def __init__(
        self, follower: Follower, name: str, max_age: float | None = None, plane: int = 0
    ) -> None:
        """name: of the model. max_age: in seconds, above which it is not ready. plane: its port."""
        self._follower, self._name, self._max_age = follower, name, max_age
        self._plane = plane
        self.page = Page(follower)

    @property
    def ready(self) -> str:
        """See the class."""
        follower = self._follower
        if not follower.number:
            return follower.trouble or "nothing has been read yet"
        if not follower.caught_up:
            return f"delta {follower.number} is here, newer ones are being read"
        if self._max_age is not None and follower.age > self._max_age:
            why = f": {follower.trouble}" if follower.trouble else ""
            return f"delta {follower.number} is {follower.age:.0f} s old{why}"
        return ""

    # ------------------------------------------------------------ calls

    def predict(self, request: Request, body: bytes) -> Response:
        """Predictions for the records of a body."""
        self._check_name(request)
        predictor = self._follower.predictor
        texts = [name for name, spec in predictor.inputs.items() if spec.dtype.name == "string"]
        features, by_record = rest.features_of(rest.parsed(body), predictor.inputs, texts)
        outputs = predictor.predict(features)
        return _json(rest.predicted(outputs, by_record=by_record))

    def model(self, request: Request, _: bytes) -> Response:
        """The state of the model."""
        self._check_name(request)
        why = self.ready
        return _json(rest.status(self._name, self._follower.number, not why, why))

    def models(self, _request: Request, _: bytes) -> Response:
        """The names of all models: one."""
        return _json({"models": [self._name]})

    def metadata(self, request: Request, _: bytes) -> Response:
        """The inputs and outputs of the model."""
        self._check_name(request)
        predictor = self._follower.predictor
        number = self._follower.number
        return _json(rest.metadata(self._name, number, predictor.inputs, predictor.outputs))

    def tables(self, _request: Request, _: bytes) -> Response:
        """The tables, in the order in which the data plane numbers them."""
        tables = [
            {"name": each.name, "dim": each.dim, "rows": len(each.store)}
            for each in self._follower.rows.tables.values()
        ]
        return _json({"delta": self._follower.number, "tables": tables, "rows_port": self._plane})

    def lookup(self, request: Request, body: bytes) -> Response:
        """The rows of ids, in the form in which they were asked for."""
        self._follower.rows.table(name := request.path_params["table"])
        number = self._follower.number  # of before: the rows are as new, or newer
        if request.headers.get("content-type", "").partition(";")[0].strip() == ARROW:
            ids = _arrow_ids(body)
            return Response(_arrow(ids, self._follower.lookup(name, ids), number), media_type=ARROW)
        asked = rest.parsed(body)
        if not isinstance(asked.get("ids"), list):
            raise UserError('give {"ids": [...]}, a list of integers or strings')
        try:
            ids = np.asarray(asked["ids"])
        except (ValueError, OverflowError) as error:
            raise UserError(f"ids: {error}") from error
        rows = self._follower.lookup(name, ids)
        return _json({"delta": number, "rows": rows.tolist()})

    def healthz(self, _request: Request, _: bytes) -> Response:
        """Always well: a process that hangs does not answer."""
        return Response("ok\n", media_type="text/plain")

    def readyz(self, _request: Request, _: bytes) -> Response:
        """Ready for requests, or why not."""
        if why := self.ready:
            raise StatusError(503, why)
        return Response("ok\n", media_type="text/plain")

    def metrics(self, _request: Request, _: bytes) -> Response:
        """The page for Prometheus."""
        return Response(self.page.text(), headers={"content-type": PROMETHEUS})

    def _check_name(self, request: Request) -> None:
        self.check_name(request.path_params.get("name", self._name))
        number = str(self._follower.number)
        if (version := request.path_params.get("version", number)) != number:
            raise StatusError(404, rest.no_version(version, self._name, number))

    def check_name(self, name: str) -> None:
        """Raises StatusError if the model has another name."""
        if name != self._name:
            raise StatusError(404, rest.no_model(name, self._name))

    def answered(self, call: Call, request: Request, body: bytes) -> Response:
        """The answer of a call, or that to its error."""
        try:
            return call(request, body)
        except (StatusError, UserError) as error:
            return _error(self.status_of(error), str(error))

    def status_of(self, error: Error) -> int:
        """The status of an error of a call."""
        if isinstance(error, StatusError):
            return error.status
        return 400 if self._follower.number else 503


Call = Callable[[Request, bytes], Response]


def app_of(service: Service, also: Mapping[str, str] | None = None) -> Starlette:
    """The application. also: more paths of calls, by the call: predict, healthz."""
    routes = [
        ("GET", "/v1/models", service.models),
        ("POST", "/v1/models/{name}:predict", service.predict),
        ("GET", "/v1/models/{name}/metadata", service.metadata),
        ("GET", "/v1/models/{name}", service.model),
        ("POST", "/v1/models/{name}/versions/{version}:predict", service.predict),
        ("GET", "/v1/models/{name}/versions/{version}/metadata", service.metadata),
        ("GET", "/v1/models/{name}/versions/{version}", service.model),
        ("GET", "/v1/tables", service.tables),
        ("POST", "/v1/tables/{table:path}:lookup", service.lookup),
        ("GET", "/healthz", service.healthz),
        ("GET", "/readyz", service.readyz),
        ("GET", "/metrics", service.metrics),
    ]
    calls = {call.__name__: (method, call) for method, _, call in routes}
    routes += [(calls[name][0], path, calls[name][1]) for name, path in (also or {}).items()]
    return Starlette(
        routes=[
            Route(path, _endpoint(service, call), methods=[method]) for method, path, call in routes
        ],
        exception_handlers={404: _no_such_path},
    )


def _endpoint(service: Service, call: Call) -> Any:
    async def endpoint(request: Request) -> Response:
        began = time.perf_counter()
        body = await _body(request)
        if body is None:
            answer = _error(413, f"a request may have {BODY_BYTES >> 20} MB")
        else:
            # A thread of its own: TensorFlow and C let go of Python's lock, which others use.
            answer = await run_in_threadpool(service.answered, call, request, body)
        seconds = time.perf_counter() - began
        service.page.seconds.labels(call.__name__, str(answer.status_code)).observe(seconds)
        return answer

    return endpoint


async def _body(request: Request) -> bytes | None:
    """The body of a request; None if it is too large."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > BODY_BYTES:
            return None
        parts.append(part)
    return b"".join(parts)


async def _no_such_path(request: Request, _: Exception) -> Response:
    return _error(404, f"there is nothing at {request.url.path}: see GET /v1/models, /v1/tables")


def _json(answer: Any) -> Response:
    return Response(rest.dumped(answer), media_type=JSON)


def _error(status: int, message: str) -> Response:
    return Response(rest.dumped({"error": message}), status, media_type=JSON)


def _arrow_ids(body: bytes) -> np.ndarray[Any, Any]:
    try:
        table = pa.ipc.open_stream(body).read_all()
        column = table.column("id").combine_chunks()
    except (pa.ArrowException, KeyError, OSError) as error:
        raise UserError(f"the body must be an Arrow stream with a column id: {error}") from error
    if column.null_count:
        raise UserError("the column id has missing values")
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _arrow(ids: Any, rows: np.ndarray[Any, Any], number: int) -> bytes:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
    batch = pa.RecordBatch.from_pydict({"id": pa.array(ids), "vector": vectors})
    batch = batch.replace_schema_metadata({"delta": str(number)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())
