"""The seam to PyTorch from 2.14 on: a backend of a process group."""

from __future__ import annotations

from torch._C._distributed_c10d import Backend

from antiphon.torch._calls import Calls
from antiphon.torch._group import Group
from antiphon.torch._work import see_through_works


class _No:
    """What is `False` for Python, which reads an attribute, and for C++, which calls a method of the same name."""

    def __bool__(self) -> bool:
        return False

    def __call__(self) -> bool:
        return False


class _Options(Backend.Options):
    """The options of a backend, which Python reads as an attribute, and C++ asks of a method."""

    def __call__(self) -> Backend.Options:
        return self


class AntiphonBackend(Calls, Backend):
    """The backend ``antiphon`` of one group."""

    # Without these, PyTorch's C++ and Python ask each other without end.
    supports_coalescing = _No()
    supports_splitting = _No()
    supports_shrinking = _No()
    supports_reconfigure = _No()
    supports_window = _No()
    supports_abort_hooks = _No()
    _supports_time_estimate = _No()
    options: Backend.Options = None  # type: ignore[assignment]

    def __init__(self, group: Group) -> None:
        see_through_works()
        Backend.__init__(self, group.core.rank, group.core.size)
        self._group = group
        self.options = _Options("antiphon", group.timeout)

    def name(self) -> str:
        return "antiphon"

    # Under this name C++ asks.
    getBackendName = name
