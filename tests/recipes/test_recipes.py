"""The recipes of docs/guide/serving-recipes.md run as they are written, with their libraries.

They have an environment of their own, in which `make test-recipes` runs this.
"""

import json
import os
import random
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

from tests.recipes.running import ENVIRONMENT, commands, free_port, post, save, server, typed

pytestmark = [
    pytest.mark.job,
    pytest.mark.skipif(
        not os.environ.get("SHOAL_RECIPES"), reason="`make test-recipes` has their libraries"
    ),
]

PAGE = "docs/guide/serving-recipes.md"
CLOSE = {"rtol": 0, "atol": 1e-6}


# ---------------------------------------------------------------- servers


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """The folder of a job that has published, and what `shoal predict` says of some records."""
    folder = tmp_path_factory.mktemp("live")
    first = "docs/guide/first-job.md"
    save(first, folder, "make_clicks.py", changes=[("40_000", "8_000"), ("10_000", "200")])
    save(first, folder, "clicks.py")
    typed("python make_clicks.py", folder)
    (train,) = commands("docs/guide/serve.md", "--publish live/")
    typed(f"{train} --epochs 5 --output trained", folder)
    predict = "shoal predict --model-def clicks.custom_model --prediction-data later.csv"
    typed(f"{predict} --restore-from trained --in-order --output predicted", folder)
    records = csv.read_csv(folder / "later.csv").select(["user", "item"]).to_pylist()
    chances = pq.read_table(folder / "predicted/predictions.parquet")["prediction"].to_numpy()
    assert len(records) == len(chances) == 200
    return folder, records, chances


def columns(records):
    return {name: [each[name] for each in records] for name in ("user", "item")}


def test_stock_clients_get_the_predictions_of_shoal_predict(live):
    import grpc
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

    folder, records, chances = live
    port, grpc_port = free_port(), free_port()
    command = f"shoal serve live/ --name clicks --listen 127.0.0.1:{port} --grpc {grpc_port}"
    url = f"http://127.0.0.1:{port}/v1/models/clicks:predict"
    with server(command, folder) as process:
        found = post(process, url, {"signature_name": "serving_default", "instances": records})
        np.testing.assert_allclose(found["predictions"], chances, **CLOSE)
        found = post(process, url, {"inputs": columns(records)})
        np.testing.assert_allclose(found["outputs"], chances, **CLOSE)

        request = predict_pb2.PredictRequest()
        request.model_spec.name = "clicks"
        for name, values in columns(records).items():
            request.inputs[name].CopyFrom(tf.make_tensor_proto(values, tf.int64))
        with grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
            stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
            (answer,) = stub.Predict(request, timeout=60).outputs.values()
        np.testing.assert_allclose(tf.make_ndarray(answer), chances, **CLOSE)

        save("docs/guide/serve.md", folder, "ask.py", changes=[("8500", str(grpc_port))])
        assert re.search(r"array\(\[0\.\d+\]", typed("python ask.py", folder))


def test_litserve_predicts_in_batches(live):
    folder, records, chances = live
    port = free_port()
    save(PAGE, folder, "with_litserve.py", changes=[("port=8000", f"port={port}")])
    (command,) = commands(PAGE, "with_litserve.py")
    url = f"http://127.0.0.1:{port}/predict"
    with server(command, folder) as process, ThreadPoolExecutor(16) as threads:
        found = [*threads.map(lambda record: post(process, url, record), records[:64])]
    np.testing.assert_allclose([each["chance"] for each in found], chances[:64], **CLOSE)
    deltas = [int(each.name.removeprefix("delta-")) for each in folder.glob("live/delta-*")]
    assert {each["delta"] for each in found} == {max(deltas)}


def test_bentoml_predicts(live):
    folder, records, chances = live
    port = free_port()
    save(PAGE, folder, "with_bentoml.py")
    (command,) = commands(PAGE, "with_bentoml")
    with server(f"{command} --port {port}", folder, BENTOML_DO_NOT_TRACK="1") as process:
        found = post(process, f"http://127.0.0.1:{port}/predict", columns(records))
    np.testing.assert_allclose(found, chances, **CLOSE)


def test_ray_serve_predicts(live):
    folder, records, chances = live
    port = free_port()
    save(PAGE, folder, "with_ray.py", changes=[("8000", str(port))])
    (command,) = commands(PAGE, "with_ray")
    with server(command, folder, RAY_USAGE_STATS_ENABLED="0") as process:
        found = post(process, f"http://127.0.0.1:{port}/", columns(records))
    np.testing.assert_allclose(found, chances, **CLOSE)


# ---------------------------------------------------------------- retrieval


DAYS = ("monday", "tuesday")
ASKING = """
import json, sys
from retrieve import Retrieval
retrieval = Retrieval()
for line in sys.stdin:
    print(json.dumps(retrieval.best(int(line)).tolist()), flush=True)
"""


@pytest.fixture(scope="module")
def towers(tmp_path_factory):
    """A folder with the towers and the item vectors of two days."""
    folder = tmp_path_factory.mktemp("towers")
    draw = random.Random(4)
    rows = [(user, 4 * draw.randrange(10) + user % 4) for user in range(40) for _ in range(100)]
    draw.shuffle(rows)
    lines = [f"{user},{item}" for user, item in rows]
    (folder / "views.csv").write_text("\n".join(["user,item", *lines, ""]))
    items = [f"0,{item}" for item in range(40)]
    (folder / "catalogue.csv").write_text("\n".join(["user,item", *items, ""]))
    save("docs/guide/predictions.md", folder, "towers.py")
    train, predict, _ = commands(PAGE, "vectors-monday")
    for seed, day in enumerate(DAYS):
        typed(train.replace("monday", day) + f" --seed {seed}", folder)
        typed(predict.replace("monday", day), folder)
    return folder


def wanted(folder, day, user):
    """The ten best items of a user, by all scores."""
    import tensorflow as tf

    tower = tf.saved_model.load(str(folder / day / "towers/saved_model"))
    features = {"user": tf.constant([user], tf.int64), "item": tf.constant([0], tf.int64)}
    query = tower.signatures["serving_default"](**features)["query"].numpy()[0]
    vectors = pq.read_table(folder / day / "vectors/predictions.parquet")["candidate"].to_pylist()
    return np.argsort(-(np.array(vectors) @ query))[:10].tolist()


@pytest.mark.parametrize("library", ["with_faiss", "with_usearch", "with_lancedb"])
def test_an_index_takes_the_place_of_yesterdays_with_its_tower(towers, library):
    (towers / "current").unlink(missing_ok=True)
    save(PAGE, towers, f"{library}.py")
    for name in ("build_index.py", "retrieve.py"):
        save(PAGE, towers, name, changes=[("with_faiss", library)])
    *_, build = commands(PAGE, "vectors-monday")
    typed(build, towers)
    process = subprocess.Popen(
        [sys.executable, "-c", ASKING],
        cwd=towers,
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def best(user):
        process.stdin.write(f"{user}\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    with process:
        assert best(7) == wanted(towers, "monday", 7)
        typed(build.replace("monday", "tuesday"), towers)
        assert best(7) == wanted(towers, "tuesday", 7)
        process.stdin.close()
    assert wanted(towers, "monday", 7) != wanted(towers, "tuesday", 7)
    (shown,) = commands(PAGE, "python retrieve.py")
    assert {int(each) % 4 for each in typed(shown, towers).strip("[] \n").split()} == {3}


# ---------------------------------------------------------------- Feast


def test_features_of_feast_are_the_same_in_training_and_online(tmp_path):
    import pandas as pd

    now = pd.Timestamp.now("UTC").floor("s")
    hours = pd.to_timedelta(np.arange(48, 0, -12), unit="h")
    stats = pd.DataFrame(
        [
            (user, now - ago, 10.0 * user + day)
            for user in range(20)
            for day, ago in enumerate(hours)
        ],
        columns=["user", "event_timestamp", "views_7d"],
    ).astype({"views_7d": "float32"})
    (tmp_path / "store").mkdir()
    stats.to_parquet(tmp_path / "store/user_stats.parquet", index=False)
    draw = np.random.default_rng(2)
    events = pd.DataFrame({"user": draw.integers(0, 25, 2000), "item": draw.integers(0, 9, 2000)})
    events["clicked"] = (events["user"] % 2 == events["item"] % 2).astype("float32")
    events["event_timestamp"] = now - pd.to_timedelta(draw.integers(0, 60, 2000), unit="h")
    events.to_parquet(tmp_path / "events.parquet", index=False)

    names = ("feature_store.yaml", "definitions.py", "join.py", "with_stats.py", "online.py")
    save(PAGE, tmp_path, *names)
    *steps, last = commands(PAGE, "python online.py")
    for command in steps:
        typed(command, tmp_path)
    joined = pd.read_parquet(tmp_path / "joined.parquet")
    at_the_time = pd.merge_asof(
        events.reset_index().sort_values("event_timestamp"),
        stats.sort_values("event_timestamp"),
        on="event_timestamp",
        by="user",
    ).sort_values("index")
    for name in ("user", "item", "clicked"):
        np.testing.assert_array_equal(joined[name], events[name])
    np.testing.assert_array_equal(joined["views_7d"], at_the_time["views_7d"])
    assert events.duplicated(["user", "event_timestamp"]).sum() > 100
    assert 100 < joined["views_7d"].isna().sum() < 1000

    assert len(typed(last, tmp_path).strip("[] \n").split()) == 3
    asked = """
import json, online
predictor = online.Predictor()
print("found", json.dumps([predictor.predict(user, [0, 1]).tolist() for user in (7, 24)]))
for user, views in ((7, 73.0), (7, 0.0), (24, 0.0)):
    features = {"user": [user] * 2, "item": [0, 1], "views_7d": [views] * 2}
    print("found", json.dumps(predictor.model.predict(features).tolist()))
"""
    (tmp_path / "asked.py").write_text(asked)
    found = re.findall(r"^found (.*)$", typed("python asked.py", tmp_path), re.MULTILINE)
    (seventh, unknown), newest, without, default = map(json.loads, found)
    assert (seventh, unknown) == (newest, default)
    assert newest != without
