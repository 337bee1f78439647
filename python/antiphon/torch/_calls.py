"""The calls of PyTorch, made with a communicator: what the seams to all versions of PyTorch have in common.

A tensor that is not contiguous is copied. What the library cannot reduce (bits, small and large integers) is gathered and reduced
here, in the order of ranks: right, and slower.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from time import perf_counter_ns
from typing import Any

import torch
import torch.distributed as dist

from antiphon._errors import ArgumentError, UnsupportedError
from antiphon.torch._coalesced import CoalescedCalls, joined
from antiphon.torch._group import Group
from antiphon.torch._messages import Messages
from antiphon.torch._monitored import monitored_barrier
from antiphon.torch._sparse import add_sparse
from antiphon.torch._tensors import REDUCED, dense, length, moved, one, place, put
from antiphon.torch._work import DONE, PendingWork, done

_OPS = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.PRODUCT: "prod",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.AVG: "avg",
}
_BITWISE = {
    dist.ReduceOp.BAND: torch.bitwise_and,
    dist.ReduceOp.BOR: torch.bitwise_or,
    dist.ReduceOp.BXOR: torch.bitwise_xor,
}
_LOCAL: dict[str, Callable[..., torch.Tensor]] = {
    "sum": torch.add,
    "prod": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
}
_NOWHERE = (0, 0)


def _op_of(options: Any) -> str | None:
    """The name of a reduction that the library has."""
    reduction = options.reduceOp
    return _OPS.get(getattr(reduction, "op", reduction))


class Calls(CoalescedCalls, Messages):
    """The calls of a group."""

    _group: Group

    # How a call is made.

    def _dense(self, tensor: torch.Tensor) -> torch.Tensor:
        whole = dense(tensor)
        if whole is not tensor:
            self._group.note("a tensor is copied, because it is not contiguous")
        return whole

    def _make(
        self,
        name: str,
        send: torch.Tensor | None,
        receive: torch.Tensor | None,
        options: Any,
        *,
        dtype: str,
        op: str | None = None,
        root: int | None = None,
        after: Callable[[], None] | None = None,
        tensors: list[torch.Tensor] | None = None,
    ) -> Any:
        """A collective on contiguous tensors. `after` is done when it is over."""
        group = self._group
        receives = _NOWHERE if receive is None else place(receive)
        sends = receives if send is receive else _NOWHERE if send is None else place(send)
        size = max(sends[1], receives[1])
        if getattr(options, "asyncOp", True):
            handle = group.core.collective_at(name, sends, receives, dtype, op, root, (send, receive))
            group.count(name, size, dtype, None)
            return PendingWork([handle], tensors or [], after)
        since = perf_counter_ns()
        group.core.collective_at(name, sends, receives, dtype, op, root)
        group.count(name, size, dtype, perf_counter_ns() - since)
        if after is not None:
            after()
        return DONE

    def _reduced(self, tensor: torch.Tensor, options: Any) -> tuple[str, str] | None:
        """How the library reduces a tensor: the names of the reduction and of the type."""
        op = _op_of(options)
        known = REDUCED.get(tensor.dtype)
        if op is not None and known is not None and op in known[1]:
            return op, known[0]
        return None

    def _combine(self, tensor: torch.Tensor, options: Any) -> torch.Tensor:
        """The reduction of all ranks' tensors with what PyTorch itself has, in the order of ranks."""
        reduction = options.reduceOp
        reduction = getattr(reduction, "op", reduction)
        op = _OPS.get(reduction)
        combine = _BITWISE.get(reduction) or _LOCAL.get(op or "")
        if combine is None or tensor.dtype in (torch.complex64, torch.complex128):
            raise UnsupportedError(f"the backend antiphon does not do {reduction} of {tensor.dtype}")
        self._group.note(f"PyTorch reduces what is gathered, because the library has no {reduction} of {tensor.dtype}")
        size = self._group.core.size
        all_ = tensor.new_empty((size, tensor.numel()))
        self._group.core.collective_at("all_gather", place(tensor), place(all_), moved(tensor))
        result = all_[0]
        for other in all_[1:]:
            result = combine(result, other)
        return result.to(tensor.dtype)

    # Collectives.

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        if self._group.sums(tensors, opts):
            return DONE
        tensor = one(tensors)
        opts = opts if opts is not None else dist.AllreduceOptions()
        if tensor.layout is torch.sparse_coo:
            return self._allreduce_sparse(tensor, opts)
        whole = self._dense(tensor)
        how = self._reduced(whole, opts)
        if how is None:
            put([self._combine(whole, opts)], [tensor])()  # type: ignore[misc]
            return done([tensor])
        after = None if whole is tensor else put([whole], [tensor])
        return self._make("all_reduce", whole, whole, opts, op=how[0], dtype=how[1], after=after, tensors=[tensor])

    def _allreduce_sparse(self, tensor: torch.Tensor, options: Any) -> Any:
        if _op_of(options) != "sum":
            raise UnsupportedError("the backend antiphon only adds sparse tensors")
        self._group.note("a sparse tensor is gathered, and added by PyTorch")
        add_sparse(self._group.core, tensor)
        return done([tensor])

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        tensor = one(tensors)
        whole = self._dense(tensor)
        is_root = opts.rootRank == self._group.core.rank
        after = None if is_root or whole is tensor else put([whole], [tensor])
        return self._make(
            "broadcast", whole, whole, opts, dtype=moved(whole), root=opts.rootRank, after=after, tensors=[tensor]
        )

    def reduce(self, tensors: Any, opts: Any = None) -> Any:
        tensor = one(tensors)
        whole = self._dense(tensor)
        is_root = opts.rootRank == self._group.core.rank
        how = self._reduced(whole, opts)
        if how is None:
            result = self._combine(whole, opts)
            if is_root:
                put([result], [tensor])()  # type: ignore[misc]
            return done([tensor])
        after = None if not is_root or whole is tensor else put([whole], [tensor])
        return self._make(
            "reduce",
            whole,
            whole if is_root else None,
            opts,
            op=how[0],
            dtype=how[1],
            root=opts.rootRank,
            after=after,
            tensors=[tensor],
        )

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Any:
        send, receive = self._dense(tensor), self._dense(output)
        after = put([receive], [output])
        return self._make("all_gather", send, receive, opts, dtype=moved(send), after=after, tensors=[output])

    def allgather(self, outputs: Any, tensors: Any, opts: Any = None) -> Any:
        tensor, wanted = one(tensors), one(outputs)
        send = self._dense(tensor)
        if len(wanted) != self._group.core.size or any(part.numel() != tensor.numel() for part in wanted):
            return self._allgather_uneven(wanted, send, opts)
        all_ = self._group.staging.take(send.dtype, len(wanted) * send.numel())
        after = self._group.staging.given_back(all_, after=put(list(all_.view(len(wanted), send.numel())), wanted))
        return self._make("all_gather", send, all_, opts, dtype=moved(send), after=after, tensors=wanted)

    def _allgather_uneven(self, wanted: list[torch.Tensor], send: torch.Tensor, options: Any) -> Any:
        size = self._group.core.size
        if len(wanted) != size:
            raise ArgumentError(f"all_gather has {len(wanted)} outputs, but the group has {size} ranks")
        flat = send.new_empty(sum(part.numel() for part in wanted))
        counts = [part.numel() for part in wanted]
        # Every rank sends all it has to everyone.
        whole = torch.cat([send.flatten()] * size)
        return self._exchange(flat, whole, counts, [send.numel()] * size, options, put(flat.split(counts), wanted), wanted)

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Any:
        opts = opts if opts is not None else dist.ReduceScatterOptions()
        send, receive = self._dense(tensor), self._dense(output)
        how = self._reduced(send, opts)
        if how is None:
            parts = self._combine(send, opts).view(self._group.core.size, -1)
            put([parts[self._group.core.rank]], [output])()  # type: ignore[misc]
            return done([output])
        after = put([receive], [output])
        return self._make(
            "reduce_scatter", send, receive, opts, op=how[0], dtype=how[1], after=after, tensors=[output]
        )

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        output, parts = one(outputs), one(inputs)
        if len(parts) != self._group.core.size or any(part.numel() != output.numel() for part in parts):
            if len(parts) != self._group.core.size:
                raise ArgumentError(f"reduce_scatter has {len(parts)} parts, not one for each rank")
            # Parts of unequal length: reduce all, keep one.
            whole = torch.cat([part.flatten() for part in parts])
            first = sum(part.numel() for part in parts[: self._group.core.rank])
            after = put([whole[first : first + output.numel()]], [output])
            return _then(self.allreduce([whole], _as_allreduce(opts)), after, [output])
        opts = opts if opts is not None else dist.ReduceScatterOptions()
        how = self._reduced(output, opts)
        if how is None:
            return self.reduce_scatter_single(output, torch.cat([part.flatten() for part in parts]), opts)
        send, receive = self._group.staging.joined(parts), self._dense(output)
        after = self._group.staging.given_back(send, after=put([receive], [output]))
        return self._make(
            "reduce_scatter", send, receive, opts, op=how[0], dtype=how[1], after=after, tensors=[output]
        )

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        # Here the outer list is for ranks, the inner one for tensors.
        lists = [[of_rank[index] for of_rank in outputs] for index in range(len(inputs))]
        works = [self.allgather([wanted], [tensor], opts) for wanted, tensor in zip(lists, inputs)]
        return joined(works, [tensor for wanted in lists for tensor in wanted])

    def all_to_all_single(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_splits: Sequence[int] = (),
        input_splits: Sequence[int] = (),
        opts: Any = None,
    ) -> Any:
        send, receive = self._dense(tensor), self._dense(output)
        after = put([receive], [output])
        if not output_splits and not input_splits and send.numel() == receive.numel():
            return self._make("all_to_all", send, receive, opts, dtype=moved(send), after=after, tensors=[output])
        counts = _elements(send, input_splits, self._group.core.size)
        receives = _elements(receive, output_splits, self._group.core.size)
        return self._exchange(receive, send, receives, counts, opts, after, [output])

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> Any:
        size = self._group.core.size
        if len(outputs) != size or len(inputs) != size:
            raise ArgumentError(f"all_to_all has {len(inputs)} inputs and {len(outputs)} outputs for {size} ranks")
        send = self._group.staging.joined(inputs)
        counts = [tensor.numel() for tensor in outputs]
        receive = self._group.staging.take(send.dtype, sum(counts))
        after = self._group.staging.given_back(send, receive, after=put(receive.split(counts), outputs))
        sends = [tensor.numel() for tensor in inputs]
        return self._exchange(receive, send, counts, sends, opts, after, list(outputs))

    def _exchange(
        self,
        receive: torch.Tensor,
        send: torch.Tensor,
        receives: list[int],
        sends: list[int],
        options: Any,
        after: Callable[[], None] | None,
        tensors: list[torch.Tensor],
    ) -> Any:
        core, dtype = self._group.core, moved(send)
        sizes = (place(send), sends, place(receive), receives, dtype)
        self._group.count("all_to_all_v", max(length(send), length(receive)), dtype, None)
        if getattr(options, "asyncOp", True):
            return PendingWork([core.exchange_at(*sizes, (send, receive))], tensors, after)
        core.exchange_at(*sizes)
        if after is not None:
            after()
        return DONE

    def gather(self, outputs: Any, tensors: Any, opts: Any = None) -> Any:
        send, root = self._dense(one(tensors)), opts.rootRank
        if root != self._group.core.rank:
            return self._make("gather", send, None, opts, dtype=moved(send), root=root, tensors=[])
        wanted = one(outputs)
        if len(wanted) != self._group.core.size or any(part.numel() != send.numel() for part in wanted):
            raise ArgumentError("gather needs an output of the input's size for each rank")
        all_ = self._group.staging.take(send.dtype, len(wanted) * send.numel())
        after = self._group.staging.given_back(all_, after=put(list(all_.view(len(wanted), send.numel())), wanted))
        return self._make("gather", send, all_, opts, dtype=moved(send), root=root, after=after, tensors=wanted)

    def gather_single(self, output: torch.Tensor | None, tensor: torch.Tensor, opts: Any = None) -> Any:
        send, root = self._dense(tensor), opts.rootRank
        if root != self._group.core.rank or output is None:
            return self._make("gather", send, None, opts, dtype=moved(send), root=root, tensors=[])
        receive = self._dense(output)
        after = put([receive], [output])
        return self._make("gather", send, receive, opts, dtype=moved(send), root=root, after=after, tensors=[output])

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        output, root = one(outputs), opts.rootRank
        receive = self._dense(output)
        send = None
        if root == self._group.core.rank:
            parts = one(inputs)
            if len(parts) != self._group.core.size or any(part.numel() != output.numel() for part in parts):
                raise ArgumentError("scatter needs an input of the output's size for each rank")
            send = self._group.staging.joined(parts)
        after = self._group.staging.given_back(send, after=put([receive], [output]))
        return self._make(
            "scatter", send, receive, opts, dtype=moved(receive), root=root, after=after, tensors=[output]
        )

    def barrier(self, opts: Any = None) -> Any:
        begins = getattr(opts, "asyncOp", True)
        handle = self._barrier(begins)
        return PendingWork([handle], []) if begins else DONE

    def _barrier(self, begins: bool) -> Any:
        """A reduction of one byte, which is over when all ranks have begun it."""
        send, receive = torch.zeros(1, dtype=torch.uint8), torch.zeros(1, dtype=torch.uint8)
        owners = (send, receive) if begins else None
        return self._group.core.collective_at("all_reduce", place(send), place(receive), "u8", "max", None, owners)

    def monitored_barrier(self, opts: Any = None, wait_all_ranks: bool = False) -> None:
        """A barrier whose error names all ranks that did not come, whatever ``wait_all_ranks`` says."""
        # A process group is told the limit itself.
        limit = getattr(opts, "timeout", opts)
        if not isinstance(limit, timedelta) or limit < timedelta():
            limit = self._group.timeout
        monitored_barrier(self._group, limit.total_seconds(), wait_all_ranks)

    # Life.

    def set_timeout(self, timeout: timedelta) -> None:
        self._group.timeout = timeout
        self._group.core.set_timeout(timeout.total_seconds())

    def shutdown(self) -> None:
        self._group.close()

    def abort(self) -> None:
        self._group.core.abort()
        self._group.close()


def _elements(tensor: torch.Tensor, splits: Sequence[int], size: int) -> list[int]:
    """How many elements each part has, from rows."""
    rows = tensor.shape[0] if tensor.dim() else 1
    if not splits:
        if rows % size:
            raise ArgumentError(f"the first axis, {rows}, is no multiple of the {size} ranks")
        splits = [rows // size] * size
    if len(splits) != size or sum(splits) != rows:
        raise ArgumentError(f"the parts {list(splits)} are not {size} parts of {rows} rows")
    each = tensor.numel() // rows if rows else 0
    return [count * each for count in splits]


def _as_allreduce(options: Any) -> Any:
    made = dist.AllreduceOptions()
    if options is not None:
        made.reduceOp, made.timeout = options.reduceOp, options.timeout
        if hasattr(made, "asyncOp"):
            made.asyncOp = getattr(options, "asyncOp", True)
    return made


def _then(work: Any, after: Callable[[], None] | None, tensors: list[torch.Tensor]) -> Any:
    """A call, and something to do when it is over."""
    if not isinstance(work, PendingWork):
        if after is not None:
            after()
        return done(tensors)
    handles, _ = work.hand_over()
    return PendingWork(handles, tensors, after)
