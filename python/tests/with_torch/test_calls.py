"""The calls of `torch.distributed`, one by one."""

import pytest
from torchrun import needs, says


def check(tmp_path, ranks, code, **environment):
    """The code must come to its end on all ranks."""
    assert says(tmp_path, ranks, code + "\nsay('end')", **environment) == ["end"]


EVERYTHING = """
def whole(of, count=6):
    return torch.arange(count) * 3 + of * 5 + 1
everyone = torch.stack([whole(of) for of in range(size)])
for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8, torch.int8, torch.int16):
    for op, reduce in [
        (dist.ReduceOp.SUM, lambda t: t.double().sum(0)),
        (dist.ReduceOp.PRODUCT, lambda t: t.double().prod(0)),
        (dist.ReduceOp.MIN, lambda t: t.double().amin(0)),
        (dist.ReduceOp.MAX, lambda t: t.double().amax(0)),
    ]:
        values = (everyone % 3 + 1).to(dtype)
        expected = reduce(values).to(dtype)
        for is_async in (False, True):
            x = values[rank].clone()
            work = dist.all_reduce(x, op, async_op=is_async)
            if is_async:
                assert work.wait()
            assert torch.equal(x, expected), (dtype, op, x, expected)
            x = values[rank].clone()
            work = dist.reduce(x, size - 1, op, async_op=is_async)
            if is_async:
                work.wait()
            assert rank != size - 1 or torch.equal(x, expected)
        wide = torch.cat([values[rank]] * size)
        out = torch.empty(6, dtype=dtype)
        dist.reduce_scatter_tensor(out, wide, op)
        assert torch.equal(out, expected)
        dist.reduce_scatter(out, [values[rank] for _ in range(size)], op)
        assert torch.equal(out, expected)
x = everyone[rank].float()
dist.all_reduce(x, dist.ReduceOp.AVG)
torch.testing.assert_close(x, everyone.float().mean(0))
bits = torch.tensor([1 << rank, 7])
for op, expected in [(dist.ReduceOp.BOR, (1 << size) - 1), (dist.ReduceOp.BAND, 0 if size > 1 else 1), (dist.ReduceOp.BXOR, (1 << size) - 1)]:
    x = bits.clone()
    dist.all_reduce(x, op)
    assert x[0] == expected
truth = torch.tensor([rank == 0, False])
dist.all_reduce(truth, dist.ReduceOp.MAX)
assert truth.tolist() == [True, False]

for dtype in (torch.float32, torch.int16, torch.bool, torch.complex64):
    mine, rows = everyone[rank].to(dtype), everyone.to(dtype)
    parts = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(parts, mine)
    assert torch.equal(torch.stack(parts), rows)
    out = torch.empty(size * 6, dtype=dtype)
    dist.all_gather_into_tensor(out, mine)
    assert torch.equal(out.view(size, 6), rows)
    for root in range(size):
        x = mine.clone()
        dist.broadcast(x, root)
        assert torch.equal(x, rows[root])
        dist.gather(mine, parts if rank == root else None, dst=root)
        out = torch.empty_like(mine)
        dist.scatter(out, list(rows) if rank == root else None, src=root)
        assert torch.equal(out, mine)
sends = [torch.full((1 + (rank + to) % 2,), float(10 * rank + to)) for to in range(size)]
receives = [torch.zeros(1 + (rank + of) % 2) for of in range(size)]
dist.all_to_all(receives, sends)
assert all((part == 10 * of + rank).all() for of, part in enumerate(receives))
flat = torch.zeros(sum(map(len, receives)), 2)
dist.all_to_all_single(
    flat, torch.cat(sends).unsqueeze(1).expand(-1, 2).contiguous(), [len(part) for part in receives], [len(part) for part in sends]
)
assert torch.equal(flat[:, 1], torch.cat(receives))
out = torch.zeros(2 * size)
dist.all_to_all_single(out, torch.arange(2.0 * size) + 100 * rank, async_op=True).wait()
assert out.tolist() == [100.0 * of + 2 * rank + at for of in range(size) for at in range(2)]
"""


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_collective(tmp_path, ranks):
    check(tmp_path, ranks, EVERYTHING)


def test_tensors_of_any_layout(tmp_path):
    check(
        tmp_path,
        2,
        """
square = torch.arange(16.0).view(4, 4)
for is_async in (False, True):
    for view in (lambda t: t.t(), lambda t: t[:, 1], lambda t: t[::2]):
        x = square.clone()
        work = dist.all_reduce(view(x), async_op=is_async)
        if is_async:
            work.wait()
        assert torch.equal(view(x), 2 * view(square))
    x = torch.zeros(4, 4)
    work = dist.all_gather_into_tensor(x.t(), square[2 * rank : 2 * rank + 2], async_op=is_async)
    if is_async:
        work.wait()
    assert torch.equal(x.t(), square)
    x = square.clone() if rank == 0 else torch.zeros(4, 4)
    dist.broadcast(x.t(), 0)
    assert torch.equal(x, square)
    x = torch.zeros(4, 4)
    dist.send(square.t(), 1) if rank == 0 else dist.recv(x.t(), 0)
    assert rank == 0 or torch.equal(x, square)
empty = torch.zeros(0, 3)
dist.all_reduce(empty), dist.broadcast(empty, 0), dist.all_gather_into_tensor(torch.zeros(0, 3), empty)
dist.all_gather([torch.zeros(0, 3) for _ in range(size)], empty)
dist.gather(empty, [torch.zeros(0, 3) for _ in range(size)] if rank == 0 else None, dst=0)
dist.scatter(empty, [torch.zeros(0, 3) for _ in range(size)] if rank == 0 else None, src=0)
dist.all_to_all([torch.zeros(0) for _ in range(size)], [torch.zeros(0) for _ in range(size)])
dist.reduce_scatter(empty, [torch.zeros(0, 3) for _ in range(size)])
scalar = torch.tensor(1.0)
dist.all_reduce(scalar)
assert scalar.item() == 2
try:
    dist.broadcast(torch.zeros(3).to_sparse(), 0)
except Exception as error:
    assert "sparse" in str(error).lower(), error
else:
    raise AssertionError("a sparse tensor was taken")
x = torch.ones(3, requires_grad=True)
dist.all_reduce(x.detach())
""",
    )


def test_futures_and_works(tmp_path):
    check(
        tmp_path,
        2,
        """
import time
x = torch.ones(5)
future = dist.all_reduce(x, async_op=True).get_future()
then = future.then(lambda done: done.value()[0] * 3)
assert then.wait().tolist() == [6.0] * 5
works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(50)]
for work in reversed(works):
    assert work.wait()
if rank == 0:
    x = torch.zeros(2)
    work = dist.irecv(x, 1)
    try:
        work.wait(datetime.timedelta(milliseconds=20))
    except Exception as error:
        assert "goes on" in str(error)
    else:
        raise AssertionError("nothing was sent yet")
    dist.barrier()
    work.wait()
    assert x.tolist() == [5, 6]
else:
    dist.barrier()
    dist.send(torch.tensor([5.0, 6.0]), 0)
""",
    )


def test_messages_and_tags(tmp_path):
    check(
        tmp_path,
        3,
        """
right, left = (rank + 1) % size, (rank - 1) % size
x, y = torch.zeros(4), torch.zeros(2)
operations = [
    dist.P2POp(dist.isend, torch.full((4,), float(rank)), right),
    dist.P2POp(dist.irecv, x, left),
    dist.P2POp(dist.isend, torch.full((2,), 10.0 + rank), left),
    dist.P2POp(dist.irecv, y, right),
]
for work in dist.batch_isend_irecv(operations):
    work.wait()
assert x.tolist() == [left] * 4 and y.tolist() == [10 + right] * 2
# Messages with other tags may be taken first.
a = dist.isend(torch.tensor([1.0]), right, tag=1)
b = dist.isend(torch.tensor([2.0]), right, tag=2)
second, first = torch.zeros(1), torch.zeros(1)
dist.recv(second, left, tag=2)
dist.recv(first, left, tag=1)
a.wait(), b.wait()
assert (first.item(), second.item()) == (1, 2)
""",
    )


def test_objects_and_groups(tmp_path):
    check(
        tmp_path,
        4,
        """
everything = [None] * size
dist.all_gather_object(everything, {"rank": rank, "long": "x" * (100 * rank)})
assert [one["rank"] for one in everything] == list(range(size))
objects = ["a", {"b": 3}] if rank == 1 else [None, None]
dist.broadcast_object_list(objects, src=1)
assert objects == ["a", {"b": 3}]
got = [None]
dist.scatter_object_list(got, [f"for {of}" for of in range(size)] if rank == 0 else None, src=0)
assert got == [f"for {rank}"]
gathered = [None] * size if rank == 2 else None
dist.gather_object(rank, gathered, dst=2)
assert rank != 2 or gathered == list(range(size))

groups = {members: dist.new_group(list(members)) for members in [(0, 1), (2, 3), (3, 1), (0, 1, 2, 3), (0, 1)]}
for members, group in groups.items():
    if rank in members:
        x = torch.tensor([float(rank)])
        dist.all_reduce(x, group=group)
        assert x.item() == sum(members)
        y = torch.tensor([float(rank)])
        dist.broadcast(y, src=members[-1], group=group)
        assert y.item() == members[-1]
dist.barrier()
# Version 1.13 makes them of devices only.
pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
alone = pairs[rank // 2] if torch.__version__.startswith("1.") else dist.new_subgroups(2)[0]
x = torch.ones(1)
dist.all_reduce(x, group=alone)
assert x.item() == 2
dist.destroy_process_group(alone)
""",
    )


def test_functional_collectives(tmp_path):
    needs("torch.distributed._functional_collectives")
    check(
        tmp_path,
        4,
        """
import torch.distributed._functional_collectives as functional
x = functional.all_reduce(torch.ones(3) * rank, "sum", dist.group.WORLD)
assert x.tolist() == [6.0] * 3
outs = functional.all_reduce_coalesced([torch.ones(2), torch.ones(3)], "sum", dist.group.WORLD)
assert [out.sum().item() for out in outs] == [8, 12]
wide = functional.all_to_all_single(torch.arange(4.0) + 10 * rank, None, None, dist.group.WORLD)
assert wide.tolist() == [10.0 * of + rank for of in range(4)]
""",
    )


def test_what_ran_is_explained(tmp_path):
    said = says(
        tmp_path,
        2,
        """
for _ in range(5):
    dist.all_reduce(torch.ones(256))
import antiphon.torch
say(antiphon.torch.explain().replace(chr(10), " | "))
""",
    )
    assert "all_reduce, 1024 bytes of f32: 5 calls" in said[0] and "stock, because there is no table" in said[0]


def test_gloo_and_the_backend_side_by_side(tmp_path):
    check(
        tmp_path,
        3,
        """
ours = dist.new_group([0, 2], backend="antiphon")
also = dist.new_group([0, 1, 2], backend="antiphon")
for members, group in [((0, 2), ours), ((0, 1, 2), also)]:
    if rank in members:
        x = torch.ones(3)
        dist.all_reduce(x, group=group)
        assert x.tolist() == [len(members)] * 3
""",
        backend="gloo",
    )
