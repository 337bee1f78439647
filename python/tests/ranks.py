"""Runs a piece of code in several processes, as the ranks of a communicator."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import textwrap
import time

#: What every piece of code may use. `comm` is the communicator of all ranks.
PRELUDE = """
import os, signal, sys, time
import antiphon
comm = antiphon.Communicator.from_env()
rank, size = comm.rank, comm.size
"""
#: Ranks that take longer than this have failed.
DEADLINE = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Ranks:
    """The processes of a run."""

    def __init__(self, count: int, code: str, python: str = sys.executable, **environment: str) -> None:
        master, secret = f"127.0.0.1:{free_port()}", secrets.token_hex(16)
        code = PRELUDE + textwrap.dedent(code)
        self.processes = []
        for rank in range(count):
            variables = {
                **os.environ,
                "ANTIPHON_RANK": str(rank),
                "ANTIPHON_SIZE": str(count),
                "ANTIPHON_MASTER": master,
                "ANTIPHON_SECRET": secret,
                **environment,
            }
            self.processes.append(
                subprocess.Popen(
                    [python, "-c", code],
                    env=variables,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )

    def line(self, rank: int) -> str:
        """The next line that a rank says."""
        return self.processes[rank].stdout.readline().strip()

    def end(self, expected: dict[int, int] | None = None) -> list[str]:
        """What the ranks have said. They must end by themselves: with 0, unless `expected` says otherwise."""
        until = time.monotonic() + DEADLINE
        said = []
        try:
            for rank, process in enumerate(self.processes):
                output, errors = process.communicate(timeout=max(0.1, until - time.monotonic()))
                wanted = (expected or {}).get(rank, 0)
                assert process.returncode == wanted, f"rank {rank} ended with {process.returncode}:\n{output}{errors}"
                said.append(output.strip())
        finally:
            for process in self.processes:
                process.kill()
        return said


def together(count: int, code: str, **environment: str) -> list[str]:
    """Runs the code as so many ranks. What each of them has said."""
    return Ranks(count, code, **environment).end()
