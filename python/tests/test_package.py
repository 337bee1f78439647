"""What comes out of the wheel."""

import inspect
import os
import pathlib
import subprocess
import sys

import antiphon
import pytest
from ranks import Ranks

#: A Python that has the wheel, and nothing else. `python/test.sh` makes it.
BARE = os.environ.get("ANTIPHON_BARE_PYTHON")


def python(code, *options, of=sys.executable):
    run = subprocess.run([of, *options, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_import_is_fast_and_imports_nothing_large():
    code = """
import time, sys
before = time.perf_counter()
import antiphon
took = time.perf_counter() - before
print(took, "numpy" in sys.modules, "torch" in sys.modules, "asyncio" in sys.modules)
"""
    took, *large = zip(*(python(code).split() for _ in range(5)))
    assert min(map(float, took)) < 0.1
    assert {word for words in large for word in words} == {"False"}


def test_everything_public_is_documented_and_typed():
    assert pathlib.Path(antiphon.__file__).with_name("py.typed").exists()
    for name in antiphon.__all__:
        if name != "__version__":
            assert inspect.getdoc(getattr(antiphon, name)), name
    for name, method in inspect.getmembers(antiphon.Communicator, inspect.isroutine):
        if not name.startswith("_"):
            assert inspect.getdoc(method), name
            assert inspect.signature(method).return_annotation is not inspect.Signature.empty, name


def test_errors_are_classes_of_their_own():
    for name in antiphon.__all__:
        if name.endswith(("Error", "Error_")):
            assert issubclass(getattr(antiphon, name), antiphon.Error)
    assert issubclass(antiphon.ArgumentError, ValueError) and issubclass(antiphon.TimeoutError_, TimeoutError)


@pytest.mark.skipif(not BARE, reason="ANTIPHON_BARE_PYTHON names no Python")
def test_without_numpy():
    said = Ranks(
        2,
        """
import array
try:
    import numpy
except ImportError:
    print("no numpy")
x = array.array("d", [1.0 + rank, 2.0])
assert comm.all_reduce(x).tolist() == [3.0, 4.0]
got = comm.all_gather(array.array("i", [rank]))
assert isinstance(got, array.array) and got.tolist() == [0, 1]
assert comm.all_gather(bytes([rank])) == bytearray([0, 1])
truth = memoryview(bytearray([rank])).cast("?")
assert comm.all_gather(truth).tolist() == [False, True]
assert comm.reduce_scatter(array.array("f", [1, 2])).tolist() == [2.0 if rank == 0 else 4.0]
import asyncio
async def wait():
    return await comm.all_reduce(x, async_=True)
assert asyncio.run(wait()).tolist() == [6.0, 8.0]
""",
        python=BARE,
    ).end()
    assert said == ["no numpy"] * 2


@pytest.mark.skipif(not BARE, reason="ANTIPHON_BARE_PYTHON names no Python")
def test_without_torch_the_backend_says_so():
    run = subprocess.run([BARE, "-c", "import antiphon.torch"], capture_output=True, text=True, timeout=60)
    assert run.returncode != 0 and "No module named 'torch'" in run.stderr


@pytest.mark.skipif(not BARE, reason="ANTIPHON_BARE_PYTHON names no Python")
def test_the_command_is_inside():
    command = pathlib.Path(BARE).with_name("antiphon")
    run = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0 and antiphon.__version__ in run.stdout, run.stderr
    module = subprocess.run([BARE, "-m", "antiphon", "--version"], capture_output=True, text=True, timeout=60)
    assert module.stdout == run.stdout
    wrong = subprocess.run([command, "no-such-command"], capture_output=True, text=True, timeout=60)
    assert wrong.returncode != 0
