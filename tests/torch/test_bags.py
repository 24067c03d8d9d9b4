"""Bags of ids as torch.nn.functional.embedding_bag has them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.torch.bags import pooled

torch = pytest.importorskip("torch")


@given(
    lengths=st.lists(st.integers(0, 4), min_size=1, max_size=6),
    mode=st.sampled_from(["sum", "mean"]),
    padding=st.booleans(),
    weighted=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_bags_by_offsets_are_those_of_pytorch(lengths, mode, padding, weighted, seed):
    draw = torch.Generator().manual_seed(seed)
    weight = torch.randn(7, 3, generator=draw)
    ids = torch.randint(0, 7, (sum(lengths),), generator=draw)
    offsets = torch.from_numpy(np.cumsum([0, *lengths[:-1]]))
    factors = torch.rand(ids.shape, generator=draw) if weighted and mode == "sum" else None
    expected = torch.nn.functional.embedding_bag(
        *(ids, weight, offsets),
        mode=mode,
        per_sample_weights=factors,
        padding_idx=2 if padding else None,
    )
    counted = ids != 2 if padding else None
    found = pooled(weight[ids], ids, offsets, factors, counted, mode)
    torch.testing.assert_close(found, expected)


def test_weighted_means_divide_by_the_weights_and_empty_bags_are_zero():
    vectors, ids = torch.tensor([[[2.0], [4.0]], [[8.0], [8.0]]]), torch.tensor([[1, 2], [3, 3]])
    weights = torch.tensor([[1.0, 3.0], [0.0, 0.0]])
    assert pooled(vectors, ids, None, weights, None, "mean").tolist() == [[3.5], [0.0]]
    root = pooled(vectors, ids, None, weights, None, "sqrtn")[0, 0]
    assert float(root) == pytest.approx(14 / 10**0.5)


def test_shapes_that_do_not_fit_are_told():
    vectors, ids = torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"with offsets \[bags\]"):
        pooled(vectors, ids, None, None, None, "sum")
    with pytest.raises(ValueError, match="give one number an id"):
        pooled(vectors, ids, torch.tensor([0]), torch.ones(2), None, "sum")
