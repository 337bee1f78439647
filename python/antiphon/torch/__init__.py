"""The backend ``antiphon`` of ``torch.distributed``, for CPU tensors.

    torch.distributed.init_process_group("antiphon")

needs no import from torch 2.14 on; with older versions, ``import antiphon.torch`` first. The table of plans is the one that
``ANTIPHON_TABLE`` names, or that of the group's :class:`Options`. ``ANTIPHON_TIMEOUT`` comes before the ``timeout`` of PyTorch, whose default is half an hour.

:func:`tune` measures the calls of a group in a job's first seconds, and :func:`explain` says what ran for which sizes, and how long it took.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch.distributed as dist

from antiphon.torch._group import Group, Options, groups
from antiphon.torch._tune import tune

__all__ = ["Options", "explain", "register", "tune"]


def _create(options: Any, backend_options: Any = None) -> Any:
    """A backend for a group; PyTorch calls it on every rank of the group."""
    group = Group.of(
        store=options.store,
        rank=options.group_rank,
        size=options.group_size,
        timeout=options.timeout,
        name=options.group_id,
        ranks=list(options.global_ranks_in_group) or list(range(options.group_size)),
        options=backend_options,
    )
    # Where TORCH_DISTRIBUTED_DEBUG is DETAIL, PyTorch puts a backend into one that cannot call Python.
    if hasattr(dist.ProcessGroup, "all_gather_single") and dist.get_debug_level() != dist.DebugLevel.DETAIL:
        from antiphon.torch._backend import AntiphonBackend

        return AntiphonBackend(group)
    from antiphon.torch._process_group import AntiphonProcessGroup

    return AntiphonProcessGroup(group)


def register() -> None:
    """Makes the backend known to PyTorch. PyTorch calls it by itself where it knows entry points."""
    if "ANTIPHON" not in dist.Backend._plugins:
        own = {"extended_api": True, "devices": ["cpu"]}
        # Before 2.0, a backend was for all devices.
        known = inspect.signature(dist.Backend.register_backend).parameters
        dist.Backend.register_backend("antiphon", _create, **{name: value for name, value in own.items() if name in known})


def explain() -> str:
    """What ran in this process: for each group, and each collective, size and type, the plan, how often, and how long a blocking
    call took on average."""
    return "\n".join(group.explain() for group in groups()) or "no group of the backend antiphon is there"


register()
