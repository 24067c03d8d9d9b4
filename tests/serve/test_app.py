"""What `shoal serve` answers, over a real socket."""

import base64
import re
import time

import numpy as np
import pyarrow as pa
import pytest

from tests.deltas.history import IDS

pytestmark = pytest.mark.slow

PREDICT = "/v1/models/clicks:predict"
COLUMNS = {"user": [1, 2, 999], "tags": [[3, 4], [], [5]], "word": ["x", "y", "z"]}


def records(columns):
    return [dict(zip(columns, each, strict=True)) for each in zip(*columns.values(), strict=True)]


def scores(history):
    return [history.score(u, t) for u, t in zip(COLUMNS["user"], COLUMNS["tags"], strict=True)]


@pytest.fixture
def client(serving, history):
    made = serving(history.root.location)
    made.follower.start()
    assert made.follower.wait(1, 60), made.follower.trouble
    return made


def test_predictions_by_record_and_by_column(client, history):
    status, answer = client.post(PREDICT, {"instances": records(COLUMNS)})
    assert status == 200, answer
    assert [each["word"] for each in answer["predictions"]] == ["x!", "y!", "z!"]
    found = [each["score"] for each in answer["predictions"]]
    np.testing.assert_allclose(found, scores(history), rtol=1e-5, atol=1e-6)

    asked = {"inputs": COLUMNS, "signature_name": "serving_default"}
    status, answer = client.post(PREDICT, asked)
    assert status == 200, answer
    assert answer["outputs"]["score"] == found
    assert answer["outputs"]["word"] == ["x!", "y!", "z!"]


def test_a_prediction_changes_with_the_next_delta(client, history):
    history.push(30)
    history.publish()
    assert client.follower.wait(2, 60)
    _, answer = client.post(PREDICT, {"inputs": COLUMNS})
    np.testing.assert_allclose(answer["outputs"]["score"], scores(history), rtol=1e-5, atol=1e-6)
    status, answer = client.get("/v1/models/clicks")
    assert (status, answer["ready"]) == (200, True)
    assert answer["model_version_status"][0]["version"] == "2"
    assert answer["model_version_status"][0]["state"] == "AVAILABLE"


def test_bytes_come_and_go_as_base64(client):
    given = {"b64": base64.b64encode(b"\xff\x00").decode()}
    columns = COLUMNS | {"word": [given] * 3}
    _, answer = client.post(PREDICT, {"inputs": columns})
    assert answer["outputs"]["word"] == [{"b64": base64.b64encode(b"\xff\x00!").decode()}] * 3


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "the body is not JSON"),
        (b"[]", "the body must be a JSON object"),
        ({}, "give either instances"),
        ({"instances": []}, "instances must be a list of at least one record"),
        ({"instances": [{"user": 1}, {"word": "x"}]}, r"instances\[1\] must have the inputs"),
        ({"instances": [1]}, "name the inputs: the model takes"),
        ({"inputs": COLUMNS, "signature_name": "other"}, "there is no 'other'; there is serving"),
        ({"inputs": COLUMNS | {"usr": [1]}}, r"no input 'usr' \(did you mean user\?\); it takes"),
        ({"inputs": {"user": [1]}}, "input '.*' is missing; the model takes"),
        ({"inputs": COLUMNS | {"user": [0.5, 1, 2]}}, "input 'user' must be of int64"),
        ({"inputs": COLUMNS | {"user": [[1], [2], [3]]}}, r"shape \[3, 1\], the model takes \[any"),
        (
            {"inputs": COLUMNS | {"user": [1, 2]}},
            "numbers of records: user 2, tags 3, word 3",
        ),
        ({"inputs": COLUMNS | {"tags": [1, 2, 3]}}, "input 'tags' must be a list for each record"),
        ({"inputs": COLUMNS | {"word": [1, "x", "y"]}}, "input 'word' must be of strings"),
        ({"inputs": COLUMNS | {"tags": [[1]]}}, "the inputs have different numbers of records"),
        ({"inputs": COLUMNS | {"word": [{"b64": "?"}] * 3}}, "b64 has no bytes in base64"),
    ],
)
def test_a_wrong_request_is_400_and_says_what_is_wrong(client, body, words):
    status, answer = client.post(PREDICT, body)
    assert status == 400, answer
    assert re.search(words, answer["error"]), answer


def test_the_metadata_is_that_of_tensorflow_serving(client):
    status, answer = client.get("/v1/models/clicks/metadata")
    assert status == 200
    assert answer["model_spec"] == {"name": "clicks", "signature_name": "", "version": "1"}
    signature = answer["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert set(signature["inputs"]) == {"user", "word", "tags_values", "tags_row_splits"}
    assert signature["inputs"]["user"]["dtype"] == "DT_INT64"
    assert signature["inputs"]["word"]["dtype"] == "DT_STRING"
    assert signature["inputs"]["user"]["tensor_shape"]["dim"] == [{"size": "-1", "name": ""}]
    assert signature["outputs"]["score"]["dtype"] == "DT_FLOAT"
    assert client.get("/v1/models") == (200, {"models": ["clicks"]})


def test_the_version_that_is_served_has_paths_of_its_own(client):
    path = "/v1/models/clicks/versions/"
    _, answer = client.post(PREDICT, {"inputs": COLUMNS})
    assert client.post(f"{path}1:predict", {"inputs": COLUMNS}) == (200, answer)
    assert client.get(f"{path}1") == client.get("/v1/models/clicks")
    assert client.get(f"{path}1/metadata") == client.get("/v1/models/clicks/metadata")
    wrong = (404, {"error": "there is no version 2 of clicks; there is 1"})
    assert client.post(f"{path}2:predict", {"inputs": COLUMNS}) == wrong
    assert client.get(f"{path}2") == client.get(f"{path}2/metadata") == wrong
    assert client.get(f"{path}01")[0] == client.get(f"{path}latest")[0] == 404
    assert client.get("/v1/models/click/versions/1")[0] == 404


@pytest.mark.parametrize("path", ["/v1/models/click", "/v1/models/click/metadata", "/nowhere"])
def test_what_is_not_there_is_404(client, path):
    status, answer = client.get(path)
    assert status == 404
    assert "there is no" in answer["error"]
    assert client.post("/v1/models/click:predict", {})[0] == 404


def test_rows_in_json_and_in_arrow(client, history):
    status, answer = client.post("/v1/tables/a:lookup", {"ids": [*range(IDS)]})
    assert (status, answer["delta"]) == (200, 1)
    wanted = [history.rows[0].get(each, bytes(8)) for each in range(IDS)]
    assert [np.float32(each).tobytes() for each in answer["rows"]] == wanted

    table = pa.table({"id": pa.array(range(IDS), pa.int64())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    kind = "application/vnd.apache.arrow.stream"
    status, body = client.ask(
        "POST", "/v1/tables/a:lookup", bytes(sink.getvalue()), content_type=kind
    )
    found = pa.ipc.open_stream(body).read_all()
    assert (status, found.schema.metadata) == (200, {b"delta": b"1"})
    assert found["id"].to_pylist() == [*range(IDS)]
    assert [np.float32(each).tobytes() for each in found["vector"].to_pylist()] == wanted
    _, answer = client.post("/v1/tables/b:lookup", {"ids": ["red", "blue"]})
    assert answer["rows"] == [[0.0] * 3] * 2
    _, answer = client.get("/v1/tables")
    assert [(each["name"], each["dim"], each["rows"]) for each in answer["tables"]] == [
        ("a", 2, 10),
        ("b", 3, 10),
    ]


@pytest.mark.parametrize(
    ("table", "body", "words"),
    [
        ("c", {"ids": [1]}, "there is no table 'c'; there are a, b"),
        ("a", {"id": [1]}, r'give \{"ids"'),
        ("a", {"ids": [0.5]}, "must be integers or strings"),
        ("a", {"ids": [[1], [2, 3]]}, "ids: "),
    ],
)
def test_a_wrong_lookup_is_400(client, table, body, words):
    status, answer = client.post(f"/v1/tables/{table}:lookup", body)
    assert status == 400
    assert re.search(words, answer["error"]), answer


def test_a_request_that_is_too_large_is_refused(client, monkeypatch):
    monkeypatch.setattr("shoal.serve.app.BODY_BYTES", 1 << 20)
    status, answer = client.post(PREDICT, b"x" * (1 << 20) + b"x")
    assert (status, answer["error"]) == (413, "a request may have 1 MB")


def test_it_is_ready_once_it_has_caught_up_and_while_it_is_new(serving, history):
    client = serving(history.root.location, max_age=1e8)
    assert client.get("/healthz") == (200, b"ok\n")
    status, answer = client.get("/readyz")
    assert (status, answer) == (503, {"error": "nothing has been read yet"})
    status, answer = client.post(PREDICT, {"inputs": COLUMNS})
    assert status == 503, answer
    assert client.get("/v1/models/clicks")[1]["ready"] is False
    assert "there is none yet" in client.get("/v1/models/clicks/versions/1")[1]["error"]

    client.follower.step()
    assert client.get("/readyz")[1] == {"error": "delta 1 is here, newer ones are being read"}
    client.follower.start()
    until_ready(client, 503)  # of 2001
    assert " s old" in client.get("/readyz")[1]["error"]
    history.publish(created=time.time())
    until_ready(client, 200)


def until_ready(client, status):
    end = time.monotonic() + 60
    while not client.follower.caught_up or client.get("/readyz")[0] != status:
        assert time.monotonic() < end, client.get("/readyz")
        time.sleep(0.01)


def test_metrics_tell_of_the_model_and_of_requests(client, history):
    hits = sum(each in history.rows[0] for each in [*COLUMNS["user"], 1, 2, 3])
    client.post(PREDICT, {"inputs": COLUMNS})
    client.post("/v1/tables/a:lookup", {"ids": [1, 2, 3]})
    client.post(PREDICT, {})
    status, page = client.get("/metrics")
    assert status == 200
    lines = page.decode().splitlines()
    for line in (
        "shoal_serve_delta 1.0",
        'shoal_serve_rows{table="a"} 10.0',
        f'shoal_serve_hits_total{{table="a"}} {hits}.0',
        f'shoal_serve_misses_total{{table="a"}} {6 - hits}.0',
        "shoal_serve_deltas_total 1.0",
        'shoal_serve_request_seconds_count{call="predict",status="200"} 1.0',
        'shoal_serve_request_seconds_count{call="predict",status="400"} 1.0',
    ):
        assert line in lines, page.decode()
    assert any(each.startswith("shoal_serve_age_seconds ") for each in lines)


def test_the_paths_of_vertex_lead_to_the_same_calls(serving, history):
    client = serving(history.root.location, also={"predict": "/ask", "readyz": "/well"})
    client.follower.step()
    assert client.post("/ask", {"inputs": COLUMNS})[0] == 200
    assert client.get("/well")[0] == 503


def test_without_predictions_rows_are_answered(serving, history):
    client = serving(history.root.location, tables=["b"])
    client.follower.step()
    status, answer = client.post(PREDICT, {"inputs": COLUMNS})
    assert status == 400
    assert "cannot predict here, as only these tables are kept: b" in answer["error"]
    assert client.post("/v1/tables/b:lookup", {"ids": [1]})[0] == 200
