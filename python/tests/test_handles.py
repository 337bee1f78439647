"""Calls under way."""

import asyncio
import gc
import threading
import time

import antiphon
import numpy as np
import pytest
from ranks import together


def test_a_handle_tells_its_end_and_its_result():
    first, second = antiphon.Communicator.local(2)
    x, y = np.ones(3), np.ones(3)
    handle = first.all_reduce(x, async_=True)
    assert handle.test() is False
    with pytest.raises(antiphon.TimeoutError_, match="goes on"):
        handle.wait(0.01)
    second.all_reduce(y, async_=True).wait(20)
    assert handle.wait(20) is x and handle.test() is True and handle.wait() is x
    assert x.tolist() == y.tolist() == [2, 2, 2]


def test_a_call_goes_on_when_its_handle_is_dropped():
    first, second = antiphon.Communicator.local(2)
    x, y = np.ones(3), np.ones(3)
    first.all_reduce(x, async_=True)
    gc.collect()
    second.all_reduce(y)
    first_barrier, second_barrier = first.barrier(async_=True), second.barrier(async_=True)
    first_barrier.wait(20), second_barrier.wait(20)
    assert x.tolist() == y.tolist() == [2, 2, 2]


def test_calls_go_on_while_python_computes():
    # Rank 1 never waits for the call; a thread of the library answers rank 0.
    together(
        2,
        """
import numpy as np
x = np.ones(100000)
if rank == 0:
    assert comm.all_reduce(x)[5] == 2
    print("done", flush=True)
    comm.barrier()
else:
    handle = comm.all_reduce(x, async_=True)
    until = time.monotonic() + 20
    while x[5] != 2:
        assert time.monotonic() < until
    comm.barrier()
    # The thread that ended the call may be about to say so.
    while not handle.test():
        assert time.monotonic() < until
""",
    )


def test_short_messages_go_on_though_nobody_waits_for_them():
    first, second = antiphon.Communicator.local(2)
    count = 3000
    come, sent = np.zeros(count), np.arange(count) + 1.0
    # The first one begins the thread of the calls, which is awake for a while then.
    handles = [second.receive(come[at : at + 1], 0, async_=True) for at in range(count)]
    for at in range(count):
        first.send(sent[at : at + 1], 1)
    until = time.monotonic() + 20
    while come[-1] == 0:
        assert time.monotonic() < until
    assert (come == sent).all() and all(handle.wait(20) is not None for handle in handles)


def test_a_listener_may_wait_for_another_call():
    first, second = antiphon.Communicator.local(2)
    x, y, waited = np.ones(3), np.ones(3), threading.Event()
    one, two = first.barrier(async_=True), first.all_reduce(x, async_=True)
    one._core.when_over(lambda: (two.wait(20), waited.set()))
    second.barrier()
    second.all_reduce(y)
    assert waited.wait(20) and x.tolist() == [2, 2, 2]


def test_objects_that_let_other_threads_run_when_they_end():
    """As PyTorch's tensors do: the thread of the library and the one that waits may both be about to end them."""

    class Owner:
        def __del__(self):
            for _ in range(50):
                time.sleep(0)

    (comm,) = antiphon.Communicator.local(1)
    x = np.ones(10)
    place = (x.ctypes.data, x.nbytes)
    for _ in range(500):
        comm._core.collective_at("all_reduce", place, place, "f64", "sum", None, Owner()).wait(20)


def test_coroutines_wait_without_holding_up_others():
    ranks = antiphon.Communicator.local(2)
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    async def rank(comm, other_is_late):
        if other_is_late:
            while ticks < 100:
                await asyncio.sleep(0)
        x = np.full(4, float(comm.rank + 1))
        assert (await comm.all_reduce(x, async_=True)) is x
        gathered = await comm.all_gather(x[:1], async_=True)
        return x.tolist(), gathered.tolist()

    async def all_of_it():
        ticking = asyncio.create_task(tick())
        got = await asyncio.wait_for(asyncio.gather(*(rank(comm, comm.rank == 1) for comm in ranks)), 30)
        ticking.cancel()
        return got

    assert asyncio.run(all_of_it()) == [([3.0] * 4, [3.0, 3.0])] * 2
    assert ticks >= 100


def test_an_error_is_raised_where_the_handle_is_awaited():
    first, second = antiphon.Communicator.local(2)

    async def fails():
        handle = first.all_reduce(np.ones(3), async_=True)
        second.abort()
        await handle

    with pytest.raises(antiphon.AbortedError, match="rank 1"):
        asyncio.run(fails())
    with pytest.raises(antiphon.AbortedError):
        first.barrier()


def test_threads_wait_for_calls_of_different_communicators():
    together(
        2,
        """
import numpy as np, threading
twins = [comm.duplicate() for _ in range(4)]
def work(number):
    x = np.ones(10 + number)
    for _ in range(200):
        x[:] = 1
        assert (twins[number].all_reduce(x) == size).all()
threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
for thread in threads: thread.start()
for thread in threads:
    thread.join(50)
    assert not thread.is_alive()
""",
    )


def test_memory_and_threads_do_not_grow():
    import resource

    first, second = antiphon.Communicator.local(2)
    x, y = np.ones(1000), np.ones(1000)

    def calls(count):
        for _ in range(count):
            a, b = first.all_reduce(x, async_=True), second.all_reduce(y, async_=True)
            a.wait(20), b.wait(20)
            x[:], y[:] = 1, 1

    calls(200)
    before, threads = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, threading.active_count()
    calls(3000)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4096
    assert threading.active_count() == threads
    del first, second
    gc.collect()
    until = time.monotonic() + 20
    while any("antiphon" == line.strip() for line in native_threads()):
        assert time.monotonic() < until, "the threads of communicators that are gone go on"


def native_threads():
    import glob

    for name in glob.glob("/proc/self/task/*/comm"):
        try:
            with open(name) as file:
                yield file.read()
        except OSError:
            pass
