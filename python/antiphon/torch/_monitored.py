"""A barrier that names the ranks that do not come."""

from __future__ import annotations

from time import monotonic
from typing import Any

import torch

from antiphon._errors import TimeoutError_
from antiphon.torch._group import Group
from antiphon.torch._tensors import place
from antiphon.torch._work import PendingWork

#: No user may send with this tag, so these messages wait for no others.
_TAG = -1
#: How much longer, in seconds, than rank 0 waits for the others do they wait for its answer.
_LONGER = 5.0


def monitored_barrier(group: Group, seconds: float, names_all: bool) -> None:
    """All ranks tell rank 0 that they are there; it waits ``seconds`` for them, and tells all who did not come.

    Only rank 0 decides who is missing: otherwise two ranks that have waited equally long would name each other. Raises
    ``TimeoutError_`` on every rank, also on those that come too late. Its text begins with all that are missing if ``names_all``,
    otherwise with the first one.
    """
    core = group.tagged(_TAG)
    core.set_timeout(2 * seconds + _LONGER)
    missing = torch.zeros(core.size, dtype=torch.uint8)
    if core.rank:
        _message(core, torch.zeros(1, dtype=torch.uint8), 0, True).wait()
        _message(core, missing, 0, False).wait()
    else:
        _gather(core, seconds, missing)
    names = [group.ranks[rank] for rank in range(core.size) if missing[rank]]
    if names:
        error = TimeoutError_(_text(names, group.ranks[core.rank] if core.rank else None, seconds, names_all))
        error.rank = names[0]
        raise error


def _text(names: list[int], own: int | None, seconds: float, names_all: bool) -> str:
    """What is wrong, in the words of Gloo, which programs may look for. ``own`` is a rank that was told by rank 0."""
    first = names if names_all else names[:1]
    text = f"{_listed('Rank', first)} failed to pass monitoredBarrier within {seconds:g} s"
    if len(names) > len(first):
        text += f", and so did {_listed('rank', names[1:])}"
    if own is None or own in names:
        return text
    return f"Rank {own} successfully reached monitoredBarrier, but {text[0].lower()}{text[1:]}"


def _listed(word: str, ranks: list[int]) -> str:
    return f"{word}{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _gather(core: Any, seconds: float, missing: torch.Tensor) -> None:
    """Rank 0's part: 1 in ``missing`` for each rank that did not come."""
    others = range(1, core.size)
    said = {rank: _message(core, torch.zeros(1, dtype=torch.uint8), rank, False) for rank in others}
    until = monotonic() + seconds
    for rank, message in said.items():
        missing[rank] = not message.is_over_within(until - monotonic())
    answers = {rank: _message(core, missing, rank, True) for rank in others}
    # Who comes too late finds the answer, too.
    for rank in others:
        if not missing[rank]:
            answers[rank].wait()


def _message(core: Any, tensor: torch.Tensor, peer: int, is_sent: bool) -> PendingWork:
    return PendingWork([core.message_at(place(tensor), peer, is_sent, tensor)], [tensor])
