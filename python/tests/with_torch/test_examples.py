"""The programs of `python/examples`, as torchrun starts them, and without it where they are compared with Gloo."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
import torch.distributed as dist
from ranks import free_port
from torchrun import DEADLINE, prints

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
#: Older versions of PyTorch find the backend only after an import.
ENTRY_POINTS = hasattr(dist.ProcessGroup, "all_gather_single")


def run(name, *arguments, ranks=4, options=()):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--master-port", str(free_port())]
    command += [*options, str(EXAMPLES / f"{name}.py"), *map(str, arguments)]
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    ended = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=DEADLINE)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def printed(folder, name, backend, *arguments, ranks=4):
    """What the ranks print, which no torchrun has started."""
    # Threads of Gloo's sometimes end the interpreter with SIGABRT, after all was printed (pull request 179291 of PyTorch).
    accepted = {0, -6} if backend == "gloo" else {0}
    return prints(folder, ranks, [EXAMPLES / f"{name}.py", "--backend", backend, *arguments], accepted)


def number(pattern, text):
    found = re.search(pattern, text)
    assert found, text
    return [float(value) for value in found.groups()]


pytestmark = pytest.mark.skipif(not ENTRY_POINTS, reason="the examples do not import the backend")


def test_data_parallel_training_learns_and_tunes():
    said = run("ddp", "--steps", 40, "--tune", ranks=2)
    assert "TUNED <antiphon.Tuning" in said
    (accuracy,) = number(r"ACCURACY ([\d.]+)", said)
    # One in ten by chance.
    assert accuracy > 0.3, said


def test_data_parallel_training_gets_what_gloo_gets(tmp_path):
    ours, theirs = (re.findall(r"loss ([\d.]+)", printed(tmp_path, "ddp", of, "--steps", 21)) for of in ("antiphon", "gloo"))
    assert len(ours) == len(theirs) == 3
    for own, other in zip(ours, theirs):
        assert float(own) == pytest.approx(float(other), rel=0.02)


def test_sharded_training_learns():
    first, last = number(r"LOSS ([\d.]+) ([\d.]+)", run("fsdp", ranks=2))
    assert last < first / 2


def test_tensor_parallel_inference_is_right_and_tuned():
    said = run("tensor_parallel")
    (worst,) = number(r"WORST ([\d.e+-]+)", said)
    assert worst < 1e-3 and "<antiphon.Tuning" in said and "all_reduce" in said


def test_a_pipeline_learns_as_with_gloo(tmp_path):
    ours, theirs = (number(r"LOSS ([\d.]+) ([\d.]+)", printed(tmp_path, "pipeline", of)) for of in ("antiphon", "gloo"))
    # Messages are not reduced, so every bit is the same.
    assert ours == theirs and ours[1] < ours[0]


def test_training_goes_on_after_a_rank_was_killed(tmp_path):
    said = run("elastic", tmp_path, "--die-at", 7, options=["--max-restarts", "2"])
    attempt, begin = number(r"DONE attempt (\d+) from step (\d+)", said)
    assert attempt == 1 and begin >= 6
