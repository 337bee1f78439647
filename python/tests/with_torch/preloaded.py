"""Ranks that need not import PyTorch: a process that has imported it is forked. The test
holds their store, as torchrun does.

An import takes three seconds of a processor, and a test by torchrun needs one for each rank and one for torchrun.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import time

#: What the ranks of the tests import. Older versions of PyTorch lack some of it.
MODULES = [
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.distributed._functional_collectives",
    "torch.nn.parallel",
]
#: How long ranks may still run when one of them has failed, in seconds.
AFTER_A_FAILURE = 5.0


class Preloaded:
    """The process that has imported PyTorch, as the tests see it."""

    def __init__(self) -> None:
        variables = {**os.environ, "OMP_NUM_THREADS": "1"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen([sys.executable, __file__], env=variables, text=True, **pipes)
        atexit.register(self._process.kill)

    def run(self, folder: pathlib.Path, ranks: int, command: list[str], limit: float, environment: dict[str, str]) -> tuple[list[int], str]:
        """What the ranks end with, and what they print; `command` is a script with its arguments. The store of the ranks is here."""
        import torch.distributed as dist

        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        variables = {
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            "GROUP_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": "0",
            **environment,
        }
        output = folder / "output"
        output.write_text("")
        job = {"ranks": ranks, "command": command, "limit": limit, "variables": variables, "output": str(output)}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the process that has imported PyTorch has ended"
        return json.loads(answer), output.read_text(errors="replace")


def serve() -> tuple[int, dict] | None:
    """Forks the ranks of every job that is read. Returns the rank and its job in a rank, and nothing at the end of the input."""
    for name in MODULES:
        # A ValueError: Debian's PyTorch 1.13 with its Python 3.11.
        with contextlib.suppress(ImportError, ValueError):
            importlib.import_module(name)
    while line := sys.stdin.readline():
        job = json.loads(line)
        processes = []
        for rank in range(job["ranks"]):
            process = os.fork()
            if process == 0:
                return rank, job
            processes.append(process)
        print(json.dumps(wait_for(processes, job["limit"])), flush=True)
    return None


def wait_for(processes: list[int], limit: float) -> list[int]:
    """The exit codes of the ranks: negative for signals. Ranks that take too long are killed."""
    until = time.monotonic() + limit
    codes: dict[int, int] = {}
    while len(codes) < len(processes):
        for process in set(processes) - set(codes):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                codes[process] = os.waitstatus_to_exitcode(status)
                if codes[process] != 0:
                    until = min(until, time.monotonic() + AFTER_A_FAILURE)
        if time.monotonic() > until:
            for process in set(processes) - set(codes):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.005)
    return [codes[process] for process in processes]


def become(rank: int, job: dict) -> None:
    """Runs the job's script in this process, as one of its ranks."""
    output = os.open(job["output"], os.O_WRONLY | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for opened, standard in [(nothing, 0), (output, 1), (output, 2)]:
        os.dup2(opened, standard)
    os.environ.update(job["variables"], RANK=str(rank), LOCAL_RANK=str(rank))
    sys.argv = job["command"]
    sys.path[0] = os.path.dirname(sys.argv[0])
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    if found := serve():
        # The interpreter ends after this as that of any program does.
        become(*found)
