"""Runs a piece of code under torchrun, with the backend that it is told."""

import os
import pathlib
import re
import subprocess
import sys
import textwrap

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


def torchrun(folder: pathlib.Path, ranks: int, code: str, backend: str = "antiphon", options=(), end=True, **environment):
    """What rank 0 has said, with the result of torchrun."""
    script = folder / "script.py"
    script.write_text(PRELUDE + textwrap.dedent(code) + (EPILOGUE if end else ""))
    variables = {**os.environ, "BACKEND": backend, "OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    command += ["--master-port", str(free_port()), *options, str(script)]
    run = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=DEADLINE)
    return re.findall(r"^SAYS (.*)$", run.stdout, re.MULTILINE), run


def says(folder: pathlib.Path, ranks: int, code: str, backend: str = "antiphon", **environment) -> list[str]:
    """What rank 0 has said, if all ranks end well."""
    said, run = torchrun(folder, ranks, code, backend, **environment)
    assert run.returncode == 0, run.stdout + run.stderr
    return said
