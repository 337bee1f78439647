"""Training with parameters that are split over the ranks (FSDP2).

    torchrun --nproc-per-node 4 fsdp.py [--backend antiphon|gloo] [--steps 20]
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="antiphon")
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    dist.init_process_group(arguments.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, dim_feedforward=256, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(64, 1))
    for block in model[0].layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    source = torch.Generator().manual_seed(rank)
    first = last = 0.0
    for step in range(arguments.steps):
        x = torch.randn(16, 12, 64, generator=source)
        loss = nn.functional.mse_loss(model(x), x.mean(2, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # Every rank has losses of its own.
        mean = loss.detach().clone()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG if arguments.backend != "gloo" else dist.ReduceOp.SUM)
        last = mean.item()
        first = first or last
        if rank == 0 and step % 5 == 0:
            print(f"step {step}: loss {last:.5f}")
    if rank == 0:
        print(f"LOSS {first:.5f} {last:.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
