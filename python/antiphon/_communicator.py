"""Communicators: groups of ranks, and one rank's place in each."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from antiphon import _core
from antiphon._errors import ArgumentError
from antiphon._handle import Handle
from antiphon._memory import empty_like, shape_of

if TYPE_CHECKING:
    from antiphon._tuning import Candidate, Predicate, Tuning

#: A NumPy array, a `bytearray`, an `array.array`, a CPU tensor of PyTorch, or anything else with the buffer protocol.
Array = Any


class Communicator:
    """One rank of a group.

    All ranks of a group make the same calls in the same order. Calls of one communicator are done one after the other; those of
    different communicators do not wait for each other. While a call waits, other Python threads run, and Ctrl-C works (the
    communicator then makes no calls any more).

    **Memory.** Calls take anything with the buffer protocol, and use its memory where it is: nothing is copied. It must be
    contiguous in the order of C, and writable where the call writes. While the call is under way, it must not be used otherwise.
    ``dtype`` names the elements of buffers that cannot say what they hold (``"bfloat16"`` for an array of ``uint16``).

    **Elements.** Reductions take float16, bfloat16, float32, float64, int32, int64 and uint8; ``sum`` and ``prod`` also uint32,
    uint64 and int8, ``min`` and ``max`` also bool, ``sum`` and ``avg`` also complex64 and complex128. ``op`` is one of ``"sum"``,
    ``"prod"``, ``"min"``, ``"max"`` and ``"avg"``. Calls that only move elements take any type.

    **Shapes.** Arrays are cut, and put together, along their first axis: a ``(k, …)`` of each of n ranks becomes ``(n*k, …)``. A
    scalar counts as ``(1,)``. Only the number of elements of ``out`` matters.

    **Results.** Where ``out`` is missing, the result is a new NumPy array; without NumPy, an ``array.array`` or a ``bytearray``.
    With ``async_=True`` a call only begins, and returns a :class:`Handle`.

    **Variables.** ``ANTIPHON_TABLE`` names the plans to use, ``ANTIPHON_INTERFACE`` the interface where other machines reach this
    rank, ``ANTIPHON_TRANSPORT`` (``auto``, ``shm`` or ``tcp``) how ranks exchange data.

    **Errors** are :class:`antiphon.Error`. After any but :class:`antiphon.ArgumentError`, all calls of the communicator fail on
    all ranks, and :meth:`rebuild` makes a new one.
    """

    __slots__ = ("_core", "__weakref__")

    def __init__(self) -> None:
        raise TypeError("use Communicator.from_env(), Communicator.connect(…) or Communicator.local(n)")

    @classmethod
    def _of(cls, core: _core.Communicator) -> Communicator:
        made = object.__new__(cls)
        made._core = core
        return made

    # How communicators are made.

    @classmethod
    def from_env(cls) -> Communicator:
        """All processes that a launcher has started: torchrun, mpirun, srun, or whoever has set ``ANTIPHON_RANK``,
        ``ANTIPHON_SIZE`` and ``ANTIPHON_MASTER`` (``HOST:PORT``). Without any, this process is the only rank."""
        return cls._of(_core.Communicator.from_env())

    @classmethod
    def connect(
        cls,
        rank: int,
        size: int,
        master: str | Sequence[str] = (),
        secret: str | None = None,
        *,
        timeout: float | None = None,
        join_timeout: float | None = None,
        machine: str | None = None,
        table: str | os.PathLike[str] | None = None,
    ) -> Communicator:
        """``size`` processes that find each other at ``master``, ``"HOST:PORT"``, where rank 0 listens.

        All have the same ``secret`` of at least 16 bytes; without one, ``ANTIPHON_SECRET`` or a file of the user. ``timeout`` is
        how many seconds a call may go without any progress (30), ``join_timeout`` how many to wait for the other ranks (60).
        Ranks with the same ``machine`` name share memory; the system is asked if there is none. ``table`` is a tuning table, as
        ``ANTIPHON_TABLE``.
        """
        masters = [master] if isinstance(master, str) else list(master)
        return cls._of(_core.Communicator.connect(rank, size, masters, secret, timeout, join_timeout, machine, table))

    @classmethod
    def local(cls, n: int) -> list[Communicator]:
        """The ``n`` ranks of a group within this process, by rank: each is for a thread of its own."""
        return [cls._of(core) for core in _core.Communicator.local(n)]

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """A group of the ranks that name the same ``color``, in the order of ``key``, then of their ranks.

        All ranks make the call. Who names no color (``None``) is in no group, and gets ``None``.
        """
        core = self._core.split(color, key)
        return None if core is None else self._of(core)

    def duplicate(self) -> Communicator:
        """The same group once more: its calls and those of this one do not wait for each other. All ranks make the call."""
        return self._of(self._core.duplicate())

    def rebuild(self, least: int = 1) -> Communicator:
        """What is left of this group after a failure: a new group of the ranks that make this call, in the same order.

        All that are left must make it. They wait for each other 5 s longer than a call may go without progress; who is dead, or
        does not come, is left behind. With fewer than ``least`` ranks it raises :class:`antiphon.ArgumentError`.
        """
        return self._of(self._core.rebuild(least))

    # What it is, and what it did.

    @property
    def rank(self) -> int:
        """This process's number in the group, from 0."""
        return self._core.rank

    @property
    def size(self) -> int:
        """How many ranks the group has."""
        return self._core.size

    def abort(self) -> None:
        """Ends all calls of all ranks of this communicator, under way or to come, with :class:`antiphon.AbortedError`."""
        self._core.abort()

    def set_timeout(self, seconds: float) -> None:
        """Sets how many seconds a call of this rank may go without any progress before it fails."""
        self._core.set_timeout(seconds)

    def statistics(self) -> dict[str, Any]:
        """What ran: ``{"plans": {name: {"calls": n, "bytes": n, "digests": {digest: n}}}, "stock": {reason: n}, "prepared": n,
        "confirmation": {"timed": n, "compared": n, "switched": n}, "long_messages": {way: n}}``. ``bytes`` counts this rank's
        larger buffer over all calls, ``digests`` the calls by the program that ran, ``stock`` those that stock served, by the
        reason, and ``prepared`` the plans that were made for a new size. ``confirmation`` counts what ``ANTIPHON_CONFIRM`` asks
        for. Long messages that this rank has received came ``in_place`` (read where they lay), ``by_kernel`` (copied out of another process),
        ``in_fragments`` (copied twice, where the system forbids the other ways) or ``by_socket`` (from another machine)."""
        return self._core.statistics()

    def last_plan(self) -> str:
        """What the last call ran, and why, on one line."""
        return self._core.last_plan()

    # The measured choice.

    def tune(
        self,
        candidates: Mapping[str, Candidate | tuple[Candidate, Sequence[str]]] | None = None,
        *,
        when: Mapping[str, Predicate] | None = None,
        collectives: Sequence[str] | None = None,
        sizes: Sequence[int] | None = None,
        dtype: str = "float32",
        op: str = "sum",
        budget: float = 60.0,
        timeout: float = 10.0,
        seed: int = 0,
    ) -> Tuning | None:
        """Measures what could serve each call on these ranks, and uses what is faster than stock from the next call on.

        All ranks make this call, with the same arguments. ``candidates`` are functions of the program by their names, which compete
        with textbook algorithms: ``function(comm, call)`` does what the :class:`antiphon.CandidateCall` says, with the communicator
        that it gets. With ``(function, ["all_reduce", …])`` it is for these collectives only. A candidate has to be right before it
        is measured; one that is wrong or raises is refused, and the others are measured. A table holds the names of functions, not the
        functions: a later program gives them with :meth:`use_candidates`. ``when`` has predicates of candidates that can only do some
        calls, by their names: ``predicate(call)`` says whether, on every rank the same. Other calls are not measured, and not served.

        ``collectives`` are the names of methods, by default all_reduce, all_gather, reduce_scatter, broadcast and all_to_all;
        ``sizes`` are in bytes, of all parts together (8 bytes to 16 MiB). ``budget`` is how many seconds it may take, about, and
        ``timeout`` how many a call may go without progress.

        In a program that ``antiphon tune -- python PROGRAM`` has started, the command says what is measured and makes the table, and
        the result is ``None``. There, a candidate that hangs or crashes is refused too.
        """
        from antiphon import _tuning

        return _tuning.tune(self._core, candidates, when, collectives, sizes, dtype, op, budget, timeout, seed)

    def use_table(self, path: str | os.PathLike[str]) -> None:
        """From the next call on, this communicator uses a tuning table, as with ``ANTIPHON_TABLE``.

        All ranks make this call, with the same table. Either all of them use it, or :class:`antiphon.ArgumentError` says whose table is
        for other ranks, or not the same.
        """
        self._core.use_table(os.fspath(path))

    def use_candidates(
        self,
        candidates: Mapping[str, Candidate | tuple[Candidate, Sequence[str]]],
        *,
        when: Mapping[str, Predicate] | None = None,
    ) -> list[str]:
        """From the next call on, these functions serve the calls for which the table of this communicator (``ANTIPHON_TABLE``, or
        ``table`` of :meth:`connect`) names them. After :meth:`tune` this is so already.

        All ranks make this call. Where a rank has no function of a name, the best of the rest serves on all of them, and rank 0 says
        so on standard error. A function serves calls of the type of elements and the reduction that were measured, an all_reduce or
        broadcast in place, others not, and no call with ``async_``. A predicate in ``when`` (see :meth:`tune`) is asked before each
        call that the table leaves to its function; one that raises says no. Returns the names of those that serve.
        """
        from antiphon import _tuning

        return _tuning.use_candidates(self._core, candidates, when)

    def __repr__(self) -> str:
        return f"<antiphon.Communicator: rank {self.rank} of {self.size}>"

    # Collectives.

    def all_reduce(
        self, x: Array, op: str = "sum", out: Array | None = None, async_: bool = False, *, dtype: str | None = None
    ) -> Any:
        """Every rank gets the reduction of all ranks' ``x``, elementwise.

        ``x``: any shape, the same on all ranks. The result is in ``out`` (as many elements), or in ``x`` itself if there is none.
        Returns it.
        """
        if out is None or out is x:
            return self._made("all_reduce", None, x, x, op, None, dtype, async_)
        return self._made("all_reduce", x, out, out, op, None, dtype, async_)

    def all_gather(
        self, x: Array, out: Array | None = None, async_: bool = False, *, dtype: str | None = None
    ) -> Any:
        """Every rank gets the ``x`` of all ranks, in the order of ranks.

        ``x``: ``(k, …)``, the same on all ranks. Result: ``(size*k, …)``, which is returned. ``x`` may be this rank's own part of
        ``out``, if it is on all ranks.
        """
        out = empty_like(x, self._times(shape_of(x))) if out is None else out
        return self._made("all_gather", x, out, out, None, None, dtype, async_)

    def reduce_scatter(
        self, x: Array, op: str = "sum", out: Array | None = None, async_: bool = False, *, dtype: str | None = None
    ) -> Any:
        """Rank i gets the i-th part of the reduction of all ranks' ``x``.

        ``x``: ``(size*k, …)``, the same on all ranks. Result: ``(k, …)``, which is returned.
        """
        out = empty_like(x, self._part(shape_of(x))) if out is None else out
        return self._made("reduce_scatter", x, out, out, op, None, dtype, async_)

    def all_to_all(
        self, x: Array, out: Array | None = None, async_: bool = False, *, dtype: str | None = None
    ) -> Any:
        """Rank i gets the i-th part of every rank's ``x``, in the order of ranks.

        ``x``: ``(size*k, …)``, the same on all ranks. Result: the same shape, which is returned. ``out`` may be ``x``, if it is on
        all ranks.
        """
        if out is None:
            self._part(shape_of(x))
            out = empty_like(x, shape_of(x))
        return self._made("all_to_all", x, out, out, None, None, dtype, async_)

    def all_to_all_v(
        self,
        x: Array,
        counts: Sequence[int],
        receive_counts: Sequence[int],
        out: Array | None = None,
        async_: bool = False,
        *,
        offsets: Sequence[int] | None = None,
        receive_offsets: Sequence[int] | None = None,
        dtype: str | None = None,
    ) -> Any:
        """Sends ``counts[i]`` elements of ``x`` to rank i, and receives ``receive_counts[i]`` elements from there.

        Parts lie one after the other, or begin at the elements that ``offsets`` and ``receive_offsets`` say. What one rank sends
        is as long as what the other receives. Result: ``(sum(receive_counts),)`` if ``out`` is missing, which is returned.
        """
        if out is None:
            if receive_offsets is not None:
                raise ArgumentError("receive_offsets say where parts begin in out, so out must be given")
            out = empty_like(x, (sum(receive_counts),))
        handle = self._core.exchange(
            x, list(counts), out, list(receive_counts), offsets, receive_offsets, dtype, async_
        )
        return out if handle is None else Handle(handle, out)

    def broadcast(self, x: Array, root: int = 0, async_: bool = False, *, dtype: str | None = None) -> Any:
        """Every rank gets the ``x`` of rank ``root`` in its own ``x``, which has as many elements. Returns ``x``."""
        return self._made("broadcast", None, x, x, None, root, dtype, async_)

    def reduce(
        self,
        x: Array,
        op: str = "sum",
        root: int = 0,
        out: Array | None = None,
        async_: bool = False,
        *,
        dtype: str | None = None,
    ) -> Any:
        """Rank ``root`` gets the reduction of all ranks' ``x``, elementwise.

        ``x``: any shape, the same on all ranks. Result on ``root``: the same shape, or ``out``, which may be ``x``. It is returned;
        the other ranks get ``None``, and their ``out`` is not used.
        """
        if self.rank != root:
            out = None
        elif out is None:
            out = empty_like(x, shape_of(x))
        return self._made("reduce", x, out, out, op, root, dtype, async_)

    def gather(
        self, x: Array, root: int = 0, out: Array | None = None, async_: bool = False, *, dtype: str | None = None
    ) -> Any:
        """Rank ``root`` gets the ``x`` of all ranks, in the order of ranks.

        ``x``: ``(k, …)``, the same on all ranks. Result on ``root``: ``(size*k, …)``, or ``out``. It is returned; the other ranks
        get ``None``, and their ``out`` is not used.
        """
        if self.rank != root:
            out = None
        elif out is None:
            out = empty_like(x, self._times(shape_of(x)))
        return self._made("gather", x, out, out, None, root, dtype, async_)

    def scatter(
        self,
        x: Array | None,
        root: int = 0,
        out: Array | None = None,
        async_: bool = False,
        *,
        dtype: str | None = None,
    ) -> Any:
        """Rank i gets the i-th part of the ``x`` of rank ``root``.

        ``x`` on ``root``: ``(size*k, …)``; on the others it is not used, and may be ``None``. Result: ``out``, ``(k, …)``, which is
        returned. Only ``root`` can do without ``out``: the others do not know how much they get.
        """
        if self.rank != root:
            x = None
            if out is None:
                raise ArgumentError(f"rank {self.rank} does not know what it gets from rank {root}: give out")
        elif out is None:
            if x is None:
                raise ArgumentError("the root of a scatter must give x")
            out = empty_like(x, self._part(shape_of(x)))
        return self._made("scatter", x, out, out, None, root, dtype, async_)

    def barrier(self, async_: bool = False) -> Any:
        """Returns when all ranks have called it."""
        return self._made("all_reduce", bytes(1), bytearray(1), None, "max", None, None, async_)

    # Messages.

    def send(self, x: Array, to: int, async_: bool = False) -> Any:
        """Sends ``x`` to rank ``to``. It returns when ``x`` may be changed again, which may be before it is received.

        Messages from one rank to another arrive in the order in which they were sent; they and collectives do not wait for each
        other.
        """
        handle = self._core.message(x, to, True, async_)
        return None if handle is None else Handle(handle, None)

    def receive(self, x: Array, source: int, async_: bool = False) -> Any:
        """Receives a message of rank ``source`` in ``x``, which has as many bytes as the message. Returns ``x``."""
        handle = self._core.message(x, source, False, async_)
        return x if handle is None else Handle(handle, x)

    # What they have in common.

    def _made(
        self,
        name: str,
        x: Array | None,
        out: Array | None,
        result: Any,
        op: str | None,
        root: int | None,
        dtype: str | None,
        async_: bool,
    ) -> Any:
        handle = self._core.collective(name, x, out, op, root, dtype, async_)
        return result if handle is None else Handle(handle, result)

    def _times(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        first, *rest = shape or (1,)
        return (first * self.size, *rest)

    def _part(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        first, *rest = shape or (1,)
        if first % self.size:
            raise ArgumentError(f"the first axis of x, {first}, is no multiple of the {self.size} ranks")
        return (first // self.size, *rest)
