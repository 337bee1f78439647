"""Ranks that die, hang, or do something else."""

import signal

import pytest
from ranks import Ranks, together


@pytest.mark.parametrize("how", ["blocking", "async"])
def test_a_killed_rank_is_named_and_the_others_go_on_without_it(how):
    said = Ranks(
        3,
        f"""
import numpy as np
x = np.ones(1000, np.float32)
comm.all_reduce(x)
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    while True:
        {"comm.all_reduce(x)" if how == "blocking" else "comm.all_reduce(x, async_=True).wait(30)"}
except antiphon.PeerLostError as error:
    print(error.rank, "rank 1" in str(error), isinstance(error, ConnectionError))
try:
    comm.barrier()
except antiphon.PeerLostError:
    pass
comm.set_timeout(5)
left = comm.rebuild(least=2)
assert left.size == 2 and left.rank == (0 if rank == 0 else 1)
print(left.all_reduce(np.ones(2)).tolist())
""",
    ).end({1: -signal.SIGKILL})
    assert said[0] == said[2] == "1 True True\n[2.0, 2.0]"


def test_a_rank_that_does_not_come_is_named():
    ranks = Ranks(
        2,
        """
comm.set_timeout(0.5)
if rank == 1:
    # It comes when rank 0 has given up, and gets an error too.
    assert sys.stdin.readline() == "now\\n"
try:
    comm.barrier()
except antiphon.TimeoutError_ as error:
    print(error.rank, isinstance(error, TimeoutError), "rank 1" in str(error), flush=True)
assert sys.stdin.read() == ""
""",
    )
    assert ranks.line(0) == "1 True True"
    ranks.processes[1].stdin.write("now\n")
    ranks.processes[1].stdin.flush()
    assert ranks.line(1) == "0 True True"
    ranks.end()


def test_ranks_that_make_different_calls():
    said = together(
        2,
        """
import numpy as np
try:
    comm.all_reduce(np.ones(8 if rank == 0 else 9))
except antiphon.MismatchError as error:
    print("mismatch", error.rank is not None)
""",
    )
    assert said == ["mismatch True"] * 2


def test_abort_ends_the_calls_of_all():
    said = together(
        2,
        """
import threading
if rank == 0:
    threading.Timer(0, comm.abort).start()
try:
    comm.barrier() if rank == 1 else comm.receive(bytearray(8), 1)
except antiphon.AbortedError as error:
    print("rank 0" in str(error))
""",
    )
    assert said == ["True"] * 2


@pytest.mark.parametrize("call", ["comm.barrier()", "comm.receive(bytearray(8), 1)", "comm.barrier(async_=True).wait()"])
def test_ctrl_c_ends_a_wait(call):
    ranks = Ranks(
        2,
        f"""
signal.signal(signal.SIGINT, signal.default_int_handler)
if rank == 0:
    try:
        print("waits", flush=True)
        {call}
    except KeyboardInterrupt:
        print("interrupted", flush=True)
else:
    # It stays until the test is done with rank 0, and makes no call.
    assert sys.stdin.read() == ""
""",
    )
    assert ranks.line(0) == "waits"
    ranks.processes[0].send_signal(signal.SIGINT)
    assert ranks.line(0) == "interrupted"
    ranks.end()


def test_a_fork_is_told_that_it_is_one():
    said = together(
        2,
        """
comm.barrier()
child = os.fork()
if child == 0:
    try:
        comm.barrier()
    except antiphon.ArgumentError as error:
        os._exit(7 if "fork" in str(error) else 8)
    os._exit(9)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
comm.barrier()
""",
    )
    assert said == ["7", "7"]


@pytest.mark.parametrize("attempt", range(5))
def test_a_process_may_end_with_calls_under_way(attempt):
    together(
        2,
        """
import numpy as np
def let_others_run():
    time.sleep(0)
handles = [comm.all_reduce(np.ones(100), async_=True) for _ in range(20)]
for handle in handles:
    handle._core.when_over(let_others_run)
handles[10].wait(20)
comm.receive(bytearray(8), 1 - rank, async_=True)
""",
    )
