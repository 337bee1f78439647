"""Wrong arguments: each is told clearly, and the communicator goes on."""

import array

import antiphon
import numpy as np
import pytest


@pytest.fixture
def comm():
    return antiphon.Communicator.local(1)[0]


def refused(match):
    return pytest.raises(antiphon.ArgumentError, match=match)


WRONG = [
    (lambda c: c.all_reduce(np.zeros((4, 4))[:, ::2]), "x is not contiguous"),
    (lambda c: c.all_reduce(np.zeros((4, 4), order="F")), "x is not contiguous"),
    (lambda c: c.all_reduce(b"read-only"), "x is read-only"),
    (lambda c: c.all_reduce(np.zeros(4), "sum", b"12345678901234567890123456789012"), "x has float64, but out has uint8"),
    (lambda c: c.all_reduce(np.zeros(4), "median"), "no reduction `median`"),
    (lambda c: c.all_reduce(np.zeros(4, np.int16)), "sum of int16 is not supported"),
    (lambda c: c.all_reduce(np.zeros(4, np.uint32), "max"), "max of uint32 is not supported"),
    (lambda c: c.all_reduce(np.zeros(4, ">f4")), "another byte order"),
    (lambda c: c.all_reduce(np.zeros(4), out=np.zeros(3)), "out has 24 bytes"),
    (lambda c: c.all_reduce(np.zeros(4), out=np.zeros(4, np.float32)), "x has float64, but out has float32"),
    (lambda c: c.all_reduce([1.0, 2.0]), "x is a list, which has no buffer"),
    (lambda c: c.all_reduce(7), "x is a int, which has no buffer"),
    (lambda c: c.all_reduce(np.zeros(3, np.uint8), dtype="bfloat16"), "no whole number of bfloat16"),
    (lambda c: c.all_reduce(np.zeros(3, np.uint8), dtype="decimal"), "no element type `decimal`"),
    (lambda c: c.broadcast(np.zeros(4), root=1), "rank 1 is not one of 0 to 0"),
    (lambda c: c.gather(np.zeros(4), root=5), "rank 5 is not one of 0 to 0"),
    (lambda c: c.scatter(None, out=np.zeros(4)), "what is sent has 0 bytes"),
    (lambda c: c.scatter(None), "the root of a scatter must give x"),
    (lambda c: c.all_to_all_v(np.zeros(4), [5], [5]), "a block ends beyond"),
    (lambda c: c.all_to_all_v(np.zeros(4), [1, 1], [1, 1]), "not 1 blocks"),
    (lambda c: c.all_to_all_v(np.zeros(4), [1], [1], receive_offsets=[0]), "out must be given"),
    (lambda c: c.send(np.zeros(4), 3), "rank 3 is not one of 0 to 0"),
    (lambda c: c.set_timeout(0), "no number of seconds"),
    (lambda c: c.set_timeout(float("nan")), "no number of seconds"),
    (lambda c: c.rebuild(5), "5"),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_a_wrong_argument_is_told(comm, number):
    call, match = WRONG[number]
    with refused(match) as told:
        call(comm)
    assert isinstance(told.value, ValueError) and isinstance(told.value, antiphon.Error)
    if match != "5":
        x = np.ones(3)
        assert comm.all_reduce(x) is x


def test_buffers_that_overlap_are_refused(comm):
    x = np.zeros(10)
    with refused("overlap"):
        comm.all_reduce(x[:6], out=x[3:9])


def test_connect_says_what_is_wrong():
    with refused("rank 3 of 2"):
        antiphon.Communicator.connect(3, 2, "127.0.0.1:1", "a secret of enough bytes")
    with refused("master is missing"):
        antiphon.Communicator.connect(0, 2)
    with refused("secret"):
        antiphon.Communicator.connect(0, 2, "127.0.0.1:1", "short")
    with pytest.raises(TypeError):
        antiphon.Communicator()


def test_anything_with_the_buffer_protocol(comm):
    for x in (bytearray(8), array.array("d", [1, 2]), memoryview(bytearray(8)), np.ones((2, 2, 2)), np.array(5.0)):
        assert comm.all_reduce(x) is x
    assert comm.all_gather(array.array("d", [1, 2])).tolist() == [1, 2]
    assert comm.all_gather(np.array(5.0)).tolist() == [5]
    assert comm.all_gather(b"read-only").tobytes() == b"read-only"
    # Only read, so it may be read-only.
    assert comm.broadcast(b"read-only") == b"read-only"


def test_a_scalar_counts_as_one_element(comm):
    assert comm.reduce_scatter(np.array(2.0)).shape == (1,)


def test_memory_is_held_while_a_call_is_under_way_and_not_longer(comm):
    x = bytearray(8)
    comm.all_reduce(x, async_=True).wait(20)
    # A buffer that is still lent cannot be resized.
    x.append(1)
