"""Planning from Python: the command that the wheel has inside does the work."""

from __future__ import annotations

import functools
import html
import json
import os
import pathlib
import subprocess
import tempfile
from typing import Any

from antiphon import _command
from antiphon._errors import ArgumentError, Error, InternalError, UnsupportedError

#: Rows and width of a drawn timeline, in pixels.
_ROW, _WIDTH, _LEFT = 18, 900, 90


def _run(*arguments: str) -> Any:
    """What the command answers, as `--json`."""
    command = _command.path()
    if command is None:
        raise UnsupportedError("this wheel was built without the command; `make wheel` builds one that has it")
    run = subprocess.run([command, *arguments, "--json", "--quiet"], capture_output=True, text=True)
    if run.returncode == 0:
        return json.loads(run.stdout)
    try:
        fault = json.loads(run.stderr.strip().splitlines()[-1])
    except (ValueError, IndexError):
        raise InternalError(f"the command ended with {run.returncode}: {run.stderr.strip()}") from None
    text = fault["text"] + (f" ({fault['hint']})" if fault.get("hint") else "")
    raise (ArgumentError if fault.get("kind") == "bad_input" else Error)(text)


class Topology:
    """A machine: ranks, and the links between them, with what a message costs.

    ``spec`` is what the command takes: a family (``"ring:8"``), a machine (``"ndv2x2"``), or the path of a file, such as one that
    ``antiphon profile`` has measured.
    """

    def __init__(self, spec: str | os.PathLike[str]) -> None:
        self.spec = os.fspath(spec)
        self._shown = _run("topology", "show", self.spec)

    @property
    def name(self) -> str:
        """Its name."""
        return str(self._shown["name"])

    @property
    def digest(self) -> str:
        """What tells it from all others."""
        return str(self._shown["digest"])

    @property
    def ranks(self) -> int:
        """How many ranks it has."""
        return int(self._shown["ranks"])

    @property
    def machines(self) -> list[list[int]]:
        """The ranks of each machine."""
        return list(self._shown["machines"])

    @property
    def links(self) -> list[dict[str, Any]]:
        """Its links: ``from``, ``to``, ``alpha_us`` (µs per message), ``beta_us_per_byte``, and more."""
        return list(self._shown["links"])

    def __repr__(self) -> str:
        return f"<antiphon.Topology {self.name}: {self.ranks} ranks, {len(self.links)} links>"

    def _repr_svg_(self) -> str:
        with tempfile.TemporaryDirectory() as folder:
            picture = pathlib.Path(folder) / "map.svg"
            _run("topology", "show", self.spec, "--svg", str(picture))
            return picture.read_text()


class Plan:
    """A verified plan of a collective. Times are in microseconds."""

    def __init__(self, report: dict[str, Any], text: str) -> None:
        #: What the planner says: all candidates, the bound, and why it stopped.
        self.report = report
        self._text = text

    @property
    def makespan(self) -> float:
        """When the last transfer has arrived, in µs."""
        return float(self.report["makespan_us"])

    @property
    def bound(self) -> float:
        """What no plan can beat, in µs."""
        return float(self.report["lower_bound_us"])

    @property
    def gap(self) -> float:
        """``makespan / bound - 1``."""
        return float(self.report["gap"])

    @property
    def strategy(self) -> str:
        """Which strategy has found it."""
        return str(self.report["strategy"])

    @functools.cached_property
    def timeline(self) -> list[dict[str, Any]]:
        """The transfers: ``chunks``, ``from``, ``to``, ``start_us``, ``end_us`` and more, as the plan's file has them. Compressed
        plans have only those that the symmetries of the machine turn into all others."""
        return list(json.loads(self._text)["transfers"])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan's file, which ``antiphon run`` and ``ANTIPHON_TABLE`` take."""
        pathlib.Path(path).write_text(self._text)

    def __repr__(self) -> str:
        what = f"{self.report['collective']} of {self.report['size_bytes']} bytes on {self.report['topology']['name']}"
        return f"<antiphon.Plan {what}: {self.makespan:.4g} µs, gap {self.gap:.2%}, {self.strategy}>"

    def _repr_svg_(self) -> str:
        lanes = sorted({(one["from"], one["to"]) for one in self.timeline})
        scale = _WIDTH / max(self.makespan, 1e-9)
        drawn = []
        for row, (source, target) in enumerate(lanes):
            drawn.append(f'<text x="4" y="{(row + 1) * _ROW - 5}" font-size="11">{source} → {target}</text>')
        for one in self.timeline:
            x, y = _LEFT + one["start_us"] * scale, lanes.index((one["from"], one["to"])) * _ROW + 2
            wide = max(1.0, (one["end_us"] - one["start_us"]) * scale)
            title = html.escape(f"chunks {one['chunks']}, {one['start_us']:.4g} to {one['end_us']:.4g} µs")
            drawn.append(
                f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{_ROW - 4}" fill="#4c78a8" stroke="white">'
                f"<title>{title}</title></rect>"
            )
        size = f'width="{_LEFT + _WIDTH + 10}" height="{len(lanes) * _ROW + 4}"'
        return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">{"".join(drawn)}</svg>'

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(repr(self))}, bound {self.bound:.4g} µs</p>{self._repr_svg_()}"


def synthesize(
    topology: Topology | str | os.PathLike[str],
    collective: str,
    size: int | str,
    *,
    root: int | None = None,
    op: str | None = None,
    members: str | None = None,
    sketch: str | os.PathLike[str] | None = None,
    strategy: str | None = None,
    chunks: int | None = None,
    time_limit: float | None = None,
    seed: int | None = None,
) -> Plan:
    """Plans a collective (``"allgather"``, ``"allreduce"``, …) of ``size`` bytes in all, as nccl-tests counts them, or
    ``"64MB"``.

    The options are those of ``antiphon synth``: ``members`` are ranks such as ``"0-3,6"``, ``time_limit`` is in seconds.
    """
    spec = topology.spec if isinstance(topology, Topology) else os.fspath(topology)
    given = {
        "--root": root,
        "--op": op,
        "--members": members,
        "--sketch": None if sketch is None else os.fspath(sketch),
        "--strategy": strategy,
        "--chunks": chunks,
        "--time-limit": None if time_limit is None else f"{time_limit}s",
        "--seed": seed,
    }
    options = [word for name, value in given.items() if value is not None for word in (name, str(value))]
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "plan.json"
        asked = ["--topology", spec, "--collective", collective, "--size", str(size), "-o", str(file)]
        report = _run("synth", *asked, *options)
        return Plan(report, file.read_text())
