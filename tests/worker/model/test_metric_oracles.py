"""Every metric of shoal against plain loops over all records, however these are divided.

Records go into batches, batches into tasks, tasks to workers. The master adds up the states in any
order, is started again meanwhile, and a worker that has evaluated nothing makes the numbers.
"""

import copy
import itertools
import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.master.work.evaluation.evaluation import MergedStates
from shoal.metrics import Calibration, GroupAUC, LogLoss
from shoal.retrieval import FactorizedTopK, corpus_share
from shoal.worker.engines.tensorflow.model.evaluation import Evaluator
from shoal.worker.engines.tensorflow.model.losses import Losses
from shoal.worker.input.batch import Batch
from shoal.worker.model.refusals import Refusals
from tests.examples import examples

pytestmark = pytest.mark.slow

KS = [1, 3]
EPSILON = 1e-7  # of LogLoss
PADDING = -1

GROUPS = st.sampled_from([0, 1, -1, 2**40, 2**40 + 1, -(2**62), 2**62 + 1])
PROBABILITIES = [0.0, 0.125, 0.25, 0.5, 0.75, 1.0]
ODD = [math.nan, math.inf, -math.inf]

# Whole numbers, so that sums of their products are exact, and many are equal.
VECTORS = st.tuples(*[st.integers(-2, 2).map(float)] * 2)
ODD_VECTORS = st.tuples(*[st.sampled_from([0.0, 1.0, *ODD])] * 2)


# ------------------------------------------------------------------------------ the oracles


def mean(values):
    return sum(values) / len(values)


def pairs(labels, scores, weights):
    """The share of ordered pairs of a positive and a negative record; NaN without pairs."""
    ordered = of_all = 0.0
    for i, j in np.ndindex(len(labels), len(labels)):
        if labels[i] == 1 and labels[j] == 0:
            weight = weights[i] * weights[j]
            of_all += weight
            ordered += weight * ((scores[i] > scores[j]) + 0.5 * (scores[i] == scores[j]))
    return ordered / of_all if of_all else math.nan


def group_auc(groups, labels, scores, weights, average):
    if not np.isfinite([*labels, *weights]).all() or np.isnan(scores).any():
        return math.nan
    areas, sizes = [], []
    for group in set(groups):
        own = [i for i, each in enumerate(groups) if each == group]
        area = pairs(*([column[i] for i in own] for column in (labels, scores, weights)))
        if not math.isnan(area):
            areas.append(area)
            sizes.append(sum(weights[i] for i in own) if average == "records" else 1.0)
    return np.average(areas, weights=sizes) if areas else math.nan


def calibration(labels, scores, weights):
    happened = sum(label * weight for label, weight in zip(labels, weights, strict=True))
    predicted = sum(score * weight for score, weight in zip(scores, weights, strict=True))
    return predicted / happened if happened else math.nan


def log_loss(labels, scores, weights):
    total = 0.0
    for label, score, weight in zip(labels, scores, weights, strict=True):
        if not math.isfinite(score):
            return math.nan
        right = min(max(score if label == 1 else 1 - score, EPSILON), 1 - EPSILON)
        total += weight * (-math.log(right) if math.isfinite(label) else math.nan)
    return total / sum(weights) if sum(weights) else math.nan


def retrieval(queries, owns, chosen, ids, vectors):
    """FactorizedTopK's numbers. chosen: the id of each query's own candidate."""

    def product(one, other):
        return sum(a * b for a, b in zip(one, other, strict=True))

    ranks = []
    for query, own, candidate in zip(queries, owns, chosen, strict=True):
        score = product(query, own)
        others = [
            product(query, vector)
            for id_, vector in zip(ids, vectors, strict=True)
            if id_ not in (candidate, PADDING)
        ]
        rank = sum(not other < score for other in others)
        ranks.append(rank if math.isfinite(score) else math.nan)
    found = {
        f"recall_at_{k}": mean([math.nan if math.isnan(rank) else rank < k for rank in ranks])
        for k in KS
    }
    return {**found, "mrr": mean([1 / (rank + 1) for rank in ranks])}


# ------------------------------------------------------------------------------ over workers


class Passing:
    """A model whose predictions are its features."""

    def evaluate_batch(self, features, inputs=None):
        return features, tf.constant(0.0)

    loss = Losses(
        lambda labels, predictions: tf.square(labels["p"] - predictions["p"])[:, 0],
        None,
        "model.py",
        Refusals().refuse,
    )


def metrics():
    return {
        "p": {
            "by_records": GroupAUC(by="user"),
            "by_groups": GroupAUC(by="user", average="groups"),
            "auc": keras.metrics.AUC(),
            "calibration": Calibration(),
            "log_loss": LogLoss(),
            "of_each": lambda labels, predictions: tf.abs(labels - predictions),
            "of_batch": lambda labels, predictions: tf.reduce_mean(predictions),
        },
        "retrieval": FactorizedTopK(KS, padding=PADDING),
    }


@pytest.fixture
def evaluator(module):
    loaded = module()
    object.__setattr__(loaded, "eval_metrics_fn", metrics)
    return lambda: Evaluator(Passing(), loaded)


def batch(groups, labels, scores, queries, owns, chosen, weights, corpus):
    """A batch with the whole corpus, of which the padding has vectors of great scores."""
    share = corpus_share(list(corpus), len(labels), PADDING).numpy()
    vectors = [corpus.get(each, (99.0, 99.0)) for each in share.ravel().tolist()]
    features = {
        "p": tf.constant(scores, tf.float32)[:, None],
        "user": tf.constant(groups, tf.int64),
        "query": tf.constant(queries, tf.float32),
        "candidate": tf.constant(owns, tf.float32),
        "corpus": tf.reshape(tf.constant(vectors, tf.float32), [*share.shape, 2]),
    }
    labels = {
        "p": tf.constant(labels, tf.float32)[:, None],
        "candidate": tf.constant(chosen, tf.int64),
        "corpus": tf.constant(share),
    }
    return Batch(features, labels, len(groups), 0, 0, weights=tf.constant(weights, tf.float32))


def divided(draw, count, parts=4):
    """A range cut at random, also into empty pieces."""
    cuts = draw(st.lists(st.integers(0, count), max_size=parts - 1))
    return itertools.pairwise([0, *sorted(cuts), count])


def test_any_division_into_batches_tasks_and_workers_gives_the_numbers_of_all_records(evaluator):
    workers = [evaluator() for _ in range(3)]

    @settings(deadline=None, max_examples=examples(200))
    @given(st.data(), st.sampled_from([[], [], ODD[1:], ODD]))
    def check(data, odd):
        draw = data.draw
        corpus = draw(st.dictionaries(st.integers(0, 50), VECTORS, min_size=1, max_size=6))
        vectors = VECTORS | ODD_VECTORS if odd and draw(st.booleans()) else VECTORS
        if odd:
            corpus |= draw(st.dictionaries(st.sampled_from([*corpus]), ODD_VECTORS, max_size=2))
        record = st.tuples(
            GROUPS,
            st.integers(0, 1).map(float),
            st.sampled_from([*PROBABILITIES, *odd]),
            vectors,
            vectors,
            st.sampled_from([*corpus]),
            st.sampled_from([0.0, 0.5, 1.0, 3.0]),
        )
        records = draw(st.lists(record, min_size=1, max_size=30))

        states = []
        for begin, end in divided(draw, len(records)):
            worker = workers[draw(st.integers(0, 1))]
            worker.reset()
            for first, last in divided(draw, end - begin):
                if first < last:
                    columns = zip(*records[begin + first : begin + last], strict=True)
                    worker.add(batch(*map(list, columns), corpus))
            states.append(worker.states())
        merged, again = MergedStates(), draw(st.integers(0, len(states)))
        for i, each in enumerate(draw(st.permutations(range(len(states))))):
            merged.add(states[each], "worker-0")
            if i == again:  # its master was killed
                merged = copy.deepcopy(merged)
        found = workers[2].finish(merged.to_message())

        groups, labels, scores, queries, owns, chosen, weights = zip(*records, strict=True)
        ones = [1.0] * len(records)
        errors = [label - score for label, score in zip(labels, scores, strict=True)]
        expected = {
            "loss": mean(
                [error**2 * weight for error, weight in zip(errors, weights, strict=True)]
            ),
            "p_by_records": group_auc(groups, labels, scores, ones, "records"),
            "p_by_groups": group_auc(groups, labels, scores, ones, "groups"),
            "p_calibration": calibration(labels, scores, ones),
            "p_log_loss": log_loss(labels, scores, ones),
            "p_of_each": mean([*map(abs, errors)]),
            "p_of_batch": mean(scores),
            **retrieval(queries, owns, chosen, [*corpus], [*corpus.values()]),
        }
        if np.isfinite(scores).all():  # Keras's, whose thresholds are between these predictions
            area = pairs(labels, scores, ones)
            expected["p_auc"] = 0.0 if math.isnan(area) else area
        else:
            found.pop("p_auc")
        assert found == pytest.approx(expected, rel=2e-6, abs=2e-6, nan_ok=True)

    check()


# ------------------------------------------------------------------------------ one by one


@settings(deadline=None, max_examples=examples(600))
@given(st.data(), st.sampled_from([[], ODD[1:], ODD]))
def test_weights_and_numbers_that_are_not_finite(data, odd):
    numbers = [
        st.sampled_from(each)
        for each in ([0.0, 1.0, *odd], [*PROBABILITIES, -0.0, *odd], [0.0, 0.5, 1.0, 3.0, *odd])
    ]
    records = data.draw(st.lists(st.tuples(GROUPS, *numbers), max_size=25))
    average = data.draw(st.sampled_from(["records", "groups"]))
    made = GroupAUC(by="user", average=average), Calibration(), LogLoss()
    for begin, end in divided(data.draw, len(records)):
        if begin < end:
            groups, *columns = (np.array(each) for each in zip(*records[begin:end], strict=True))
            for metric in made:
                options = {"groups": groups} if isinstance(metric, GroupAUC) else {}
                metric.update_state(*columns, **options)
    groups, *columns = zip(*records, strict=True) if records else [()] * 4
    expected = [
        group_auc(groups, *columns, average),
        calibration(*columns),
        log_loss(*columns),
    ]
    np.testing.assert_allclose([float(each.result()) for each in made], expected, rtol=1e-9)
