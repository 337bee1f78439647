"""Inference with layers that are split over the ranks: many small all_reduces between matrix products, of sizes that change. The
plans are measured in the first second.

    torchrun --nproc-per-node 4 tensor_parallel.py [--backend antiphon|gloo] [--requests 40]
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn

WIDTH, HIDDEN, LAYERS = 128, 512, 4


class SplitLayer(nn.Module):
    """A block of two matrices; this rank has some columns of the first and the same rows of the second."""

    def __init__(self, first: torch.Tensor, second: torch.Tensor) -> None:
        super().__init__()
        rank, size = dist.get_rank(), dist.get_world_size()
        self.first = first.chunk(size, dim=1)[rank].contiguous()
        self.second = second.chunk(size, dim=0)[rank].contiguous()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        part = torch.relu(x @ self.first) @ self.second
        dist.all_reduce(part)
        return x + part


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="antiphon")
    parser.add_argument("--requests", type=int, default=40)
    arguments = parser.parse_args()
    dist.init_process_group(arguments.backend)
    source = torch.Generator().manual_seed(0)
    whole = [
        (torch.randn(WIDTH, HIDDEN, generator=source) / WIDTH**0.5, torch.randn(HIDDEN, WIDTH, generator=source) / HIDDEN**0.5)
        for _ in range(LAYERS)
    ]
    model = nn.Sequential(*(SplitLayer(*layer) for layer in whole))
    tuning = None
    if arguments.backend == "antiphon":
        import antiphon.torch

        sizes = [4 * WIDTH * tokens for tokens in (1, 8, 64)]
        tuning = antiphon.torch.tune(budget=1.5, collectives=["all_reduce"], sizes=sizes)
    worst, took = 0.0, []
    with torch.no_grad():
        for request in range(arguments.requests):
            tokens = (1, 3, 8, 17, 64)[request % 5]
            x = torch.randn(tokens, WIDTH, generator=source)
            since = time.perf_counter()
            got = model(x)
            took.append(time.perf_counter() - since)
            for first, second in whole:
                x = x + torch.relu(x @ first) @ second
            worst = max(worst, (got - x).abs().max().item())
    if dist.get_rank() == 0:
        print(f"WORST {worst:.2e}, {1e6 * sorted(took)[len(took) // 2]:.0f} µs for a request, {tuning}")
        if tuning is not None:
            print(antiphon.torch.explain())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
