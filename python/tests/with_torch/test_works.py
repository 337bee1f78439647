"""What a program may ask of calls under way, and receives from any rank."""

import pytest
from torchrun import says


def check(tmp_path, ranks, code, **environment):
    """The code must come to its end on all ranks."""
    assert says(tmp_path, ranks, code + "\nsay('end')", **environment) == ["end"]


@pytest.mark.parametrize("level", ["OFF", "DETAIL"])
def test_a_program_that_asks_until_a_call_is_over_ends(tmp_path, level):
    check(
        tmp_path,
        2,
        """
def until_over(work):
    while not work.is_completed():
        pass
x = torch.ones(1000)
until_over(dist.all_reduce(x, async_op=True))
assert (x == 2).all()
# What PyTorch reduces itself is over at once.
until_over(dist.all_reduce(torch.ones(3, dtype=torch.int16), async_op=True))
if rank == 0:
    x = torch.zeros(4)
    work = dist.irecv(x, 1)
    assert not work.is_completed()
    dist.barrier()
    until_over(work)
    assert work.is_success() and work.exception() is None and (x == 7).all()
    assert work.wait() and work.is_completed()
else:
    dist.barrier()
    until_over(dist.isend(torch.full((4,), 7.0), 0))
""",
        TORCH_DISTRIBUTED_DEBUG=level,
    )


def test_works_of_other_backends_are_as_before(tmp_path):
    check(
        tmp_path,
        2,
        """
gloo = dist.new_group([0, 1], backend="gloo")
ours = dist.all_reduce(torch.ones(3), async_op=True)
theirs = dist.all_reduce(torch.ones(3), async_op=True, group=gloo)
while not theirs.is_completed():
    pass
assert theirs.is_success() and theirs.wait()
ours.wait()
""",
    )


def test_a_failed_call_says_so(tmp_path):
    check(
        tmp_path,
        2,
        """
store = dist.distributed_c10d._get_default_store()
if rank == 0:
    work = dist.irecv(torch.zeros(4), 1)
    while not work.is_completed():
        pass
    assert not work.is_success()
    assert isinstance(work.exception(), RuntimeError) and "rank 1" in str(work.exception())
    try:
        work.wait()
    except RuntimeError as error:
        assert type(error).__name__ == "TimeoutError_"
    else:
        raise AssertionError("the receive has failed")
    store.set("over", "yes")
else:
    store.wait(["over"], datetime.timedelta(seconds=60))
""",
        LIMIT="1",
    )


def test_receives_from_any_rank(tmp_path):
    check(
        tmp_path,
        3,
        """
LENGTHS = (1, 1000, 300_000)
if rank == 0:
    for tag in (0, 5):
        for length in LENGTHS:
            heard = []
            for _ in range(2):
                x = torch.zeros(length)
                source = dist.recv(x, tag=tag)
                assert (x == 10 * source + tag).all()
                heard.append(source)
            assert sorted(heard) == [1, 2]
            dist.barrier()
    # Not contiguous, and asked for by name beside it.
    x, y = torch.zeros(4, 2), torch.zeros(8)
    named = dist.irecv(y, 1)
    assert dist.recv(x[:, 1]) == 2
    assert (x[:, 1] == 2).all() and not x[:, 0].any()
    dist.barrier()
    named.wait()
    assert (y == 1).all()
    # Asked until it is over, and by its future.
    x = torch.zeros(2)
    work = dist.irecv(x)
    assert not work.is_completed()
    dist.barrier()
    while not work.is_completed():
        pass
    assert x[0] == 1
    future = dist.irecv(x).get_future()
    dist.barrier()
    assert future.wait()[0].tolist() == [2, 2]
else:
    for tag in (0, 5):
        for length in LENGTHS:
            dist.send(torch.full((length,), 10.0 * rank + tag), 0, tag=tag)
            dist.barrier()
    if rank == 2:
        dist.send(torch.full((4,), 2.0), 0)
    dist.barrier()
    if rank == 1:
        dist.send(torch.ones(8), 0)
    dist.barrier()
    if rank == 1:
        dist.send(torch.ones(2), 0)
    dist.barrier()
    if rank == 2:
        dist.send(torch.full((2,), 2.0), 0)
""",
    )


def test_a_receive_from_any_rank_has_a_deadline(tmp_path):
    check(
        tmp_path,
        2,
        """
store = dist.distributed_c10d._get_default_store()
if rank == 0:
    try:
        dist.recv(torch.zeros(1), tag=3)
    except RuntimeError as error:
        assert "any rank" in str(error), error
    else:
        raise AssertionError("nobody sends")
    # No message can come any more, so the next one is over at once.
    work = dist.irecv(torch.zeros(1), tag=3)
    assert work.is_completed() and not work.is_success() and "any rank" in str(work.exception())
    store.set("over", "yes")
else:
    store.wait(["over"], datetime.timedelta(seconds=60))
""",
        LIMIT="1",
    )


def test_sparse_tensors_are_added(tmp_path):
    check(
        tmp_path,
        3,
        """
# Of each rank another number of values, of one rank none.
for values in (torch.arange(1.0, 3), torch.arange(8.0).view(2, 4)):
    indices = torch.tensor([[0, rank], [1, 2]])[:, : 0 if rank == 1 else 2]
    x = torch.sparse_coo_tensor(indices, values[: indices.shape[1]], (3, 4, *values.shape[1:]))
    expected = x.to_dense()
    dist.all_reduce(x)
    dist.all_reduce(expected)
    assert torch.equal(x.to_dense(), expected)
try:
    dist.all_reduce(x, dist.ReduceOp.MAX)
except NotImplementedError as error:
    assert "sparse" in str(error)
""",
    )


def test_tables_by_argument(tmp_path):
    check(
        tmp_path,
        2,
        """
import antiphon, antiphon.torch
table = os.path.join(os.environ["FOLDER"], "table.json")
made = antiphon.torch.tune(budget=0.5, collectives=["all_gather"], sizes=[1 << 16])
if rank == 0:
    made.save(table)
dist.barrier()
def explained(group):
    x = torch.ones(1 << 13)
    dist.all_gather_into_tensor(torch.zeros(1 << 14), x, group=group)
    return [line for line in antiphon.torch.explain().splitlines() if "all_gather, 65536" in line][-1]
without = dist.new_group([0, 1])
with_table = dist.new_group([0, 1], pg_options=antiphon.torch.Options(table=table))
assert "there is no table" not in explained(with_table)
alone = antiphon.Communicator.local(1)[0]
try:
    alone.use_table(table)
except antiphon.ArgumentError as error:
    assert "2 ranks" in str(error)
else:
    raise AssertionError("a table for other ranks was taken")
try:
    dist.new_group([0, 1], pg_options=antiphon.torch.Options(table=table + "2"))
except RuntimeError as error:
    assert "table.json2" in str(error), error
else:
    raise AssertionError("a table that is not there was taken")
""",
        FOLDER=str(tmp_path),
    )
