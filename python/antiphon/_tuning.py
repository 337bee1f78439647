"""Tuning from Python: a program's own candidates, and what came out."""

from __future__ import annotations

import ctypes
import functools
import html
import json
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from antiphon import _core
from antiphon._errors import ArgumentError

if TYPE_CHECKING:
    from antiphon._communicator import Communicator

#: Names of collectives in tables, and of the methods that do them.
_METHODS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
}
#: Names of element types in Python's module `struct`. There is none for bfloat16.
_LETTERS = {"f32": "f", "f64": "d", "i32": "i", "i64": "q", "u8": "B", "f16": "e", "bf16": "H"}
#: As the library writes what people write.
_TYPES = {"float32": "f32", "float64": "f64", "int32": "i32", "int64": "i64", "uint8": "u8", "float16": "f16", "bfloat16": "bf16"}


class CandidateCall:
    """A call that a candidate has to do. ``x`` and ``out`` are memory of the tuner's, which is gone when the candidate returns:
    NumPy arrays where there is NumPy, otherwise memoryviews; bfloat16 comes as uint16. In place, as an all_reduce is measured,
    both are the same. A predicate gets neither of them."""

    def __init__(
        self, collective: str, op: str | None, root: int | None, dtype: str, count: int, x: Any = None, out: Any = None
    ) -> None:
        #: The name of the communicator's method that does the same.
        self.collective = collective
        #: ``"sum"``, …; ``None`` where nothing is reduced.
        self.op = op
        #: ``None`` where there is no root.
        self.root = root
        #: ``"f32"``, ``"f64"``, ``"i32"``, ``"i64"``, ``"u8"``, ``"f16"`` or ``"bf16"``.
        self.dtype = dtype
        #: Elements as MPI counts them: per rank for all_gather, gather, scatter and all_to_all, what is received for reduce_scatter,
        #: the vector's length otherwise.
        self.count = count
        #: What this rank gives.
        self.x = x
        #: What it gets.
        self.out = out

    def __repr__(self) -> str:
        return f"<antiphon.CandidateCall: {self.collective} of {self.count} {self.dtype}>"


#: A way to do a collective: all ranks call it at the same time. One that raises is refused.
Candidate = Callable[["Communicator", CandidateCall], object]
#: Whether a candidate can do a call, of which it has no memory. The answer is the same on all ranks, and whenever it is asked.
Predicate = Callable[[CandidateCall], object]

#: What a call is, as the core says it: collective, reduction, root, type and number of elements.
_Told = tuple[str, "str | None", "int | None", str, int]


class Tuning:
    """What was measured: the choice for every size of every collective."""

    def __init__(self, said: dict[str, Any]) -> None:
        #: The table, of format ``antiphon-table/1``.
        self.table: dict[str, Any] = said["table"]
        #: Candidates that were refused: ``collective``, ``bytes``, ``name``, ``rank``, ``phase`` and ``why``.
        self.refused: list[dict[str, Any]] = said["refused"]
        #: Candidates that make the same messages as another one, which was measured for both: ``collective``, ``bytes``, ``name`` and
        #: ``same_as``.
        self.same: list[dict[str, Any]] = said["same"]

    @property
    def functions(self) -> list[dict[str, Any]]:
        """Where functions of the program are faster than all plans: ``collective``, ``from_bytes``, ``to_bytes`` and ``function``."""
        keys = ("from_bytes", "to_bytes", "function")
        return [
            {"collective": cell["collective"], **{key: part[key] for key in keys}}
            for cell in self.table["cells"]
            for part in cell.get("functions", [])
        ]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """For every range of sizes: ``collective``, ``from_bytes``, ``to_bytes`` (``None``: no end), ``plan`` (``None``: stock), and
        ``speedup``, the gain over stock where it was measured."""
        rows = []
        for cell in self.table["cells"]:
            for part in cell["ranges"]:
                gains = [one["stock"]["median_us"] / one["choice"]["median_us"] for one in part["evidence"] if part["plan"]]
                rows.append(
                    {
                        "collective": cell["collective"],
                        "from_bytes": part["from_bytes"],
                        "to_bytes": part["to_bytes"],
                        "plan": part["plan"],
                        "speedup": sum(gains) / len(gains) if gains else None,
                    }
                )
        return rows

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the table for ``ANTIPHON_TABLE``. A reader sees the old file or the new one."""
        target = pathlib.Path(path)
        part = target.with_name(f".{target.name}.{os.getpid()}")
        part.write_text(json.dumps(self.table, indent=1) + "\n")
        part.replace(target)

    def __repr__(self) -> str:
        planned = sum(row["plan"] is not None for row in self.rows)
        return f"<antiphon.Tuning: {planned} ranges of sizes have a plan, {len(self.refused)} refusals>"

    def _repr_html_(self) -> str:
        lines = []
        for row in self.rows:
            end = "" if row["to_bytes"] is None else row["to_bytes"]
            gain = "" if row["speedup"] is None else f"{row['speedup']:.2f}×"
            cells = (row["collective"], row["from_bytes"], end, row["plan"] or "stock", gain)
            lines.append("<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in cells) + "</tr>")
        head = "<tr><th>collective</th><th>from</th><th>to</th><th>plan</th><th>gain</th></tr>"
        return f"<table>{head}{''.join(lines)}</table>"


def _memory(place: tuple[int, int], dtype: str) -> Any:
    """The memory at an address, while it is there."""
    address, length = place
    raw = (ctypes.c_char * length).from_address(address) if length else bytearray()
    view = memoryview(raw).cast("B")
    try:
        import numpy
    except ImportError:
        letter = _LETTERS[dtype]
        return view if letter in ("B", "e") else view.cast(letter)
    return numpy.frombuffer(view, numpy.dtype(_LETTERS[dtype]))


def _call(told: _Told, x: Any = None, out: Any = None) -> CandidateCall:
    collective, op, root, dtype, count = told
    return CandidateCall(_METHODS.get(collective, collective), op, root, dtype, count, x, out)


def _called(
    function: Candidate, core: _core.Communicator, told: _Told, send: tuple[int, int], receive: tuple[int, int]
) -> None:
    """Calls a candidate as people write it."""
    from antiphon._communicator import Communicator

    dtype = told[3]
    out = _memory(receive, dtype)
    x = out if send == receive else _memory(send, dtype)
    function(Communicator._of(core), _call(told, x, out))


def _asked(predicate: Predicate, told: _Told) -> bool:
    """Asks a predicate as people write it."""
    return bool(predicate(_call(told)))


def _given(
    candidates: Mapping[str, Candidate | tuple[Candidate, Sequence[str]]], when: Mapping[str, Predicate] | None
) -> list[tuple[str, list[str], Callable[..., None], Callable[..., bool] | None]]:
    """Candidates as the core takes them."""
    given: list[tuple[str, list[str], Callable[..., None], Callable[..., bool] | None]] = []
    when = when or {}
    for name, predicate in when.items():
        if name not in candidates:
            raise ArgumentError(f"`when` has a predicate for `{name}`, and there is no such candidate")
        if not callable(predicate):
            raise ArgumentError(f"the predicate of `{name}` is no function")
    for name, candidate in candidates.items():
        function, of = candidate if isinstance(candidate, tuple) else (candidate, ())
        if not callable(function):
            raise ArgumentError(f"the candidate `{name}` is no function")
        asked = functools.partial(_asked, when[name]) if name in when else None
        given.append((name, list(of), functools.partial(_called, function), asked))
    return given


def use_candidates(
    core: _core.Communicator,
    candidates: Mapping[str, Candidate | tuple[Candidate, Sequence[str]]],
    when: Mapping[str, Predicate] | None,
) -> list[str]:
    """See :meth:`antiphon.Communicator.use_candidates`."""
    return _core.use_candidates(core, _given(candidates, when))


def tune(
    core: _core.Communicator,
    candidates: Mapping[str, Candidate | tuple[Candidate, Sequence[str]]] | None,
    when: Mapping[str, Predicate] | None,
    collectives: Sequence[str] | None,
    sizes: Sequence[int] | None,
    dtype: str,
    op: str,
    budget: float,
    timeout: float,
    seed: int,
) -> Tuning | None:
    """See :meth:`antiphon.Communicator.tune`."""
    given = _given(candidates or {}, when)
    kind = _TYPES.get(dtype, dtype)
    if kind not in _LETTERS:
        raise ArgumentError(f"there is no element type `{dtype}`; one of: {' '.join(_TYPES)}")
    made = _core.tune(
        core, given, collectives and list(collectives), sizes and list(sizes), kind, op, budget, timeout, seed
    )
    if made is None:
        return None
    return Tuning(json.loads(made))
