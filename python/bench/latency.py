"""How long a call from Python takes: latency.py numpy, or under torchrun latency.py antiphon|gloo|nothing [slow].

    torchrun --nproc-per-node 2 python/bench/latency.py gloo

`nothing` is a backend that does nothing: what PyTorch itself takes for a call, which no backend is below. `slow` is for slow networks: only long calls, and few of them. `python/bench/hosts.sh` runs it between unequal hosts.
"""

import statistics
import sys
import time


def report(name: str, call, barrier, is_first: bool, calls: int, repeats: int = 9) -> None:
    """The median of some rounds of calls back to back, and the least one, in µs for each call."""
    rounds = []
    for _ in range(repeats):
        barrier()
        since = time.perf_counter()
        for _ in range(calls):
            call()
        rounds.append((time.perf_counter() - since) / calls * 1e6)
    if is_first:
        print(f"{name}: {statistics.median(rounds):.2f} µs, at least {min(rounds):.2f}", flush=True)


def register_nothing() -> None:
    """A backend that does nothing, with PyTorch 2.14 or newer."""
    import torch
    from antiphon.torch._backend import AntiphonBackend
    from antiphon.torch._group import Group
    from antiphon.torch._work import DONE

    class Nothing(AntiphonBackend):
        def allreduce(self, tensors, opts=None):
            return DONE

    def make(store, rank, size, timeout):
        return Nothing(Group.of(store, rank, size, timeout, "nothing", list(range(size))))

    torch.distributed.Backend.register_backend("nothing", make, devices=["cpu"])


def there_and_back(dist, x) -> None:
    """A message from rank 0 to rank 1, and one back."""
    if dist.get_rank() == 0:
        dist.send(x, 1)
        dist.recv(x, 1)
    else:
        dist.recv(x, 0)
        dist.send(x, 0)


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

    if backend == "nothing":
        register_nothing()
    dist.init_process_group(backend)
    is_first = dist.get_rank() == 0
    for count in (1 << 18, 10 << 18) if is_slow else (1, 1 << 10, 1 << 14, 1 << 20):
        x = torch.zeros(count)
        calls = 3 if is_slow else max(20, min(1000, (1 << 24) // (count + 10000)))
        report(f"{backend}, {4 * count} bytes", lambda: dist.all_reduce(x), dist.barrier, is_first, calls, 5 if is_slow else 9)
    if backend == "nothing":
        dist.destroy_process_group()
        return
    if dist.get_world_size() == 2 and not is_slow:
        for count in (1, 1 << 14, 1 << 20):
            x = torch.zeros(count)
            calls = max(20, min(300, (1 << 23) // (count + 10000)))
            name = f"{backend}, send and recv of {4 * count} bytes, there and back"
            report(name, lambda: there_and_back(dist, x), dist.barrier, is_first, calls)
    net = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(10)])
    torch.set_num_threads(1)
    model = torch.nn.parallel.DistributedDataParallel(net)
    x = torch.randn(32, 512)
    step = f"{backend}, a step of DDP, 10 MB of gradients"
    report(step, lambda: model(x).sum().backward(), dist.barrier, is_first, 3 if is_slow else 5, 5 if is_slow else 9)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], "slow" in sys.argv[2:])
