"""Collective communication that is planned for the machine on which it runs.

    import antiphon, numpy as np
    comm = antiphon.Communicator.from_env()      # torchrun, mpirun, srun, or ANTIPHON_RANK/SIZE/MASTER
    x = np.full(1000, comm.rank, np.float32)
    comm.all_reduce(x)                           # in place: every rank has the sum

    plan = antiphon.synthesize("ndv2x2", "allgather", "1MB")   # plan.makespan, plan.bound, plan.timeline

Neither NumPy nor PyTorch is needed or imported. For ``torch.distributed``, see :mod:`antiphon.torch`.
"""

from typing import TYPE_CHECKING, Any

from antiphon._communicator import Communicator
from antiphon._core import __version__
from antiphon._errors import (
    AbortedError,
    ArgumentError,
    Error,
    InternalError,
    MismatchError,
    PeerLostError,
    SystemError_,
    TimeoutError_,
    UnsupportedError,
)
from antiphon._handle import Handle

if TYPE_CHECKING:
    from antiphon._planning import Plan, Topology, synthesize
    from antiphon._tuning import CandidateCall, Tuning

__all__ = [
    "AbortedError",
    "ArgumentError",
    "CandidateCall",
    "Communicator",
    "Error",
    "Handle",
    "InternalError",
    "MismatchError",
    "PeerLostError",
    "Plan",
    "SystemError_",
    "TimeoutError_",
    "Topology",
    "Tuning",
    "UnsupportedError",
    "__version__",
    "synthesize",
]


def __getattr__(name: str) -> Any:
    # Planning starts processes; who only communicates does not load what that needs.
    if name in ("Plan", "Topology", "synthesize"):
        from antiphon import _planning

        return getattr(_planning, name)
    if name in ("CandidateCall", "Tuning"):
        from antiphon import _tuning

        return getattr(_tuning, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
