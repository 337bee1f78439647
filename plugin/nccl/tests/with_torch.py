"""PyTorch on GPUs, with whatever NCCL it finds: collectives, and training by DDP, next to what one process computes alone.

    torchrun --nproc-per-node 2 plugin/nccl/tests/with_torch.py

Ranks share GPUs where there are fewer of them. Rank 0 says what it has checked; wrong results end it with an error."""

import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def collectives(rank: int, ranks: int, device: torch.device) -> int:
    """How many results were checked. Whole numbers, so that each order of additions gives the same."""
    checked = 0
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        for count in (1, 1000, 1_000_000):
            base = torch.arange(count, device=device) % 7
            own = (base + rank).to(dtype)
            total = sum(base + other for other in range(ranks)).to(dtype)
            value = own.clone()
            dist.all_reduce(value)
            assert torch.equal(value, total), ("all_reduce", dtype, count)
            gathered = torch.empty(ranks * count, dtype=dtype, device=device)
            dist.all_gather_into_tensor(gathered, own)
            assert torch.equal(gathered, torch.cat([(base + other).to(dtype) for other in range(ranks)])), "all_gather"
            scattered = torch.empty(count, dtype=dtype, device=device)
            dist.reduce_scatter_tensor(scattered, gathered)
            assert torch.equal(scattered, ((base + rank) * ranks).to(dtype)), ("reduce_scatter", dtype, count)
            value = own.clone()
            dist.broadcast(value, ranks - 1)
            assert torch.equal(value, (base + ranks - 1).to(dtype)), ("broadcast", dtype, count)
            checked += 4
    return checked


def model() -> torch.nn.Module:
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(64, 300), torch.nn.ReLU(), torch.nn.Linear(300, 10))


def trained(rank: int, ranks: int, device: torch.device) -> float:
    """The greatest difference between weights of DDP and of one process that has all the data."""
    torch.manual_seed(11)
    data, wanted = torch.randn(16 * ranks, 64, device=device), torch.randn(16 * ranks, 10, device=device)
    shared, alone = DistributedDataParallel(model().to(device)), model().to(device)
    own = slice(16 * rank, 16 * rank + 16)
    for net, part in ((shared, own), (alone, slice(None))):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(net(data[part]), wanted[part]).backward()
            optimizer.step()
    pairs = zip(shared.module.parameters(), alone.parameters(), strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)


def in_a_graph(rank: int, ranks: int, device: torch.device) -> int:
    """A recorded all_reduce that is repeated. How many results were checked."""
    own, value = torch.arange(5000, device=device) % 7 + rank, torch.zeros(5000, dtype=torch.int64, device=device)
    dist.all_reduce(value)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # Other threads of PyTorch go on to ask for events meanwhile.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        value.copy_(own)
        dist.all_reduce(value)
    for call in range(3):
        own.add_(call)
        graph.replay()
        torch.cuda.synchronize()
        steps = sum(range(call + 1))
        wanted = sum(torch.arange(5000, device=device) % 7 + other + steps for other in range(ranks))
        assert torch.equal(value, wanted), ("graph", call)
    return 3


def microseconds(count: int, device: torch.device) -> float:
    """Of one all_reduce of so many floats."""
    value = torch.ones(count, device=device)
    for _ in range(5):
        dist.all_reduce(value)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(20):
        dist.all_reduce(value)
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / 20 * 1e6


def main() -> None:
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    checked, difference = collectives(rank, ranks, device), trained(rank, ranks, device)
    checked += in_a_graph(rank, ranks, device)
    assert difference < 1e-5, difference
    times = {4 * count: round(microseconds(count, device), 1) for count in (256, 262_144, 4_194_304)}
    if rank == 0:
        print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, {ranks} ranks: {checked} results right, "
              f"DDP differs by {difference:.1e}, all_reduce in µs by bytes: {times}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
