"""Training that goes on after a rank has died: torchrun starts all ranks again, and they go on from the last file.

    torchrun --nproc-per-node 4 --max-restarts 2 elastic.py FOLDER [--die-at 7]
"""

import argparse
import os
import pathlib
import signal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--backend", default="antiphon")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--die-at", type=int, help="rank 1 ends without a word at this step of the first attempt")
    arguments = parser.parse_args()
    dist.init_process_group(arguments.backend)
    rank, attempt = dist.get_rank(), int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    file = arguments.folder / "checkpoint.pt"
    begin = 0
    if file.exists():
        saved = torch.load(file)
        begin = saved["step"]
        model.load_state_dict(saved["model"])
    for step in range(begin, arguments.steps):
        if attempt == 0 and rank == 1 and step == arguments.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        x = torch.randn(32, 16, generator=torch.Generator().manual_seed(1000 * step + rank))
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            part = file.with_suffix(".part")
            torch.save({"step": step + 1, "model": model.state_dict()}, part)
            part.replace(file)
    if rank == 0:
        print(f"DONE attempt {attempt} from step {begin}, loss {loss.item():.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
