"""A pipeline: every rank has some layers, and hands on activations and gradients. Several micro-batches are under way.

    torchrun --nproc-per-node 4 pipeline.py [--backend antiphon|gloo] [--steps 10]
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn

MICRO, ROWS, WIDTH = 4, 8, 32


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="antiphon")
    parser.add_argument("--steps", type=int, default=10)
    arguments = parser.parse_args()
    dist.init_process_group(arguments.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    stage = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.2)
    source = torch.Generator().manual_seed(0)
    data = torch.randn(MICRO, ROWS, WIDTH, generator=source)
    wanted = 0.3 * torch.tanh(data.roll(1, dims=2))
    first = last = 0.0
    for step in range(arguments.steps):
        inputs, outputs, sends, losses = [], [], [], []
        for micro in range(MICRO):
            x = data[micro].clone() if rank == 0 else torch.empty(ROWS, WIDTH)
            if rank > 0:
                dist.recv(x, rank - 1)
                x.requires_grad_()
            y = stage(x)
            inputs.append(x)
            outputs.append(y)
            if rank < size - 1:
                sends.append(dist.isend(y.detach(), rank + 1))
        optimizer.zero_grad()
        for micro in range(MICRO):
            if rank == size - 1:
                loss = nn.functional.mse_loss(outputs[micro], wanted[micro]) / MICRO
                loss.backward()
                losses.append(loss.item())
            else:
                gradient = torch.empty(ROWS, WIDTH)
                dist.recv(gradient, rank + 1)
                outputs[micro].backward(gradient)
            if rank > 0:
                sends.append(dist.isend(inputs[micro].grad, rank - 1))
        for send in sends:
            send.wait()
        optimizer.step()
        last = sum(losses)
        first = first or last
    if rank == size - 1:
        print(f"LOSS {first:.6f} {last:.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
