"""Buffers for the elements of several tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from antiphon.torch._tensors import length

#: Bytes of buffers that nobody uses now and that are kept, at most; and buffers.
_MOST_BYTES, _MOST = 64 << 20, 32


class Staging:
    """Buffers that stay where they are: the same call finds the same memory again, which the other ranks know already."""

    def __init__(self) -> None:
        self._free: dict[tuple[torch.dtype, int], list[torch.Tensor]] = {}

    def take(self, dtype: torch.dtype, count: int) -> torch.Tensor:
        """A buffer that nobody else uses until it is given back."""
        free = self._free.get((dtype, count))
        return free.pop() if free else torch.empty(count, dtype=dtype)

    def joined(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Tensors of one type, one after the other."""
        counts = [part.numel() for part in parts]
        whole = self.take(parts[0].dtype, sum(counts))
        for own, part in zip(whole.split(counts), parts):
            own.view(part.shape).copy_(part.detach())
        return whole

    def give(self, buffer: torch.Tensor) -> None:
        """The call that used it is over."""
        free = [kept for buffers in self._free.values() for kept in buffers]
        if len(free) < _MOST and sum(map(length, free)) + length(buffer) <= _MOST_BYTES:
            self._free.setdefault((buffer.dtype, buffer.numel()), []).append(buffer)

    def given_back(self, *buffers: torch.Tensor | None, after: Callable[[], None] | None) -> Callable[[], None]:
        """What follows a call that used such buffers."""

        def end() -> None:
            if after is not None:
                after()
            # The next call takes them in the same order, the last one given first.
            for buffer in reversed(buffers):
                if buffer is not None:
                    self.give(buffer)

        return end
