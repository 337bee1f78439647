"""Training with the backend, next to Gloo: the losses have the same bits."""

import pytest
import torch
from torchrun import needs, says

DATA = """
import torch.nn as nn
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
own = torch.Generator().manual_seed(1 + rank)
def batch():
    return torch.randn(32, 64, generator=own), torch.randint(0, 10, (32,), generator=own)
def train(run, parameters, steps=8):
    optimizer = torch.optim.SGD(parameters, 0.1, momentum=0.9)
    for _ in range(steps):
        x, y = batch()
        loss = nn.functional.cross_entropy(run(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        say(loss.item().hex())
"""
DDP = """
from torch.nn.parallel import DistributedDataParallel
net = DistributedDataParallel(model(), bucket_cap_mb=0.02)
train(net, net.parameters())
# Gradients that are accumulated, and parameters that are not used in a step.
with net.no_sync():
    net(batch()[0]).sum().backward()
"""
FSDP2 = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
mesh = init_device_mesh("cpu", (size,))
net = model()
for layer in net:
    if isinstance(layer, nn.Linear):
        fully_shard(layer, mesh=mesh)
fully_shard(net, mesh=mesh)
train(net, net.parameters())
"""
TENSOR_PARALLEL = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
mesh = init_device_mesh("cpu", (size,))
net = model()
whole = net(torch.ones(3, 64))
net = parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
with torch.no_grad():
    got = net(torch.ones(3, 64))
torch.testing.assert_close(got, whole)
say(got.sum().item().hex())
"""
PIPELINE = """
torch.manual_seed(0)
stage = nn.Linear(16, 16)
for number in range(6):
    x = torch.full((4, 16), float(number))
    if rank > 0:
        dist.recv(x, rank - 1)
    y = stage(x).detach()
    if rank < size - 1:
        dist.send(y, rank + 1)
    last = y.clone()
    dist.broadcast(last, size - 1)
    say(last.sum().item().hex())
"""
DTENSOR = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
mesh = init_device_mesh("cpu", (size,))
torch.manual_seed(0)
whole = torch.randn(8, 12)
rows = distribute_tensor(whole, mesh, [Shard(0)])
columns = rows.redistribute(mesh, [Shard(1)])
torch.testing.assert_close(columns.full_tensor(), whole, rtol=0, atol=0)
part = DTensor.from_local(whole, mesh, [Partial()])
say(part.redistribute(mesh, [Shard(0)]).full_tensor().sum().item().hex())
say((rows @ distribute_tensor(whole.t().contiguous(), mesh, [Replicate()])).full_tensor().sum().item().hex())
"""
RECIPES = {"ddp": DDP, "fsdp2": FSDP2, "tensor_parallel": TENSOR_PARALLEL, "pipeline": PIPELINE, "dtensor": DTENSOR}


def reference(folder, ranks, recipe):
    """What Gloo gets; or DDP, where Gloo adds the gradients of FSDP2 although it is told to average them."""
    if recipe == "fsdp2" and not hasattr(torch.distributed.ProcessGroup, "all_gather_single"):
        return says(folder, ranks, DATA + DDP)
    return says(folder, ranks, DATA + RECIPES[recipe], "gloo")


def needs_of(recipe):
    if "device_mesh" in RECIPES[recipe]:
        needs("torch.distributed.device_mesh")


@pytest.mark.parametrize("recipe", RECIPES)
def test_two_ranks_get_the_same_bits_as_with_gloo(tmp_path, recipe):
    needs_of(recipe)
    ours, theirs = says(tmp_path, 2, DATA + RECIPES[recipe]), reference(tmp_path, 2, recipe)
    assert ours == theirs and ours


@pytest.mark.parametrize("recipe", ["ddp", "fsdp2", "pipeline"])
def test_four_ranks_train_alike(tmp_path, recipe):
    """With more than two ranks the order of additions differs, so losses agree to rounding."""
    needs_of(recipe)
    ours, theirs = says(tmp_path, 4, DATA + RECIPES[recipe]), reference(tmp_path, 4, recipe)
    assert len(ours) == len(theirs) > 0
    for own, other in zip(ours, theirs):
        assert float.fromhex(own) == pytest.approx(float.fromhex(other), rel=1e-4)
