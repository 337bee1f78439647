"""The seam to PyTorch before 2.14: a process group of its own."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from antiphon.torch._calls import Calls
from antiphon.torch._group import Group


class AntiphonProcessGroup(Calls, dist.ProcessGroup):
    """One group, as older versions of PyTorch want it: under their names of calls."""

    def __init__(self, group: Group) -> None:
        dist.ProcessGroup.__init__(self, group.core.rank, group.core.size)
        self._group = group
        self._own_name = group.name
        self._own_description = "undefined"

    _allgather_base = Calls.all_gather_single
    _reduce_scatter_base = Calls.reduce_scatter_single
    allgather_into_tensor_coalesced = Calls.all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = Calls.reduce_scatter_single_coalesced
    alltoall_base = Calls.all_to_all_single

    def getBackendName(self) -> str:
        return "antiphon"

    def name(self) -> str:
        return "antiphon"

    # PyTorch keeps these in C++, for process groups that are made there.

    def setGroupName(self, name: str) -> None:
        self._own_name = name

    def getGroupName(self) -> str:
        return self._own_name

    def setGroupDesc(self, description: str) -> None:
        self._own_description = description

    def getGroupDesc(self) -> str:
        return self._own_description

    _set_group_name = setGroupName
    _set_group_desc = setGroupDesc
    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self.set_timeout(timeout)

    def _get_backend(self, device: Any) -> Any:
        return self
