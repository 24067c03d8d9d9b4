"""Vectors of ids as one vector a bag, for `EmbeddingBag` and for exports of it."""

from __future__ import annotations

import torch

MODES = ("sum", "mean", "sqrtn")


def pooled(
    vectors: torch.Tensor,
    ids: torch.Tensor,
    offsets: torch.Tensor | None,
    weights: torch.Tensor | None,
    counted: torch.Tensor | None,
    mode: str,
) -> torch.Tensor:
    """One vector a bag.

    vectors: [*ids.shape, dim]. offsets: where each bag begins among ids [n]; None where the last
    axis of ids is a bag. weights: a number an id. counted: False for ids to leave out. mode: of
    MODES. Gives [bags, dim], or [..., dim] without offsets. Raises ValueError for shapes that do
    not fit.
    """
    if weights is not None and weights.shape != ids.shape:
        raise ValueError(
            f"per_sample_weights have the shape {tuple(weights.shape)}, and the ids "
            f"{tuple(ids.shape)}: give one number an id"
        )
    if (offsets is None) == (ids.dim() == 1):
        raise ValueError(
            f"ids have the shape {tuple(ids.shape)}: give [..., ids in a bag] without offsets, or "
            "the ids of all bags one after the other, [n], with offsets [bags]"
        )
    factors = torch.ones(ids.shape, dtype=vectors.dtype) if weights is None else weights
    factors = factors.to(vectors.dtype)
    if counted is not None:
        factors = factors * counted.to(vectors.dtype)
    if weights is not None or counted is not None:
        vectors = vectors * factors[..., None]
    if offsets is None:
        total, divisor = vectors.sum(-2), _divisor(factors, mode)
        divisor = None if divisor is None else divisor.sum(-1)
    else:
        places = torch.arange(ids.shape[0], dtype=offsets.dtype)
        bags = torch.searchsorted(offsets.contiguous(), places, right=True) - 1
        zeros = vectors.new_zeros(offsets.shape[0], vectors.shape[-1])
        total, divisor = zeros.index_add(0, bags, vectors), _divisor(factors, mode)
        if divisor is not None:
            divisor = vectors.new_zeros(offsets.shape[0]).index_add(0, bags, divisor)
    if divisor is None:
        return total
    if mode == "sqrtn":
        divisor = divisor.sqrt()
    empty = divisor == 0
    return (total / divisor.masked_fill(empty, 1)[..., None]).masked_fill(empty[..., None], 0)


def _divisor(factors: torch.Tensor, mode: str) -> torch.Tensor | None:
    """The numbers, one an id, that a bag adds up to divide by; None for a sum."""
    return None if mode == "sum" else factors if mode == "mean" else factors.square()
