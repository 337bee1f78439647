"""Memory for results, where the caller gives none: NumPy's if it can be imported, otherwise Python's own."""

from __future__ import annotations

import math
from typing import Any

from antiphon._errors import ArgumentError

#: Formats that `array.array` has. Others become a `memoryview` of a `bytearray`, or the plain `bytearray`.
_OF_ARRAY = "bBhHiIlLqQfd"


def shape_of(x: Any) -> tuple[int, ...]:
    """The lengths of an object's axes; a scalar has none."""
    shape = getattr(x, "shape", None)
    if shape is None:
        try:
            shape = memoryview(x).shape
        except TypeError:
            # Whether it has memory at all is told by the call.
            return (0,)
    return tuple(int(length) for length in shape)


def empty_like(x: Any, shape: tuple[int, ...]) -> Any:
    """An object of another shape with the elements of `x`."""
    if hasattr(x, "new_empty"):
        return x.new_empty(shape)
    try:
        import numpy
    except ImportError:
        return _empty_without_numpy(x, shape)
    if isinstance(x, numpy.ndarray):
        return numpy.empty(shape, x.dtype)
    return numpy.empty(shape, numpy.asarray(x if hasattr(x, "dtype") else memoryview(x)).dtype)


def _empty_without_numpy(x: Any, shape: tuple[int, ...]) -> Any:
    view = memoryview(x)
    count = math.prod(shape)
    letter = view.format.lstrip("@=<")
    if isinstance(x, (bytes, bytearray)) or view.format == "B" and not hasattr(x, "typecode"):
        return bytearray(count)
    if len(letter) == 1 and letter in _OF_ARRAY:
        import array

        return array.array(letter, bytes(count * view.itemsize))
    memory = memoryview(bytearray(count * view.itemsize))
    try:
        return memory.cast(letter)
    except ValueError:
        raise ArgumentError(f"without NumPy there is no array of elements `{letter}`: give out") from None
