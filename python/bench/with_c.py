"""How long calls from Python take next to the same calls of the C library, in the same processes and by turns.

    ANTIPHON_RANK=… ANTIPHON_SIZE=2 ANTIPHON_MASTER=… ANTIPHON_SECRET=… python with_c.py LIBANTIPHON.SO [SIZES]

The library is called by ctypes, which takes about as long as the interpreter's own calls. Medians of rounds, in µs for each call.
"""

import ctypes
import os
import statistics
import sys
import time

import antiphon
import numpy

#: Values of `antiphon.h`.
F32, SUM = 0, 0
ROUNDS = 21


def c_communicator(path: str) -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    """The library, and a communicator of all ranks; they meet at the next port."""
    library = ctypes.CDLL(path)
    host, _, port = os.environ["ANTIPHON_MASTER"].rpartition(":")
    os.environ["ANTIPHON_MASTER"] = f"{host}:{int(port) + 1}"
    comm = ctypes.c_void_p()
    assert library.antiphon_comm_from_env(ctypes.byref(comm)) == 0
    return library, comm


def main(path: str, sizes: list[int]) -> None:
    comm = antiphon.Communicator.from_env()
    library, handle = c_communicator(path)
    for size in sizes:
        x = numpy.zeros(size // 4, numpy.float32)
        place = ctypes.c_void_p(x.ctypes.data)
        all_reduce, count = library.antiphon_all_reduce, ctypes.c_size_t(x.size)
        ways = {
            "python": lambda: comm.all_reduce(x),
            "c": lambda: all_reduce(place, place, count, F32, SUM, handle),
        }
        calls = max(3, min(1000, (1 << 23) // (size + 4096)))
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(ROUNDS):
            for way, call in ways.items():
                comm.barrier()
                since = time.perf_counter()
                for _ in range(calls):
                    call()
                times[way].append((time.perf_counter() - since) / calls * 1e6)
        python, c = (statistics.median(times[way]) for way in ways)
        if comm.rank == 0:
            print(f"{size} bytes: Python {python:.2f} µs, C {c:.2f} µs, {python / c:.3f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], [int(size) for size in (sys.argv[2] if len(sys.argv) > 2 else "65536,1048576,16777216,67108864").split(",")])
