"""How long a call from Python takes: latency.py numpy, or under torchrun latency.py antiphon|gloo [slow].

    torchrun --nproc-per-node 2 python/bench/latency.py gloo

`slow` is for slow networks: only long calls, and few of them. `python/bench/hosts.sh` runs it between unequal hosts.
"""

import statistics
import sys
import time


def report(name: str, call, barrier, is_first: bool, calls: int, repeats: int = 9) -> None:
    """The median of some rounds of calls back to back, in µs for each call."""
    rounds = []
    for _ in range(repeats):
        barrier()
        since = time.perf_counter()
        for _ in range(calls):
            call()
        rounds.append((time.perf_counter() - since) / calls * 1e6)
    if is_first:
        print(f"{name}: {statistics.median(rounds):.2f} µs", flush=True)


def main(backend: str, is_slow: bool) -> None:
    if backend == "numpy":
        import antiphon
        import numpy

        comm = antiphon.Communicator.from_env()
        for count in (1, 1 << 10, 1 << 14, 1 << 20):
            x = numpy.zeros(count, numpy.float32)
            calls = max(20, min(5000, (1 << 24) // (count + 1000)))
            report(f"NumPy, {4 * count} bytes", lambda: comm.all_reduce(x), comm.barrier, comm.rank == 0, calls)
        return
    import torch
    import torch.distributed as dist

    dist.init_process_group(backend)
    is_first = dist.get_rank() == 0
    for count in (1 << 18, 10 << 18) if is_slow else (1, 1 << 10, 1 << 14, 1 << 20):
        x = torch.zeros(count)
        calls = 3 if is_slow else max(20, min(1000, (1 << 24) // (count + 10000)))
        report(f"{backend}, {4 * count} bytes", lambda: dist.all_reduce(x), dist.barrier, is_first, calls, 5 if is_slow else 9)
    net = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(10)])
    torch.set_num_threads(1)
    model = torch.nn.parallel.DistributedDataParallel(net)
    x = torch.randn(32, 512)
    step = f"{backend}, a step of DDP, 10 MB of gradients"
    report(step, lambda: model(x).sum().backward(), dist.barrier, is_first, 3 if is_slow else 5, 5 if is_slow else 9)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], "slow" in sys.argv[2:])
