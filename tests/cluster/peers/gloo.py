"""Times collectives of Gloo (torch.distributed) as `antiphon run` does: every repetition starts at a moment that rank 0
announces, and takes from the first start to the last end of any rank. All ranks must be on one computer, whose clock
they share. Buffers are filled before every repetition, and results checked after the first and the last. Gloo's
AllReduce and Broadcast work in place only.

    GLOO_SOCKET_IFNAME=eth0 python3 gloo.py RANK RANKS tcp://ADDRESS:PORT SECONDS COLLECTIVE:BYTES ...

Each measurement repeats for about SECONDS, and prints one line of JSON with its median in microseconds.
"""

import json
import os
import sys
import time
from statistics import median

import torch
import torch.distributed as dist

LEAST, MOST, LEAD, AWAKE = 3, 2000, 1000, 300


def now():
    return time.monotonic_ns() / 1e3


def wait_until(moment):
    """The last of it without sleeping, because waking up takes that long."""
    while (left := moment - now()) > 0:
        if left > AWAKE:
            time.sleep((left - AWAKE) / 1e6)
        else:
            os.sched_yield()


class Job:
    """A collective with its buffers, and what they hold before and after."""

    def __init__(self, collective, count, rank, ranks):
        part = count // ranks
        # Small whole numbers, so that sums are exact.
        inputs = [(torch.arange(count) + 3 * other).remainder(64).float() for other in range(ranks)]
        mine = slice(rank * part, (rank + 1) * part)
        self.input, self.sent, self.received = inputs[rank], torch.empty(count), torch.empty(count)
        if collective == "allreduce":
            self.call, self.result, self.expected = lambda: dist.all_reduce(self.sent), self.sent, sum(inputs)
        elif collective == "allgather":
            self.input, self.sent = self.input[:part], torch.empty(part)
            parts = list(self.received.chunk(ranks))
            self.call, self.result = lambda: dist.all_gather(parts, self.sent), self.received
            self.expected = torch.cat([other[:part] for other in inputs])
        elif collective == "alltoall":
            self.call, self.result = lambda: dist.all_to_all_single(self.received, self.sent), self.received
            self.expected = torch.cat([other[mine] for other in inputs])
        elif collective == "broadcast":
            self.call, self.result, self.expected = lambda: dist.broadcast(self.sent, 0), self.sent, inputs[0]
        else:
            raise SystemExit(f"Gloo has no collective called {collective}")

    def check(self):
        if not torch.equal(self.result, self.expected):
            raise SystemExit("a result is wrong")


def span(job):
    """The global span of one repetition, everywhere."""
    job.sent.copy_(job.input)
    job.received.fill_(-1)
    dist.barrier()
    moment = torch.tensor([now() + LEAD], dtype=torch.float64)
    dist.broadcast(moment, 0)
    wait_until(moment.item())
    start = now()
    job.call()
    edges = torch.tensor([-start, now()], dtype=torch.float64)
    dist.all_reduce(edges, op=dist.ReduceOp.MAX)
    return edges.sum().item()


def main():
    rank, ranks, master, seconds = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=master, rank=rank, world_size=ranks)
    for cell in sys.argv[5:]:
        collective, size = cell.split(":")
        job = Job(collective, int(size) // 4 // ranks * ranks, rank, ranks)
        first = span(job)
        job.check()
        turns = min(MOST, max(LEAST, int(seconds * 1e6 / (first + LEAD))))
        time_us = median(span(job) for _ in range(turns))
        job.check()
        if rank == 0:
            print(json.dumps({"collective": collective, "size_bytes": int(size), "time_us": round(time_us, 1)}), flush=True)
    dist.barrier()


main()
