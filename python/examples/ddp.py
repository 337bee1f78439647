"""Data-parallel training of a small network on digits that are drawn here, so nothing is downloaded.

    torchrun --nproc-per-node 4 ddp.py [--backend antiphon|gloo] [--steps 60] [--tune]
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def digits(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures of 28 × 28 points with noise, as in MNIST: each digit is a pattern of its own, shifted by up to two points."""
    patterns = (torch.rand(10, 1, 28, 28, generator=torch.Generator().manual_seed(0)) > 0.7).float()
    source = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (count,), generator=source)
    pictures = patterns[labels]
    shifts = torch.randint(-2, 3, (count, 2), generator=source)
    moved = [picture.roll(tuple(shift.tolist()), dims=(1, 2)) for picture, shift in zip(pictures, shifts)]
    return torch.stack(moved) + 0.3 * torch.randn(count, 1, 28, 28, generator=source), labels


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="antiphon")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tune", action="store_true", help="measure the plans of the gradients after the first steps")
    arguments = parser.parse_args()
    dist.init_process_group(arguments.backend)
    rank = dist.get_rank()
    model = DistributedDataParallel(network(), bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    pictures, labels = digits(2048, seed=1 + rank)
    for step in range(arguments.steps):
        if step == 5 and arguments.tune:
            import antiphon.torch

            made = antiphon.torch.tune(budget=3.0)
            if rank == 0:
                print("TUNED", made)
        batch = slice(64 * step % 2048, 64 * step % 2048 + 64)
        loss = nn.functional.cross_entropy(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step}: loss {loss.item():.4f}")
    with torch.no_grad():
        tests, wanted = digits(512, seed=1000)
        right = (model(tests).argmax(1) == wanted).float().mean()
    dist.all_reduce(right, op=dist.ReduceOp.SUM)
    if rank == 0:
        print(f"ACCURACY {right.item() / dist.get_world_size():.3f}")
    # The model has threads of PyTorch's that use the group.
    del model, optimizer, loss
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
