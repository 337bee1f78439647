"""Sums of sparse tensors (COO)."""

from __future__ import annotations

import math
from typing import Any

import torch

from antiphon.torch._tensors import moved, place


def add_sparse(core: Any, tensor: torch.Tensor) -> None:
    """Every rank's tensor becomes the sum of all ranks' tensors. All ranks add the same in the same order."""
    own = tensor.coalesce()
    indices, values = own.indices().t().contiguous(), own.values().contiguous()
    here, all_ = torch.tensor([len(values)]), torch.empty(core.size, dtype=torch.int64)
    core.collective_at("all_gather", place(here), place(all_), "i64")
    counts = all_.tolist()
    total = torch.sparse_coo_tensor(_gathered(core, indices, counts).t(), _gathered(core, values, counts), tensor.shape)
    with torch.no_grad():
        tensor.copy_(total.coalesce())


def _gathered(core: Any, rows: torch.Tensor, counts: list[int]) -> torch.Tensor:
    """The rows of all ranks, of which rank i has ``counts[i]``."""
    size, each = core.size, math.prod(rows.shape[1:])
    # Every rank sends all it has to everyone.
    sent = torch.cat([rows] * size)
    received = rows.new_empty((sum(counts), *rows.shape[1:]))
    core.exchange_at(place(sent), [rows.numel()] * size, place(received), [count * each for count in counts], moved(rows))
    return received
