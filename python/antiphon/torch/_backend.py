"""The seam to PyTorch from 2.14 on: a backend of a process group."""

from __future__ import annotations

from torch._C._distributed_c10d import Backend

from antiphon.torch._calls import Calls
from antiphon.torch._group import Group


class AntiphonBackend(Calls, Backend):
    """The backend ``antiphon`` of one group."""

    def __init__(self, group: Group) -> None:
        Backend.__init__(self, group.core.rank, group.core.size)
        self._group = group

    def name(self) -> str:
        return "antiphon"
