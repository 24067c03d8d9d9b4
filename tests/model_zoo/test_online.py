"""The demo of a model that learns while it is asked."""

import json
import subprocess
import sys

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from shoal.base.group_auc import auc
from shoal.model_zoo.online.prepare import World


def test_the_auc_is_that_of_scikit_learn_also_with_ties():
    draw = np.random.default_rng(1)
    for ties in (3, 1000):
        labels, scores = draw.integers(0, 2, 500), draw.integers(0, ties, 500)
        assert auc(labels, scores) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


def test_a_world_is_made_of_its_seed_and_its_items_come_and_go():
    worlds = [World(seed) for seed in (1, 1, 2)]
    for world in worlds:
        world.turn(50)
    first, same, other = (world.records(1000) for world in worlds)
    assert all((first[name] == same[name]).all() for name in first)
    assert (first["user"] != other["user"]).any()
    assert (first["item"].min(), first["item"].max()) == (50, 249)


@pytest.mark.job
@pytest.mark.slow
def test_the_demo_trains_publishes_and_is_asked(tmp_path):
    line = [sys.executable, "-m", "shoal.model_zoo.online.demo", tmp_path / "online"]
    done = subprocess.run([*line, "--seconds", "12"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads((tmp_path / "online" / "online.json").read_text())
    assert 0.6 < told["AUC of the served model, second half"] < 0.9
    assert told["seconds from click to answer, median"] > 0
    assert (tmp_path / "online" / "online.svg").stat().st_size > 10_000
