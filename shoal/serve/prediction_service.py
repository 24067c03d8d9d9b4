"""TensorFlow Serving's gRPC API: Predict, GetModelMetadata and GetModelStatus.

Owns which error has which code, and tensors on their way to the model and back. Messages of errors,
metadata and status are those of REST. Its protobufs are of the package tensorflow-serving-api,
which imports TensorFlow: this module is loaded with --grpc only.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
from google.protobuf.json_format import ParseDict
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from shoal.base.modules.libraries import library
from shoal.base.words import near
from shoal.deltas.following import Follower
from shoal.errors import UserError
from shoal.serve import rest
from shoal.serve.app import BODY_BYTES, Service, StatusError

CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    404: grpc.StatusCode.NOT_FOUND,
    503: grpc.StatusCode.UNAVAILABLE,
}
"""Codes of gRPC, by the status that REST answers with."""

THREADS = 40
"""Requests at the same time, as many as over HTTP."""

VALUES = BODY_BYTES // 4
"""Of a tensor, which may say in a few bytes that one value is repeated."""

FIELD = "signature_def"
"""The only metadata that there is."""


class Server:
    """The port of gRPC, from its making to `close`. port: its number."""

    def __init__(
        self,
        service: Service,
        follower: Follower,
        name: str,
        address: str,
        credentials: grpc.ServerCredentials | None,
    ) -> None:
        """service: of this follower, whose model has this name.

        address: "host:port"; port 0 is any free one. Raises OSError if it cannot be used.
        """
        options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", BODY_BYTES)]
        self._server = grpc.server(ThreadPoolExecutor(THREADS, "grpc"), options=options)
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
            _Predictions(service, follower, name), self._server
        )
        model_service_pb2_grpc.add_ModelServiceServicer_to_server(
            _Models(service, follower, name), self._server
        )
        try:
            if credentials is None:
                self.port: int = self._server.add_insecure_port(address)
            else:
                self.port = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise OSError(str(error)) from error
        self._server.start()

    def close(self) -> None:
        """End it; requests under way have ten seconds."""
        self._server.stop(10).wait()


def _answering(call: Callable[[Any, Any], Any]) -> Callable[[Any, Any, grpc.ServicerContext], Any]:
    """The method of a servicer for a call of a request: errors have codes, and it is measured."""

    def answer(self: Any, request: Any, context: grpc.ServicerContext) -> Any:
        began, code = time.perf_counter(), grpc.StatusCode.UNKNOWN
        try:
            response = call(self, request)
            code = grpc.StatusCode.OK
            return response
        except (StatusError, UserError) as error:
            code = CODES[self.service.status_of(error)]
            context.abort(code, str(error))
        finally:
            seconds = time.perf_counter() - began
            self.service.page.seconds.labels(call.__name__, code.name).observe(seconds)

    return answer


class _Model:
    """The model that both services answer for."""

    def __init__(self, service: Service, follower: Follower, name: str) -> None:
        self.service, self.follower, self.name = service, follower, name
        self.tf = library("tensorflow", "--grpc", "'shoal[cpu]'")

    def version(self, spec: Any) -> int:
        """The number of the delta. Raises StatusError if another model or version is asked for."""
        self.service.check_name(spec.name)
        number = self.follower.number
        if spec.version_label or (spec.HasField("version") and spec.version.value != number):
            asked = spec.version_label or str(spec.version.value)
            raise StatusError(404, rest.no_version(asked, self.name, str(number)))
        return number

    def array(self, name: str, tensor: Any) -> np.ndarray[Any, Any]:
        """The array of an input. Raises UserError if the tensor is none."""
        sizes = [each.size for each in tensor.tensor_shape.dim]
        if tensor.tensor_shape.unknown_rank or min(sizes, default=0) < 0:
            raise UserError(f"input {name!r} must be a tensor of a known shape")
        if (count := math.prod(sizes)) > VALUES:
            raise UserError(f"input {name!r} has {count} values; a tensor may have {VALUES}")
        try:
            return np.asarray(self.tf.make_ndarray(tensor))
        except (TypeError, ValueError, IndexError, KeyError) as error:
            raise UserError(f"input {name!r} is no tensor: {error}") from error


class _Predictions(_Model, prediction_service_pb2_grpc.PredictionServiceServicer):  # type: ignore[misc]
    """Predict and GetModelMetadata; gRPC answers for the others that they are not implemented."""

    @_answering
    def Predict(self, request: Any) -> Any:  # noqa: N802
        """Predictions for the records of tensors."""
        self.service.check_name(request.model_spec.name)
        predictor = self.follower.predictor
        number = self.version(request.model_spec)
        rest.check_signature(request.model_spec.signature_name)
        given = {name: self.array(name, request.inputs[name]) for name in sorted(request.inputs)}
        outputs = predictor.predict(given)
        for name in request.output_filter:
            if name not in outputs:
                raise UserError(
                    f"output_filter: the model has no output {name!r}{near(name, outputs)}; it has "
                    f"{', '.join(outputs)}"
                )
        answer = predict_pb2.PredictResponse(model_spec=self._spec(number))
        for name in request.output_filter or outputs:
            answer.outputs[name].CopyFrom(self.tf.make_tensor_proto(outputs[name]))
        return answer

    @_answering
    def GetModelMetadata(self, request: Any) -> Any:  # noqa: N802
        """The inputs and outputs of the model."""
        self.service.check_name(request.model_spec.name)
        predictor = self.follower.predictor
        number = self.version(request.model_spec)
        if [*request.metadata_field] != [FIELD]:
            raise UserError(f"metadata_field must be {FIELD}, which is all that there is")
        told = rest.metadata(self.name, number, predictor.inputs, predictor.outputs)["metadata"]
        answer = get_model_metadata_pb2.GetModelMetadataResponse(model_spec=self._spec(number))
        answer.metadata[FIELD].Pack(
            ParseDict(told[FIELD], get_model_metadata_pb2.SignatureDefMap())
        )
        return answer

    def _spec(self, number: int) -> Any:
        return model_pb2.ModelSpec(
            name=self.name, version={"value": number}, signature_name=rest.SIGNATURE
        )


class _Models(_Model, model_service_pb2_grpc.ModelServiceServicer):  # type: ignore[misc]
    """GetModelStatus."""

    @_answering
    def GetModelStatus(self, request: Any) -> Any:  # noqa: N802
        """The state of the model, also before it is there."""
        number = self.version(request.model_spec)
        why = self.service.ready
        told = rest.status(self.name, number, not why, why)
        answer = get_model_status_pb2.GetModelStatusResponse()
        return ParseDict(told, answer, ignore_unknown_fields=True)
