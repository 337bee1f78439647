"""Tuning a process group in the first seconds of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from antiphon._errors import ArgumentError
from antiphon.torch._group import Group, groups

if TYPE_CHECKING:
    from antiphon._tuning import Candidate, Predicate, Tuning

#: What can be tuned, of the calls that a group has made.
_TUNED = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
#: Sizes that are measured, at most, of those that were called.
_MOST_SIZES = 8
#: Where no call was made yet: what training does, in bytes.
_SIZES = [4096, 65536, 1 << 20, 4 << 20, 16 << 20]
_NAMES = {"f32": "float32", "f64": "float64", "i32": "int32", "i64": "int64", "u8": "uint8", "f16": "float16", "bf16": "bfloat16"}


def group_of(group: Any = None) -> Group:
    """The ranks of a process group, which must have the backend antiphon."""
    wanted = group if group is not None else dist.group.WORLD
    members = dist.get_process_group_ranks(wanted)
    found = [own for own in groups() if own.name == getattr(wanted, "group_name", None)] or [
        own for own in groups() if own.ranks == members
    ]
    if not found:
        raise ArgumentError(f"the group of the ranks {members} has no backend antiphon")
    return found[-1]


def tune(
    group: Any = None,
    *,
    budget: float = 10.0,
    candidates: Mapping[str, Candidate | tuple[Candidate, Sequence[str]]] | None = None,
    when: Mapping[str, Predicate] | None = None,
    collectives: Sequence[str] | None = None,
    sizes: Sequence[int] | None = None,
    dtype: str | None = None,
    timeout: float = 10.0,
) -> Tuning | None:
    """Measures what could serve the calls of a process group, and uses what is faster than stock from its next call on.

    All ranks of the group make this call. It takes about ``budget`` seconds. Without ``collectives``, ``sizes`` (in bytes, of all
    parts together) and ``dtype``, it measures what the group has called so far, most bytes first: call it after the first steps of
    training, or at the beginning with sizes. Sums are measured where there are reductions. Other groups keep their own plans.
    The rest is as in :meth:`antiphon.Communicator.tune`.
    """
    from antiphon import _tuning

    own = group_of(group)
    seen = [(collectives and list(collectives), sizes and list(sizes), dtype)]
    if own.core.rank == 0:
        seen = [_seen(own, *seen[0])]
    # The ranks may have made other calls, such as those of a root. What rank 0 says counts.
    dist.broadcast_object_list(seen, src=own.ranks[0], group=group)
    chosen, lengths, kind = seen[0]
    made = _tuning.tune(own.core, candidates, when, chosen, lengths, kind, "sum", budget, timeout, 0)
    own.forget()
    return made


def _seen(
    own: Group, collectives: list[str] | None, sizes: list[int] | None, dtype: str | None
) -> tuple[list[str], list[int], str]:
    """What is measured: what the caller says, or what was called."""
    moved: dict[tuple[str, int, str], int] = {}
    for (name, bytes_, kind), (_, calls, _, _) in own.calls.items():
        if name in _TUNED and bytes_ > 0 and kind in _NAMES:
            moved[name, bytes_, kind] = calls * bytes_
    most = sorted(moved, key=lambda call: -moved[call])
    found = list(dict.fromkeys(bytes_ for _, bytes_, _ in most))[:_MOST_SIZES]
    names = list(dict.fromkeys(name for name, _, _ in most))
    kinds = [_NAMES[kind] for _, _, kind in most]
    return (
        collectives or names or ["all_reduce", "all_gather", "reduce_scatter"],
        sorted(sizes or found or _SIZES),
        dtype or (kinds[0] if kinds else "float32"),
    )
