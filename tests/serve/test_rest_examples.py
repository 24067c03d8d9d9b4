"""The forms of requests that TensorFlow Serving's pages of its REST API show, and their answers."""

import base64

import pytest
import tensorflow as tf

from tests.serve.models import Predicting, save_example

pytestmark = pytest.mark.slow

ADDRESS = "/v1/models/clicks:predict"


@pytest.fixture
def example(serving, tmp_path):
    """Serves the example of a name and inputs; a function of the body of a request."""

    def serve(name, **inputs):
        made = Predicting(tmp_path / "live", saved=save_example(name, inputs), fed=False)
        made.publish()
        client = serving(made.root.location)
        client.follower.step()
        return lambda body: client.post(ADDRESS, body)

    return serve


def test_an_only_input_needs_no_name(example):
    ask = example("half_plus_two", x=(tf.float32, []))
    assert ask({"instances": [1.0, 2.0, 5.0]}) == (200, {"predictions": [2.5, 3.0, 4.5]})
    assert ask({"instances": [{"x": 1.0}, {"x": 2}]}) == (200, {"predictions": [2.5, 3.0]})
    assert ask({"inputs": [1, 2.0, 5.0]}) == (200, {"outputs": [2.5, 3.0, 4.5]})
    assert ask({"inputs": {"x": [1.0]}}) == (200, {"outputs": [2.5]})
    named = {"signature_name": "serving_default", "instances": [1.0]}
    assert ask(named) == (200, {"predictions": [2.5]})
    assert ask({"signature_name": "", "instances": [1.0]})[0] == 200


def test_several_inputs_by_row_and_by_column(example):
    ask = example(
        "several",
        tag=(tf.string, []),
        signal=(tf.int32, [5]),
        sensor=(tf.int32, [2, 2]),
    )
    columns = {
        "tag": ["foo", "bar"],
        "signal": [[1, 2, 3, 4, 5], [3, 4, 1, 2, 5]],
        "sensor": [[[1, 2], [3, 4]], [[4, 5], [6, 8]]],
    }
    rows = [dict(zip(columns, each, strict=True)) for each in zip(*columns.values(), strict=True)]
    predicted = [{"sum": 25, "tag": "foo"}, {"sum": 38, "tag": "bar"}]
    assert ask({"instances": rows}) == (200, {"predictions": predicted})
    assert ask({"inputs": columns}) == (200, {"outputs": {"sum": [25, 38], "tag": ["foo", "bar"]}})
    tags = [{"b64": base64.b64encode(each.encode()).decode()} for each in ("foo", "bar")]
    answer = ask({"instances": [row | {"tag": tag} for row, tag in zip(rows, tags, strict=True)]})
    assert answer == (200, {"predictions": predicted})
