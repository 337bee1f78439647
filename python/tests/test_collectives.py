"""Every collective, next to what NumPy says."""

import numpy as np
import pytest
from ranks import together

NUMPY = """
import numpy as np

def data(of, count, dtype):
    "What rank `of` has: small whole numbers, which all types add exactly."
    return ((np.arange(count) * 3 + of * 5) % 7 + 1).astype(dtype)

def all_data(count, dtype):
    return np.stack([data(of, count, dtype) for of in range(size)])
"""
TYPES = ["float16", "float32", "float64", "int32", "int64", "uint8", "uint32", "uint64", "int8"]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_reductions_of_all_types(ranks):
    together(
        ranks,
        NUMPY
        + f"""
for dtype in {TYPES}:
    for op, reduce in [("sum", np.add), ("prod", np.multiply), ("min", np.minimum), ("max", np.maximum)]:
        if op in ("min", "max") and dtype in ("uint32", "uint64", "int8"):
            continue
        for count in (0, 1, 5, 1000):
            expected = reduce.reduce(all_data(count, dtype)).astype(dtype)
            x = data(rank, count, dtype)
            assert comm.all_reduce(x, op) is x
            np.testing.assert_array_equal(x, expected, f"{{dtype}} {{op}}")
            x, out = data(rank, count, dtype), np.zeros(count, dtype)
            assert comm.all_reduce(x, op, out) is out
            np.testing.assert_array_equal(out, expected)
            np.testing.assert_array_equal(x, data(rank, count, dtype))
for dtype in ("float32", "float64", "complex64", "complex128"):
    x = data(rank, 6, dtype)
    np.testing.assert_allclose(comm.all_reduce(x, "avg"), all_data(6, dtype).mean(axis=0), rtol=1e-6)
x = np.array([True, rank == 0, False])
np.testing.assert_array_equal(comm.all_reduce(x, "max"), [True, True, False])
""",
    )


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_everything_that_moves_blocks(ranks):
    together(
        ranks,
        NUMPY
        + """
for dtype in ("float32", "int16", "complex128", "S5"):
    for k in (0, 1, 4, 300):
        rows = [np.arange(k * 2).reshape(k, 2) + 100 * of for of in range(size)]
        mine = rows[rank].astype(dtype)
        everything = np.concatenate(rows).astype(dtype)
        got = comm.all_gather(mine)
        assert got.shape == (size * k, 2) and got.dtype == mine.dtype
        np.testing.assert_array_equal(got, everything)
        out = np.zeros_like(everything)
        assert comm.all_gather(mine, out) is out
        np.testing.assert_array_equal(out, everything)
        out = np.zeros_like(everything)
        out[rank * k : (rank + 1) * k] = mine
        np.testing.assert_array_equal(comm.all_gather(out[rank * k : (rank + 1) * k], out), everything)

        blocks = np.stack([everything + 0 if dtype == "S5" else everything + np.array(of, dtype) for of in range(size)])
        expected = np.concatenate([blocks[of][rank * k : (rank + 1) * k] for of in range(size)])
        x = blocks[rank].copy()
        np.testing.assert_array_equal(comm.all_to_all(x), expected)
        assert comm.all_to_all(x, x) is x
        np.testing.assert_array_equal(x, expected)

        for root in range(size):
            x = mine.copy()
            assert comm.broadcast(x, root) is x
            np.testing.assert_array_equal(x, rows[root].astype(dtype))
            got = comm.gather(mine, root)
            assert (got is None) == (rank != root)
            if rank == root:
                np.testing.assert_array_equal(got, everything)
            out = np.zeros_like(mine)
            comm.scatter(everything if rank == root else None, root, out)
            np.testing.assert_array_equal(out, mine)
""".replace("everything + 0 if dtype", "everything if dtype"),
    )


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_reduce_and_reduce_scatter(ranks):
    together(
        ranks,
        NUMPY
        + """
for k in (0, 1, 50):
    total = all_data(size * k, "float64").sum(axis=0)
    x = data(rank, size * k, "float64")
    got = comm.reduce_scatter(x)
    np.testing.assert_array_equal(got, total[rank * k : (rank + 1) * k])
    comm.reduce_scatter(x, "sum", x[rank * k : (rank + 1) * k])
    np.testing.assert_array_equal(x[rank * k : (rank + 1) * k], total[rank * k : (rank + 1) * k])
    for root in range(size):
        x = data(rank, size * k, "float64")
        got = comm.reduce(x, "sum", root)
        assert (got is None) == (rank != root)
        if rank == root:
            np.testing.assert_array_equal(got, total)
            np.testing.assert_array_equal(x, data(rank, size * k, "float64"))
        comm.reduce(x, "sum", root, x)
        np.testing.assert_array_equal(x, total if rank == root else data(rank, size * k, "float64"))
""",
    )


@pytest.mark.parametrize("ranks", [2, 3])
def test_blocks_of_unequal_length(ranks):
    together(
        ranks,
        """
import numpy as np
length = lambda a, b: (a * 2 + b) % 4
counts = [length(rank, to) for to in range(size)]
receives = [length(of, rank) for of in range(size)]
block = lambda a, b: np.arange(length(a, b)) + 100.0 * a + 10 * b
x = np.concatenate([block(rank, to) for to in range(size)])
expected = np.concatenate([block(of, rank) for of in range(size)])
np.testing.assert_array_equal(comm.all_to_all_v(x, counts, receives), expected)
out, at = np.full(4 * size, -1.0), [4 * of for of in range(size)]
handle = comm.all_to_all_v(x, counts, receives, out, True, receive_offsets=at)
assert handle.wait(20) is out
for of in range(size):
    np.testing.assert_array_equal(out[at[of] : at[of] + receives[of]], block(of, rank))
""",
    )


def test_messages_arrive_in_order_and_do_not_wait_for_collectives():
    together(
        3,
        """
import numpy as np
right, left = (rank + 1) % size, (rank - 1) % size
large = np.full(1 << 20, rank, np.float32)
into = np.zeros_like(large)
incoming = comm.receive(into, left, async_=True)
outgoing = comm.send(large, right, async_=True)
comm.barrier()
assert incoming.wait(20) is into and outgoing.wait(20) is None
assert (into == left).all()
for number in range(20):
    comm.send(np.array([number, rank]), right, async_=True)
for number in range(20):
    got = comm.receive(np.zeros(2, int), left)
    assert got.tolist() == [number, left]
""",
    )


def test_groups_of_groups():
    together(
        4,
        """
import numpy as np
odd = comm.split(rank % 2, key=-rank)
assert odd.size == 2 and odd.rank == (1 if rank < 2 else 0)
x = np.array([float(rank)])
assert odd.all_reduce(x)[0] == (2 if rank % 2 == 0 else 4)
nobody = comm.split(None if rank == 3 else 7)
assert (nobody is None) == (rank == 3)
twin = comm.duplicate()
first, second = np.ones(3), np.ones(3)
a, b = comm.all_reduce(first, async_=True), twin.all_reduce(second, async_=True)
b.wait(20), a.wait(20)
assert first.tolist() == second.tolist() == [4, 4, 4]
statistics = comm.statistics()
assert sum(plan["calls"] for plan in statistics["plans"].values()) >= 1 and "allreduce" in comm.last_plan()
assert 1 <= sum(statistics["stock"].values()) <= sum(plan["calls"] for plan in statistics["plans"].values())
assert list(statistics["stock"]) == ["there is no table"] and "stock, because there is no table" in comm.last_plan()
assert statistics["confirmation"] == {"timed": 0, "compared": 0, "switched": 0}
ways = ["by_kernel", "by_socket", "in_fragments", "in_place"]
assert sorted(statistics["long_messages"]) == ways
comm.all_reduce(np.ones(300_000))
assert sum(comm.statistics()["long_messages"].values()) > sum(statistics["long_messages"].values())
""",
    )


def test_bfloat16_by_name():
    # 1.0, 2.0 and 3.0 are 0x3f80, 0x4000 and 0x4040.
    said = together(
        2,
        """
import numpy as np
x = np.array([0x3F80, 0x4000], np.uint16) if rank == 0 else np.array([0x4000, 0x3F80], np.uint16)
print(comm.all_reduce(x, dtype="bfloat16").tolist())
""",
    )
    assert said == [str([0x4040, 0x4040])] * 2


def test_ranks_may_be_threads():
    import threading

    import antiphon

    results = {}

    def work(comm):
        x = np.arange(100000, dtype=np.float64) + comm.rank
        for _ in range(10):
            comm.barrier()
        results[comm.rank] = comm.all_reduce(x)

    threads = [threading.Thread(target=work, args=(comm,)) for comm in antiphon.Communicator.local(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        # If a rank kept Python's lock while it waits, none would come to an end.
        thread.join(60)
        assert not thread.is_alive()
    for rank in range(3):
        np.testing.assert_array_equal(results[rank], np.arange(100000) * 3.0 + 3)
