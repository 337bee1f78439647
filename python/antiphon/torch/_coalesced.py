"""Calls of several tensors: small ones travel together, in a buffer that stays for the next such call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from antiphon.torch._tensors import length, moved
from antiphon.torch._work import PendingWork, done

if TYPE_CHECKING:
    from antiphon.torch._group import Group

#: A tensor of up to so many bytes travels with others: its copy takes less time than a call of its own.
SMALL = 64 * 1024


class CoalescedCalls:
    """The calls of a group that have several tensors."""

    _group: Group
    allreduce: Callable[..., Any]
    all_gather_single: Callable[..., Any]
    reduce_scatter_single: Callable[..., Any]
    _make: Callable[..., Any]
    _reduced: Callable[..., tuple[str, str] | None]

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        opts = opts if opts is not None else dist.AllreduceCoalescedOptions()
        alone, together = _sorted(tensors, lambda at: self._is_small(tensors[at], opts))
        works = [self.allreduce([tensors[at]], opts) for at in alone]
        works += [self._allreduce_packed([tensors[at] for at in batch], opts) for batch in together]
        return joined(works, tensors)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        outputs, inputs = list(outputs), list(inputs)
        alone, together = _sorted(inputs, lambda at: is_small(inputs[at]) and is_small(outputs[at], self._group.core.size))
        works = [self.all_gather_single(outputs[at], inputs[at], opts) for at in alone]
        for batch in together:
            works.append(self._all_gather_packed([outputs[at] for at in batch], [inputs[at] for at in batch], opts))
        return joined(works, outputs)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        opts = opts if opts is not None else dist.ReduceScatterOptions()
        outputs, inputs, size = list(outputs), list(inputs), self._group.core.size

        def fits(at: int) -> bool:
            return is_small(outputs[at]) and is_small(inputs[at], size) and self._reduced(inputs[at], opts) is not None

        alone, together = _sorted(inputs, fits)
        works = [self.reduce_scatter_single(outputs[at], inputs[at], opts) for at in alone]
        for batch in together:
            works.append(self._reduce_scatter_packed([outputs[at] for at in batch], [inputs[at] for at in batch], opts))
        return joined(works, outputs)

    # Several tensors of one type as one.

    def _is_small(self, tensor: torch.Tensor, options: Any) -> bool:
        return is_small(tensor) and self._reduced(tensor, options) is not None

    def _allreduce_packed(self, tensors: list[torch.Tensor], options: Any) -> Any:
        counts = [tensor.numel() for tensor in tensors]
        packed = self._group.staging.joined(tensors)
        op, dtype = self._how(tensors[0], options)

        def after() -> None:
            _unpack([part.view(tensor.shape) for part, tensor in zip(packed.split(counts), tensors)], tensors)
            self._group.staging.give(packed)

        return self._make("all_reduce", packed, packed, options, op=op, dtype=dtype, after=after, tensors=tensors)

    def _all_gather_packed(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], options: Any) -> Any:
        size, staging = self._group.core.size, self._group.staging
        counts = [tensor.numel() for tensor in inputs]
        packed = staging.joined(inputs)
        all_ = staging.take(inputs[0].dtype, size * sum(counts))

        def after() -> None:
            columns = all_.view(size, -1).split(counts, dim=1)
            _unpack([column.reshape(output.shape) for column, output in zip(columns, outputs)], outputs)
            staging.give(packed)
            staging.give(all_)

        return self._make("all_gather", packed, all_, options, dtype=moved(packed), after=after, tensors=outputs)

    def _reduce_scatter_packed(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], options: Any) -> Any:
        size, staging = self._group.core.size, self._group.staging
        counts = [tensor.numel() for tensor in outputs]
        packed = staging.take(inputs[0].dtype, size * sum(counts))
        part = staging.take(inputs[0].dtype, sum(counts))
        for column, tensor in zip(packed.view(size, -1).split(counts, dim=1), inputs):
            column.copy_(tensor.detach().reshape(size, -1))
        op, dtype = self._how(inputs[0], options)

        def after() -> None:
            _unpack([own.view(output.shape) for own, output in zip(part.split(counts), outputs)], outputs)
            staging.give(packed)
            staging.give(part)

        return self._make("reduce_scatter", packed, part, options, op=op, dtype=dtype, after=after, tensors=outputs)

    def _how(self, tensor: torch.Tensor, options: Any) -> tuple[str, str]:
        how = self._reduced(tensor, options)
        assert how is not None, "only what the library reduces is packed"
        return how


def is_small(tensor: torch.Tensor, times: int = 1) -> bool:
    """Whether a tensor travels with others."""
    is_plain = tensor.layout is torch.strided and tensor.device.type == "cpu"
    return is_plain and length(tensor) <= SMALL * times


def _sorted(
    tensors: Sequence[torch.Tensor], fits: Callable[[int], bool]
) -> tuple[list[int], list[list[int]]]:
    """The numbers of those that travel alone, and of those that travel together: one list for each type. It depends on nothing that
    differs between ranks."""
    alone, together = [], {}
    for at, tensor in enumerate(tensors):
        if fits(at):
            together.setdefault(tensor.dtype, []).append(at)
        else:
            alone.append(at)
    batches = list(together.values())
    alone += [batch[0] for batch in batches if len(batch) == 1]
    return sorted(alone), [batch for batch in batches if len(batch) > 1]


def _unpack(parts: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
    with torch.no_grad():
        for part, tensor in zip(parts, tensors):
            tensor.copy_(part)


def joined(works: list[Any], tensors: list[torch.Tensor]) -> Any:
    """Several calls as one."""
    pending = [work.hand_over() for work in works if isinstance(work, PendingWork)]
    if not pending:
        return done(tensors)
    afters = [then for _, then in pending if then is not None]

    def after() -> None:
        for then in afters:
            then()

    handles = [handle for own, _ in pending for handle in own]
    return PendingWork(handles, tensors, after if afters else None)
