"""Tuning a process group, and calls of several tensors."""

import json

import pytest
from torchrun import needs, says

check = says


def test_a_group_is_tuned_by_what_it_has_called(tmp_path):
    said = says(
        tmp_path,
        2,
        """
import json, antiphon.torch
for _ in range(3):
    dist.all_reduce(torch.ones(1000))
    dist.all_gather_into_tensor(torch.zeros(2000), torch.ones(1000))
if rank == 0:
    dist.send(torch.ones(3), 1)
else:
    dist.recv(torch.ones(3), 0)
tuning = antiphon.torch.tune(budget=1.0)
# A guideline may ask for a half of an AllReduce, too.
say(sorted({row["collective"] for row in tuning.rows} - {"reducescatter"}))
say(json.dumps(sorted({one["bytes"] for cell in tuning.table["cells"] for part in cell["ranges"] for one in part["evidence"]})))
x = torch.full((1000,), 1.0 + rank)
dist.all_reduce(x)
assert (x == 3).all()
assert "all_reduce, 4000 bytes of f32: 1 calls" in antiphon.torch.explain(), antiphon.torch.explain()
""",
    )
    assert said[0] == "['allgather', 'allreduce']"
    sizes = json.loads(said[1])
    assert {4000, 8000} <= set(sizes), sizes


def test_a_group_has_a_table_of_its_own_and_candidates_compete(tmp_path):
    said = says(
        tmp_path,
        3,
        """
import antiphon, antiphon.torch
part = dist.new_group([0, 2])
if rank != 1:
    def wrong(comm, call):
        comm.all_reduce(call.out)
        call.out[-1] += comm.rank
    tuning = antiphon.torch.tune(part, budget=0.5, candidates={"wrong": wrong}, collectives=["all_reduce"], sizes=[400])
    assert tuning.table["key"]["ranks"] == 2
    say([(one["name"], one["rank"]) for one in tuning.refused])
    x = torch.ones(100)
    dist.all_reduce(x, group=part)
    assert (x == 2).all()
x = torch.ones(100)
dist.all_reduce(x)
assert (x == 3).all()
alone = dist.new_group([0, 1, 2], backend="gloo")
try:
    antiphon.torch.tune(alone, budget=0.5)
except antiphon.ArgumentError as error:
    assert rank != 0 or "no backend antiphon" in str(error)
except Exception as error:
    raise AssertionError(type(error)) from error
""",
    )
    assert said == ["[('wrong', 1)]"]


def test_lists_of_tensors_make_few_calls(tmp_path):
    check(
        tmp_path,
        3,
        """
import antiphon.torch
from antiphon.torch._tune import group_of
own = group_of()
def calls(name):
    return sum(counted[1] for key, counted in own.calls.items() if key[0] == name)
def sums(is_async):
    tensors = [torch.arange(1000) + float(rank + at) for at in range(64)]
    tensors += [torch.full((7,), rank + 1.0), torch.ones(50, 2).t() * rank, torch.zeros(0), torch.ones(100_000), torch.tensor(2.0)]
    work = dist.all_reduce_coalesced(tensors, async_op=is_async) if hasattr(dist, "all_reduce_coalesced") else None
    if is_async:
        work.wait()
    for at in range(64):
        assert torch.equal(tensors[at], 3 * torch.arange(1000.0) + 3 * at + 3)
    assert tensors[64].tolist() == [6] * 7 and torch.equal(tensors[65], torch.full((2, 50), 3.0))
    assert (tensors[67] == 3).all() and tensors[68].item() == 6
addresses = set()
for step in range(20):
    before = calls("all_reduce")
    sums(step % 2 == 1)
    # All small ones together, and the large one.
    assert calls("all_reduce") - before == 2, calls("all_reduce") - before
    addresses.add(tuple(sorted(b.data_ptr() for free in own.staging._free.values() for b in free)))
assert len(addresses) == 1, "the buffers stay where they are"
# Two at a time do not share a buffer.
one, two = [torch.ones(10), torch.ones(20)], [torch.full((10,), 5.0), torch.full((20,), 5.0)]
works = [dist.all_reduce_coalesced(part, async_op=True) for part in (one, two)]
for work in reversed(works):
    work.wait()
assert (one[1] == 3).all() and (two[0] == 15).all()
""",
    )


def test_calls_of_lists_find_the_same_memory_again(tmp_path):
    check(
        tmp_path,
        2,
        """
import antiphon.torch
from antiphon.torch._tune import group_of
core, seen = group_of().core, []
class Watched:
    # Which memory the library is given.
    def __getattr__(self, name):
        return getattr(core, name)
    def collective_at(self, name, send, receive, *rest):
        seen[-1].append((name, send, receive))
        return core.collective_at(name, send, receive, *rest)
    def exchange_at(self, send, counts, receive, *rest):
        seen[-1].append(("exchange", send, receive))
        return core.exchange_at(send, counts, receive, *rest)
group_of().core = Watched()
mine, parts = torch.full((1000,), rank + 1.0), [torch.empty(1000) for _ in range(size)]
out, small = torch.empty(1000), [torch.ones(8 * at + 8) for at in range(10)]
for step in range(1000):
    seen.append([])
    # In between, other memory comes and goes.
    other = torch.empty(1000 + step % 7)
    dist.all_gather(parts, mine)
    dist.reduce_scatter(out, parts)
    dist.all_to_all(parts, [mine, mine])
    dist.gather(mine, parts if rank == 0 else None, dst=0)
    dist.scatter(out, parts if rank == 0 else None, src=0)
    if hasattr(dist, "all_reduce_coalesced"):
        dist.all_reduce_coalesced(small)
        [tensor.fill_(1) for tensor in small]
assert all(calls == seen[1] for calls in seen[1:]), "the memory moves"
assert torch.equal(torch.stack(parts)[:, 0], torch.tensor([1.0, 2.0])) or rank
""",
    )


def test_gathers_and_scatters_of_lists(tmp_path):
    needs("torch.distributed._functional_collectives")
    check(
        tmp_path,
        3,
        """
import torch.distributed._functional_collectives as functional
inputs = [torch.full((4,), float(rank)), torch.arange(6.0).view(2, 3) + 10 * rank, torch.ones(50_000)]
outs = functional.all_gather_into_tensor_coalesced(inputs, dist.group.WORLD)
assert torch.equal(outs[0], torch.arange(3.0).repeat_interleave(4))
assert torch.equal(outs[1], torch.cat([torch.arange(6.0).view(2, 3) + 10 * of for of in range(3)]))
assert outs[2].sum() == 150_000
inputs = [torch.arange(6.0) + rank, torch.arange(12.0).view(6, 2) * (rank + 1), torch.ones(3 * 50_000)]
outs = functional.reduce_scatter_tensor_coalesced(inputs, "sum", [0, 0, 0], dist.group.WORLD)
assert torch.equal(outs[0], 3 * torch.arange(6.0)[2 * rank : 2 * rank + 2] + 3)
assert torch.equal(outs[1], 6 * torch.arange(12.0).view(6, 2)[2 * rank : 2 * rank + 2])
assert (outs[2] == 3).all() and len(outs[2]) == 50_000
""",
    )


def test_what_is_slower_than_it_could_be_is_said(tmp_path):
    said = says(
        tmp_path,
        2,
        """
import antiphon.torch
dist.all_reduce(torch.ones(4, 4).t()[1:])
dist.all_reduce(torch.ones(4, dtype=torch.int16))
say(antiphon.torch.explain().replace(chr(10), " | "))
""",
    )
    assert "1 times: a tensor is copied, because it is not contiguous" in said[0]
    assert "no RedOpType.SUM of torch.int16" in said[0] or "of torch.int16" in said[0]


@pytest.mark.parametrize("level", ["OFF", "DETAIL"])
def test_a_monitored_barrier_names_who_did_not_come(tmp_path, level):
    said = says(
        tmp_path,
        4,
        """
backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
# PyTorch's own function is for Gloo alone before 2.15, and for backends, which groups are not where it looks closely.
whole = dist.distributed_c10d._get_default_group()
is_known = torch.device("cpu") in (getattr(whole, "_device_types", None) or ()) and hasattr(whole, "monitored_barrier")
dist.monitored_barrier() if is_known and torch.__version__ >= "2.15" else backend.monitored_barrier()
backend.set_timeout(datetime.timedelta(seconds=1))
store = dist.distributed_c10d._get_default_store()
if rank in (1, 3):
    # They come when all others have given up.
    store.wait([f"over {of}" for of in (0, 2)], datetime.timedelta(seconds=60))
try:
    backend.monitored_barrier()
except Exception as error:
    store.set(f"said {rank}", str(error))
store.set(f"over {rank}", "yes")
store.wait([f"over {of}" for of in range(size)], datetime.timedelta(seconds=60))
backend.monitored_barrier()
say([store.get(f"said {of}").decode() for of in range(size)])
""",
        TORCH_DISTRIBUTED_DEBUG=level,
    )
    missing = "ank 1 failed to pass monitoredBarrier within 1 s, and so did rank 3"
    arrived = "Rank 2 successfully reached monitoredBarrier, but r"
    assert said == [str([f"R{missing}", f"R{missing}", f"{arrived}{missing}", f"R{missing}"])], said
