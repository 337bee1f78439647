"""Groups of ranks: how they meet, and what they did."""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import sys
import weakref
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from antiphon import _core
from antiphon._errors import ArgumentError
from antiphon.torch._staging import Staging
from antiphon.torch._tensors import ADDED

#: The groups that are there, in the order in which they were made.
_GROUPS: list[weakref.ref[Group]] = []
#: How long ranks may take to come, at most.
_LONGEST_JOIN = timedelta(minutes=30)


def groups() -> list[Group]:
    """The groups that are there, in the order in which they were made."""
    there = [group() for group in _GROUPS]
    return [group for group in there if group is not None and group.is_open]


class Options:
    """What a group is told when it is made: ``init_process_group("antiphon", pg_options=antiphon.torch.Options(table="here.json"))``,
    and ``new_group`` in the same way."""

    def __init__(self, *, table: str | os.PathLike[str] | None = None) -> None:
        #: The tuning table of this group, and of no other. All its ranks name the same one. Without it, that of ``ANTIPHON_TABLE``.
        self.table = table


class Group:
    """The ranks of a process group."""

    def __init__(
        self, core: _core.Communicator, name: str, ranks: list[int], timeout: timedelta, is_root: bool
    ) -> None:
        self.core = core
        self.timeout = timeout
        self.name = name
        #: The numbers of its ranks in the whole job.
        self.ranks = ranks
        #: Whether its processes met for it, so that other groups can be made of it without meeting again.
        self.is_root = is_root
        self.is_open = True
        #: For each collective, bytes and type: the plan, the calls, and the nanoseconds and number of those that were timed.
        self.calls = _core.CallCounts(core)
        #: Sums one tensor if that is all that is asked for, and says whether it did.
        self.sums = _core.StraightSum(core, self.calls, ADDED, torch.strided, dist.ReduceOp.SUM)
        #: What was not done as it is done best, and how often.
        self.notes: dict[str, int] = {}
        self.staging = Staging()
        self._names: dict[str, int] = {}
        self._tagged: dict[int, _core.Communicator] = {}
        _GROUPS[:] = [other for other in _GROUPS if other() is not None]
        _GROUPS.append(weakref.ref(self))

    @classmethod
    def of(
        cls, store: Any, rank: int, size: int, timeout: timedelta, name: str, ranks: list[int], options: Any = None
    ) -> Group:
        """The group that PyTorch asks for. All its ranks call it."""
        parent = next((group for group in groups() if group.is_root and set(ranks) <= set(group.ranks)), None)
        if parent is None:
            core = _meet(store, rank, size, timeout, name, ranks)
        else:
            members = [parent.ranks.index(number) for number in ranks]
            core = parent.core.subset(members, parent._tag_of(name, members))
        if "ANTIPHON_TIMEOUT" not in os.environ:
            core.set_timeout(timeout.total_seconds())
        if isinstance(options, Options) and options.table is not None:
            core.use_table(os.fspath(options.table))
        return cls(core, name, ranks, timeout, parent is None)

    def _tag_of(self, name: str, members: list[int]) -> int:
        """A number that the ranks of a group agree on, and that stands for no other group."""
        key = f"{name} {members}"
        used = self._names[key] = self._names.get(key, 0) + 1
        return int.from_bytes(hashlib.sha256(f"{key} {used}".encode()).digest()[:8], "little")

    def tagged(self, tag: int) -> _core.Communicator:
        """Messages with one tag do not wait for those with another."""
        if tag == 0:
            return self.core
        if tag not in self._tagged:
            number = int.from_bytes(hashlib.sha256(f"tag {tag}".encode()).digest()[:8], "little")
            self._tagged[tag] = self.core.subset(list(range(self.core.size)), number)
        return self._tagged[tag]

    def close(self) -> None:
        """No call follows."""
        self.is_open = False
        self._tagged.clear()

    def count(self, name: str, bytes_: int, dtype: str, nanoseconds: int | None) -> None:
        """Counts a call."""
        self.calls.add(name, bytes_, dtype, nanoseconds)

    def note(self, what: str) -> None:
        """Counts something that takes longer than it could. `ANTIPHON_DEBUG=info` says it the first time."""
        self.notes[what] = self.notes.get(what, 0) + 1
        if self.notes[what] == 1 and os.environ.get("ANTIPHON_DEBUG") == "info":
            print(f"antiphon: group {self.name}: {what}", file=sys.stderr)

    def forget(self) -> None:
        """Other plans serve the calls from now on."""
        self.calls.clear()

    def explain(self) -> str:
        lines = [f"group {self.name}: rank {self.core.rank} of {self.core.size}"]
        for (name, bytes_, dtype), (plan, calls, nanoseconds, timed) in self.calls.items():
            took = f"{nanoseconds / timed / 1000:.1f} µs" if timed else "not timed (async)"
            lines.append(f"  {name}, {bytes_} bytes of {dtype}: {calls} calls, {took}; {plan}")
        lines += [f"  {times} times: {what}" for what, times in sorted(self.notes.items())]
        return "\n".join(lines)


def _addresses() -> list[str]:
    """Names and addresses of this computer, the one that others most likely reach first."""
    found = [os.environ.get("MASTER_ADDR", "")] if os.environ.get("RANK", "0") == "0" else []
    try:
        entries = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET, socket.SOCK_STREAM)
        found += [str(entry[4][0]) for entry in entries]
    except OSError:
        pass
    found.append("127.0.0.1")
    return list(dict.fromkeys(address for address in found if address))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


#: How often the ranks of a group with a name have met: the store keeps what was said the time before.
_MEETINGS: dict[str, int] = {}


def _meet(store: Any, rank: int, size: int, timeout: timedelta, name: str, ranks: list[int]) -> _core.Communicator:
    """The ranks find each other through PyTorch's store: the first one says there where it waits, and what proves a member."""
    _MEETINGS[name] = _MEETINGS.get(name, 0) + 1
    # A store may outlive a job that torchrun starts again.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    key = f"antiphon/{name}/{attempt}/{_MEETINGS[name]}"
    if size == 1:
        return _core.Communicator.connect(0, 1, [])
    if rank == 0:
        port = _free_port()
        masters = [f"[{address}]:{port}" if ":" in address else f"{address}:{port}" for address in _addresses()]
        store.set(key, "\n".join([secrets.token_hex(32), *masters]))
    said = store.get(key).decode()
    secret, *masters = said.split("\n")
    if not masters:
        raise ArgumentError(f"rank {ranks[0]} said nothing in PyTorch's store of where it waits")
    joining = min(timeout, _LONGEST_JOIN).total_seconds()
    core = _core.Communicator.connect(rank, size, masters, secret, None, joining)
    if rank == 0:
        # All have read it. Who comes later must not find it.
        store.delete_key(key)
    return core
