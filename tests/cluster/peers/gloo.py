"""Times collectives of Gloo (torch.distributed) as `antiphon run` does: every repetition starts at a moment that rank 0
announces, and takes from the first start to the last end of any rank. All ranks must be on one computer, whose clock
they share.

    GLOO_SOCKET_IFNAME=eth0 python3 gloo.py RANK RANKS tcp://ADDRESS:PORT SECONDS COLLECTIVE:BYTES ...

Each measurement repeats for about SECONDS, and prints one line of JSON with its median in microseconds.
"""

import json
import sys
import time
from statistics import median

import torch
import torch.distributed as dist

LEAST, MOST = 3, 2000


def now():
    return time.monotonic_ns() / 1e3


def wait_until(moment):
    """The last 60 µs without sleeping, because waking up takes that long."""
    while (left := moment - now()) > 0:
        if left > 60:
            time.sleep((left - 60) / 1e6)


def prepared(collective, count, rank, ranks):
    """The call that is to be timed."""
    whole, part = torch.ones(count), torch.ones(count // ranks)
    if collective == "allreduce":
        return lambda: dist.all_reduce(whole)
    if collective == "allgather":
        parts = list(torch.zeros(count).chunk(ranks))
        return lambda: dist.all_gather(parts, part)
    if collective == "alltoall":
        received = torch.zeros(count)
        return lambda: dist.all_to_all_single(received, whole)
    if collective == "broadcast":
        return lambda: dist.broadcast(whole, 0)
    raise SystemExit(f"Gloo has no collective called {collective}")


def span(call):
    """The global span of one repetition, everywhere."""
    dist.barrier()
    moment = torch.tensor([now() + 3000], dtype=torch.float64)
    dist.broadcast(moment, 0)
    wait_until(moment.item())
    start = now()
    call()
    edges = torch.tensor([-start, now()], dtype=torch.float64)
    dist.all_reduce(edges, op=dist.ReduceOp.MAX)
    return edges.sum().item()


def main():
    rank, ranks, master, seconds = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=master, rank=rank, world_size=ranks)
    for cell in sys.argv[5:]:
        collective, size = cell.split(":")
        call = prepared(collective, int(size) // 4 // ranks * ranks, rank, ranks)
        turns = min(MOST, max(LEAST, int(seconds * 1e6 / (span(call) + 3000))))
        time_us = median(span(call) for _ in range(turns))
        if rank == 0:
            print(json.dumps({"collective": collective, "size_bytes": int(size), "time_us": round(time_us, 1)}), flush=True)
    dist.barrier()


main()
