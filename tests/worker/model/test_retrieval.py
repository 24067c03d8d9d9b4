"""Retrieval: the loss and the metric against NumPy, however records are put into batches."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.base.feeding import giving_arrays
from shoal.retrieval import FactorizedTopK, corpus_share, in_batch_softmax
from tests.examples import examples

DIM, CORPUS = 3, 11
RNG = np.random.default_rng(2)
IDS = RNG.permutation(1000)[:CORPUS]
VECTORS = RNG.normal(size=(CORPUS, DIM)).astype(np.float32)
QUERIES = RNG.normal(size=(40, DIM)).astype(np.float32)
OWN = RNG.integers(0, CORPUS, 40)


def test_the_loss_is_the_cross_entropy_among_the_candidates_of_the_batch():
    queries, own = QUERIES[:6], np.array([0, 1, 0, 2, 3, 1])
    log_q = np.log(np.linspace(0.1, 0.6, 6)).astype(np.float32)
    candidates = VECTORS[own]
    logits = queries @ candidates.T / 0.5 - log_q
    # The same candidate of another row is none of the others.
    for i, j in itertools.permutations(range(6), 2):
        if own[i] == own[j]:
            logits[i, j] = -np.inf
    expected = [np.log(np.exp(row).sum()) - row[i] for i, row in enumerate(logits)]
    found = in_batch_softmax(queries, candidates, ids=IDS[own], log_q=log_q, temperature=0.5)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    plain = in_batch_softmax(queries, candidates)
    logits = queries @ candidates.T
    expected = [np.log(np.exp(row).sum()) - row[i] for i, row in enumerate(logits)]
    np.testing.assert_allclose(plain, expected, rtol=1e-5)


@given(st.integers(0, 30), st.integers(1, 12))
@settings(deadline=None, max_examples=examples(30))
def test_the_corpus_is_cut_into_rows_for_a_batch(size, batch):
    share = corpus_share(np.arange(size), batch).numpy()
    assert share.shape == (batch, -(-size // batch))
    flat = share.ravel().tolist()
    assert flat[:size] == list(range(size))
    assert set(flat[size:]) <= {-1}
    with giving_arrays():
        of_arrays = corpus_share(np.arange(size), batch)
    assert isinstance(of_arrays, np.ndarray)
    np.testing.assert_array_equal(of_arrays, share)


def add(metric, start, end):
    share = corpus_share(IDS, end - start).numpy()
    vectors = np.concatenate([VECTORS, np.full((share.size - CORPUS, DIM), 1e3, np.float32)])
    metric.update_state(
        {"candidate": tf.constant(IDS[OWN[start:end]]), "corpus": tf.constant(share)},
        {
            "query": QUERIES[start:end],
            "candidate": VECTORS[OWN[start:end]],
            "corpus": vectors.reshape(*share.shape, DIM),
        },
    )


@given(st.lists(st.integers(1, 39), max_size=6, unique=True), st.integers(0, 6))
@settings(deadline=None, max_examples=examples(20))
def test_ranks_are_exact_in_any_batches_and_states_add_up(cuts, first_worker):
    scores = QUERIES @ VECTORS.T
    ranks = (scores > scores[np.arange(40), OWN][:, None]).sum(axis=1)
    expected = {"recall_at_1": (ranks < 1).mean(), "recall_at_4": (ranks < 4).mean()}
    expected["mrr"] = (1 / (ranks + 1)).mean()
    bounds = [0, *sorted(cuts), 40]
    workers = [FactorizedTopK([1, 4]) for _ in range(2)]
    for i, (start, end) in enumerate(itertools.pairwise(bounds)):
        add(workers[i >= first_worker], start, end)
    merged = FactorizedTopK([1, 4])
    for target, *parts in zip(merged.variables, *(each.variables for each in workers), strict=True):
        target.assign(sum(np.asarray(part, np.float64) for part in parts))
    found = {name: float(value) for name, value in merged.result().items()}
    assert found == pytest.approx(expected, rel=1e-6)


def test_an_equal_score_counts_as_a_better_one():
    metric = FactorizedTopK([1])
    share = corpus_share([7, 8], 1)
    one = np.ones((1, DIM), np.float32)
    outputs = {"query": one, "candidate": one, "corpus": np.ones((1, 2, DIM), np.float32)}
    metric.update_state({"candidate": tf.constant([7]), "corpus": share}, outputs)
    assert float(metric.result()["recall_at_1"]) == 0.0
    assert float(metric.result()["mrr"]) == 0.5


@pytest.mark.parametrize("batch", [1, 8, 64])
@pytest.mark.parametrize("dim", [16, 100])
def test_a_collapsed_model_has_no_hits_in_batches_of_any_size(batch, dim):
    """All candidates have one vector, so that all scores of a query are equal."""
    rng = np.random.default_rng(0)
    one = rng.normal(size=(1, dim)).astype(np.float32)
    ids = np.arange(16 * batch)
    metric = FactorizedTopK([1])
    metric.update_state(
        {"candidate": tf.constant(rng.choice(ids, batch)), "corpus": ids.reshape(batch, 16)},
        {
            "query": rng.normal(size=(batch, dim)).astype(np.float32),
            "candidate": np.tile(one, (batch, 1)),
            "corpus": np.tile(one, (batch, 16, 1)),
        },
    )
    assert float(metric.result()["recall_at_1"]) == 0.0
    assert float(metric.result()["mrr"]) == pytest.approx(1 / ids.size)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("output", ["query", "candidate"])
@pytest.mark.parametrize("compiled", [lambda function: function, tf.function])
def test_a_score_that_is_not_finite_is_no_hit(value, output, compiled):
    metric = FactorizedTopK([1, 4])
    update = compiled(metric.update_state)
    outputs = {"query": np.ones((2, DIM)), "candidate": np.ones((2, DIM))}
    outputs = {name: each.astype(np.float32) for name, each in outputs.items()}
    outputs[output][1] = value
    outputs["corpus"] = np.zeros((2, 1, DIM), np.float32)
    labels = {"candidate": tf.constant([7, 8]), "corpus": tf.constant([[7], [8]])}
    update(labels, outputs)
    assert np.isnan([float(each) for each in metric.result().values()]).all()
    metric.reset_state()
    outputs[output][1] = 1.0
    outputs["corpus"][1] = np.nan  # of another candidate: it counts as better
    update(labels, outputs)
    found = {name: float(each) for name, each in metric.result().items()}
    assert found == {"recall_at_1": 0.5, "recall_at_4": 1.0, "mrr": 0.75}


def test_what_is_missing_is_named():
    metric = FactorizedTopK(name="retrieval")
    labels = {"candidate": tf.constant([1]), "corpus": tf.constant([[1]])}
    with pytest.raises(ValueError, match="retrieval needs the output 'query', which is not there"):
        metric.update_state(labels, {"candidate": 0, "corpus": 0})
    with pytest.raises(ValueError, match="retrieval needs the label 'corpus'"):
        metric.update_state({"candidate": 1}, {"query": 0, "candidate": 0, "corpus": 0})
    with pytest.raises(ValueError, match="ks must be positive integers"):
        FactorizedTopK([0])
    again = FactorizedTopK.from_config(FactorizedTopK([3], query="person").get_config())
    assert (again.ks, again.outputs[0]) == ((3,), "person")
    assert isinstance(again, keras.metrics.Metric)
