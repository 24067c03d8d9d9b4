"""What users' imports compute on the backend of Keras of this process, by name.

Run as a program it prints the numbers as JSON, and which frameworks it has loaded.
"""

import json
import sys

import keras
import numpy as np

import shoal.layers
from shoal.bags import COMBINERS
from shoal.base.feeding import giving_arrays
from shoal.data.columns import ListColumn
from shoal.model_metrics import Calibration, GroupAUC, LogLoss
from shoal.preprocessing import Hashing, IndexLookup, Normalizer, SparseEmbedding, ToRagged
from shoal.retrieval import FactorizedTopK, corpus_share, in_batch_softmax

IDS = np.array([[3, 0, 5, 3], [0, 0, 0, 0], [-(2**31), 1, 0, 2**31 - 1]])
WEIGHTS = np.array([[0.5, 1, 2, 0], [1, 1, 1, 1], [-1, 3, 0.25, 2]], np.float32)


class Rows:
    """A lookup whose rows are known functions of the ids, and of a number that can be trained."""

    def __init__(self, scale=1.0):
        self.scale = scale

    def __call__(self, layer, ids):
        numbers = keras.ops.cast(ids, "float32") * self.scale
        return keras.ops.stack([keras.ops.sin(numbers), keras.ops.cos(numbers)], axis=-1)


def gradient(function, *arrays):
    """The gradients of a function's sum by each of the arrays."""
    backend = keras.backend.backend()
    total = lambda *given: keras.ops.sum(function(*given))  # noqa: E731
    if backend == "jax":
        import jax

        return jax.grad(total, argnums=tuple(range(len(arrays))))(*arrays)
    if backend == "torch":
        import torch

        leaves = [torch.tensor(each, requires_grad=True) for each in arrays]
        return [each.numpy() for each in torch.autograd.grad(total(*leaves), leaves)]
    import tensorflow as tf

    leaves = [tf.constant(each) for each in arrays]
    with tf.GradientTape() as tape:
        tape.watch(leaves)
        found = total(*leaves)
    return tape.gradient(found, leaves)


def bags():
    """Combined rows and masks of padded ids, and the gradient that reaches rows and weights."""
    ids = keras.ops.convert_to_tensor(IDS.astype(np.int32))
    for combiner in (None, *COMBINERS):
        for mask_zero in (False, True):
            layer = shoal.layers.Embedding(2, combiner=combiner, mask_zero=mask_zero)
            name = f"bags {combiner} {mask_zero}"
            with shoal.layers.lookup_with(Rows()):
                yield name, layer(ids)
                if combiner is None:
                    continue
                yield f"{name}, weighted", layer(ids, keras.ops.convert_to_tensor(WEIGHTS))

            def weighted(scale, weights, layer=layer):
                with shoal.layers.lookup_with(Rows(scale)):
                    return layer(ids, weights)

            for what, each in zip(
                ("rows", "weights"),
                gradient(weighted, np.float32(0.5), WEIGHTS + np.float32(0.1)),
                strict=True,
            ):
                yield f"{name}, gradient of {what}", each


def masked():
    """What a model makes of a mask, called by Keras as its layers call one another."""
    ids = keras.Input([4], dtype="int32")
    with shoal.layers.lookup_with(Rows()):
        rows = shoal.layers.Embedding(2, mask_zero=True)(ids)
        model = keras.Model(ids, keras.layers.GlobalAveragePooling1D()(rows))
        yield "mask in a model", model(IDS.astype(np.int32))


def losses():
    """The loss of retrieval and its gradient, where a candidate comes twice and not."""
    random = np.random.default_rng(5)
    queries, candidates = random.normal(size=(2, 6, 3)).astype(np.float32)
    log_q = np.log(np.linspace(0.1, 0.6, 6)).astype(np.float32)
    for name, options in {
        "plain": {},
        "of ids": {"ids": np.array([4, 1, 4, 2, 3, 1], np.int32)},
        "of all": {"ids": np.arange(6, dtype=np.int32), "log_q": log_q, "temperature": 0.1},
    }.items():
        function = lambda q, c, options=options: in_batch_softmax(q, c, **options)  # noqa: E731
        yield f"loss {name}", function(queries, candidates)
        for which, each in enumerate(gradient(function, queries, candidates)):
            yield f"loss {name}, gradient {which}", each


def recalls():
    """Ranks in a corpus with ties, padding and a score that is not finite."""
    random = np.random.default_rng(6)
    for batch, dim in ((1, 16), (8, 100), (64, 16)):
        ids = np.arange(16 * batch - 5, dtype=np.int32)
        corpus = np.asarray(corpus_share(ids, batch)).astype(np.int32)
        own = random.choice(ids, batch)
        vectors = random.normal(size=(corpus.size, dim)).astype(np.float32)
        alike = np.tile(vectors[:1], (corpus.size, 1))  # so that all scores of a query are ties
        queries = random.normal(size=(batch, dim)).astype(np.float32)
        infinite = np.where(np.arange(batch)[:, None] == 0, np.inf, queries).astype(np.float32)
        for name, query, table in (
            ("random", queries, vectors),
            ("ties", queries, alike),
            ("not finite", infinite, vectors),
        ):
            metric = FactorizedTopK([1, 10])
            outputs = {"candidate": table[own], "corpus": table.reshape(*corpus.shape, dim)}
            metric.update_state({"candidate": own, "corpus": corpus}, {"query": query, **outputs})
            for of, value in metric.result().items():
                yield f"{of} of {name}, {batch} x {dim}", value


def metrics():
    """Metrics of chances, of two batches, with weights and without."""
    random = np.random.default_rng(7)
    labels = random.integers(0, 2, (2, 50)).astype(np.float32)
    chances = random.uniform(size=(2, 50, 1)).astype(np.float32)
    chances[0, :3, 0] = [0, 1, 1e-9]
    weights = random.uniform(size=(2, 50)).astype(np.float32)
    groups = random.integers(-(2**62), 2**62, 7)[random.integers(0, 7, (2, 50))]
    texts = np.vectorize(lambda number: f"{number}".encode(), otypes=[object])(groups)
    for name, more in {"plain": [None, None], "weighted": weights}.items():
        for metric in (Calibration(), LogLoss()):
            yield f"{metric.name} before, {name}", metric.result()
            for batch in zip(labels, chances, more, strict=True):
                metric.update_state(*batch)
            yield f"{metric.name}, {name}", metric.result()
        for what, values in {"integers": groups, "texts": texts}.items():
            auc = GroupAUC("user")
            for batch in zip(labels, chances, more, values, strict=True):
                auc.update_state(*batch)
            yield f"AUC of groups of {what}, {name}", auc.result()


def prepared():
    """Layers of preprocessing on arrays, and a table of padded ids in a model."""
    texts = np.array([b"a|b|a", b"", b"c"], object)
    with giving_arrays():
        lists = ToRagged("|")(texts)
        assert isinstance(lists, ListColumn)
        ids = 1 + IndexLookup(["b", "a"])(lists).values
        yield "positions", ids
        yield "hashes", Hashing(1000, salt=3)(texts)
        yield "normalized", Normalizer(1, 3)(np.arange(3))
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    layer = SparseEmbedding(4, 3, combiner="mean", mask_zero=True)
    layer.build()
    layer.embeddings.assign(table)
    padded = ListColumn(ids, lists.row_lengths).padded(2).astype(np.int32)
    yield "combined", layer(keras.ops.convert_to_tensor(padded))


def refusals():
    """Messages about what a model of another backend cannot have."""
    column = keras.Input([], dtype="int64", name="column")
    for layer in (Hashing(name="hash"), Normalizer(0, 1, name="scale")):
        try:
            layer(column)
        except shoal.UserError as error:
            yield str(error)
    wide = keras.Input([3], dtype="string", name="wide")
    for table in (
        shoal.layers.Embedding(2, name="any"),
        SparseEmbedding(4, 3, name="some"),
    ):
        try:
            table(wide)
        except shoal.UserError as error:
            yield str(error)


def computed():
    """Name -> float64 array of all that this module computes."""
    parts = (bags, masked, losses, recalls, metrics, prepared)
    found = {name: value for part in parts for name, value in part()}
    return {
        name: np.asarray(keras.ops.convert_to_numpy(value), np.float64)
        for name, value in found.items()
    }


if __name__ == "__main__":
    told = {name: value.tolist() for name, value in computed().items()}
    loaded = sorted(sys.modules)
    json.dump({"computed": told, "loaded": loaded, "refused": list(refusals())}, sys.stdout)
