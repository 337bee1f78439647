"""Runs a piece of code as the ranks of a job, under torchrun or without it, with the backend that it is told."""

import contextlib
import functools
import importlib.metadata
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import textwrap

import pytest
from preloaded import Preloaded
from ranks import free_port

PRELUDE = """
import datetime, os, sys, torch
import torch.distributed as dist
BACKEND = os.environ["BACKEND"]
if not hasattr(dist.ProcessGroup, "all_gather_single"):
    import antiphon.torch
limit = datetime.timedelta(seconds=float(os.environ.get("LIMIT", "60")))
dist.init_process_group(BACKEND, timeout=limit)
rank, size = dist.get_rank(), dist.get_world_size()
def say(*values):
    if rank == 0:
        print("SAYS", *values, flush=True)
"""
# Gloo, which only says here what is right, sometimes aborts while a process ends ("terminate called without an active exception").
EPILOGUE = """
if BACKEND == "gloo":
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)
dist.destroy_process_group()
"""
DEADLINE = 150
IS_OLD = int(importlib.metadata.version("torch").split(".")[0]) < 2


def needs(module: str) -> None:
    """Skips a test on versions of PyTorch that have no such module."""
    if not has(module):
        pytest.skip(f"this version of PyTorch has no {module}")


def has(module: str) -> bool:
    with contextlib.suppress(ImportError):
        return importlib.util.find_spec(module) is not None
    return False


def torchrun(folder: pathlib.Path, ranks: int, code: str, options=(), end=True, **environment):
    """What rank 0 has said, with the result of torchrun."""
    if IS_OLD:
        pytest.skip("torchrun of Debian's PyTorch 1.13 does not start")
    variables = {**os.environ, "BACKEND": "antiphon", "OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(ranks)]
    command += ["--master_port", str(free_port()), *options, str(script(folder, code, end))]
    run = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=DEADLINE)
    return said(run.stdout), run


def says(folder: pathlib.Path, ranks: int, code: str, backend: str = "antiphon", **environment) -> list[str]:
    """What rank 0 has said, if all ranks end well. No torchrun is needed for it."""
    return said(prints(folder, ranks, [script(folder, code)], BACKEND=backend, **environment))


def prints(folder: pathlib.Path, ranks: int, command: list, accepted=frozenset({0}), **environment: str) -> str:
    """What the ranks print, if all of them end as accepted."""
    codes, output = preloaded().run(folder, ranks, [str(part) for part in command], DEADLINE, environment)
    assert set(codes) <= accepted, f"{codes}\n{output}"
    return output


@functools.cache
def preloaded() -> Preloaded:
    return Preloaded()


def script(folder: pathlib.Path, code: str, end: bool = True) -> pathlib.Path:
    path = folder / "script.py"
    path.write_text(PRELUDE + textwrap.dedent(code) + (EPILOGUE if end else ""))
    return path


def said(output: str) -> list[str]:
    return re.findall(r"^SAYS (.*)$", output, re.MULTILINE)
