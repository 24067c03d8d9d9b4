"""What `shoal serve --grpc` answers to the stock client of TensorFlow Serving's API."""

import re
from functools import partial

import grpc
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("tensorflow_serving", reason="`make test` installs tensorflow-serving-api")

from tensorflow.core.framework.tensor_pb2 import TensorProto
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from shoal.serve.prediction_service import VALUES, Server
from tests.serve.test_app import COLUMNS, PREDICT, scores

pytestmark = pytest.mark.slow

INPUTS = {
    "user": np.array(COLUMNS["user"]),
    "tags_values": np.array([3, 4, 5]),
    "tags_row_splits": np.array([0, 2, 2, 3]),
    "word": np.array([b"x", b"\xff\x00", b"z"], object),
}


class Stub:
    """The stock client of one server."""

    def __init__(self, channel):
        self.predictions = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        self.models = model_service_pb2_grpc.ModelServiceStub(channel)

    def predict(self, *inputs, **spec):
        return self.predictions.Predict(self.request(*inputs, **spec), timeout=60)

    def request(self, inputs=INPUTS, name="clicks", **spec):
        request = predict_pb2.PredictRequest()
        request.model_spec.name = name
        for key, value in inputs.items():
            tensor = value if isinstance(value, TensorProto) else None
            request.inputs[key].CopyFrom(tensor or tf.make_tensor_proto(value))
        request.output_filter.extend(spec.pop("output_filter", []))
        if "version" in spec:
            request.model_spec.version.value = spec.pop("version")
        for key, value in spec.items():
            setattr(request.model_spec, key, value)
        return request

    def metadata(self, *fields, name="clicks"):
        request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=fields)
        request.model_spec.name = name
        return self.predictions.GetModelMetadata(request, timeout=60)

    def status(self, name="clicks"):
        request = get_model_status_pb2.GetModelStatusRequest()
        request.model_spec.name = name
        return self.models.GetModelStatus(request, timeout=60)


@pytest.fixture
def asking(serving, history):
    """A Stub and a Client of one server, which has read nothing yet."""
    client = serving(history.root.location)
    server = Server(client.service, client.follower, "clicks", "127.0.0.1:0", None)
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield Stub(channel), client
    server.close()


@pytest.fixture
def stub(asking):
    stub, client = asking
    client.follower.start()
    assert client.follower.wait(1, 60), client.follower.trouble
    return stub


def refused(call, code, words):
    with pytest.raises(grpc.RpcError) as caught:
        call()
    assert (caught.value.code(), bool(re.search(words, caught.value.details()))) == (
        code,
        True,
    ), caught.value


def test_the_stock_client_gets_predictions(stub, history):
    answer = stub.predict()
    assert answer.model_spec.name == "clicks"
    assert answer.model_spec.version.value == 1
    assert answer.model_spec.signature_name == "serving_default"
    found = {name: tf.make_ndarray(each) for name, each in answer.outputs.items()}
    assert found["word"].tolist() == [b"x!", b"\xff\x00!", b"z!"]
    assert found["score"].dtype == np.float32
    np.testing.assert_allclose(found["score"], scores(history), rtol=1e-5, atol=1e-6)
    answer = stub.predict(output_filter=["score"], version=1, signature_name="serving_default")
    assert [*answer.outputs] == ["score"]
    np.testing.assert_array_equal(tf.make_ndarray(answer.outputs["score"]), found["score"])


def test_they_are_those_of_rest(asking, history):
    stub, client = asking
    client.follower.step()
    inputs = {**INPUTS, "word": np.array(COLUMNS["word"], object)}
    _, answer = client.post(PREDICT, {"inputs": COLUMNS})
    found = tf.make_ndarray(stub.predict(inputs).outputs["score"])
    assert found.tolist() == answer["outputs"]["score"]


def test_a_prediction_changes_with_the_next_delta(asking, history):
    stub, client = asking
    client.follower.step()
    stub.predict()
    history.push(30)
    history.publish()
    client.follower.start()
    assert client.follower.wait(2, 60)
    answer = stub.predict()
    assert answer.model_spec.version.value == 2
    found = tf.make_ndarray(answer.outputs["score"])
    np.testing.assert_allclose(found, scores(history), rtol=1e-5, atol=1e-6)


WRONG = grpc.StatusCode.INVALID_ARGUMENT
UNKNOWN = grpc.StatusCode.NOT_FOUND


def tensor(**fields):
    return TensorProto(**fields)


def shape(*sizes):
    return {"dim": [{"size": each} for each in sizes]}


INT64, FLOAT = tf.int64.as_datatype_enum, tf.float32.as_datatype_enum


WRONG_REQUESTS = [
    ({"name": "click"}, UNKNOWN, r"no model 'click' \(did you mean clicks\?\); there is clicks"),
    ({"name": ""}, UNKNOWN, "there is no model ''; there is clicks"),
    ({"version": 7}, UNKNOWN, "there is no version 7 of clicks; there is 1"),
    ({"version_label": "canary"}, UNKNOWN, "there is no version canary of clicks"),
    ({"signature_name": "other"}, WRONG, "there is no 'other'; there is serving_default"),
    ({"output_filter": ["scor"]}, WRONG, r"no output 'scor' \(did you mean score\?\); it has"),
    ({"inputs": {}}, WRONG, "input 'tags_row_splits' is missing; the model takes"),
    ({"inputs": INPUTS | {"usr": [1]}}, WRONG, r"no input 'usr' \(did you mean user\?\)"),
    ({"inputs": INPUTS | {"user": [0.5, 1, 2]}}, WRONG, "input 'user' must be of int64"),
    ({"inputs": INPUTS | {"user": [[1], [2], [3]]}}, WRONG, r"shape \[3, 1\]"),
    ({"inputs": INPUTS | {"user": [1, 2]}}, WRONG, "numbers of records: tags 3, user 2, word 3"),
    ({"inputs": INPUTS | {"user": tensor()}}, WRONG, "input 'user' is no tensor"),
    (
        {"inputs": INPUTS | {"user": tensor(tensor_shape={"unknown_rank": True}, dtype=INT64)}},
        WRONG,
        "input 'user' must be a tensor of a known shape",
    ),
    (
        {"inputs": INPUTS | {"user": tensor(tensor_shape=shape(-1), dtype=INT64)}},
        WRONG,
        "input 'user' must be a tensor of a known shape",
    ),
    (
        {
            "inputs": INPUTS
            | {"user": tensor(tensor_shape=shape(VALUES, 2), dtype=INT64, int64_val=[1])}
        },
        WRONG,
        f"input 'user' has {2 * VALUES} values; a tensor may have {VALUES}",
    ),
    (
        {
            "inputs": INPUTS
            | {"user": tensor(tensor_shape=shape(3), dtype=INT64, tensor_content=b"1234")}
        },
        WRONG,
        "input 'user' is no tensor",
    ),
]


def test_a_wrong_request_has_a_code_and_the_message_of_rest(stub):
    for asked, code, words in WRONG_REQUESTS:
        call = partial(stub.predictions.Predict, stub.request(**asked), timeout=60)
        refused(call, code, words)


TENSORS = st.builds(
    tensor,
    dtype=st.sampled_from([INT64, FLOAT, tf.string.as_datatype_enum, 0, 14, 23, 101]),
    tensor_shape=st.lists(st.integers(-1, 9), max_size=3).map(lambda sizes: shape(*sizes)),
    tensor_content=st.binary(max_size=32),
    int64_val=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4),
    float_val=st.lists(st.floats(width=32), max_size=4),
    string_val=st.lists(st.binary(max_size=3), max_size=4),
)


def test_any_tensor_is_answered_or_refused(stub):
    @settings(max_examples=60)
    @given(st.sampled_from([*INPUTS]), TENSORS)
    def ask(name, value):
        call = stub.predictions.Predict.future(stub.request(INPUTS | {name: value}), timeout=60)
        assert call.exception() is None or call.code() == WRONG, call.exception()

    ask()


def test_the_metadata_is_that_of_the_savedmodel(stub):
    answer = stub.metadata("signature_def")
    assert (answer.model_spec.name, answer.model_spec.version.value) == ("clicks", 1)
    found = get_model_metadata_pb2.SignatureDefMap()
    assert answer.metadata["signature_def"].Unpack(found)
    signature = found.signature_def["serving_default"]
    assert {*signature.inputs} == {*INPUTS}
    assert signature.inputs["user"].dtype == INT64
    assert signature.inputs["word"].dtype == tf.string.as_datatype_enum
    assert [each.size for each in signature.inputs["user"].tensor_shape.dim] == [-1]
    assert signature.outputs["score"].dtype == FLOAT
    assert signature.method_name == "tensorflow/serving/predict"
    refused(lambda: stub.metadata("lineage"), WRONG, "metadata_field must be signature_def")
    refused(lambda: stub.metadata("signature_def", name="x"), UNKNOWN, "there is no model 'x'")


def test_the_status_tells_of_a_model_that_is_not_there_yet(asking):
    stub, client = asking
    (version,) = stub.status().model_version_status
    assert (version.version, version.state, version.status.error_code) == (0, 10, 14)
    assert version.status.error_message == "nothing has been read yet"
    refused(stub.predict, grpc.StatusCode.UNAVAILABLE, "nothing has been read yet")
    refused(lambda: stub.metadata("signature_def"), grpc.StatusCode.UNAVAILABLE, "nothing has")
    client.follower.start()
    assert client.follower.wait(1, 60)
    until_available(stub)
    refused(lambda: stub.status("x"), UNKNOWN, "there is no model 'x'")


def until_available(stub):
    for _ in range(6000):
        (version,) = stub.status().model_version_status
        if version.state == get_model_status_pb2.ModelVersionStatus.AVAILABLE:
            assert (version.version, version.status.error_code) == (1, 0)
            return
    raise AssertionError(version)


def test_other_calls_are_not_there(stub):
    request = classification_pb2.ClassificationRequest()
    call = stub.predictions.Classify
    refused(lambda: call(request, timeout=60), grpc.StatusCode.UNIMPLEMENTED, "not implemented")


def test_metrics_tell_of_calls(asking):
    stub, client = asking
    client.follower.step()
    stub.predict()
    refused(lambda: stub.predict({}), WRONG, "missing")
    page = client.get("/metrics")[1].decode().splitlines()
    for line in (
        'shoal_serve_request_seconds_count{call="Predict",status="OK"} 1.0',
        'shoal_serve_request_seconds_count{call="Predict",status="INVALID_ARGUMENT"} 1.0',
    ):
        assert line in page, page
