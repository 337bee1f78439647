"""Collective communication that is planned for the machine on which it runs.

    import antiphon, numpy as np
    comm = antiphon.Communicator.from_env()      # torchrun, mpirun, srun, or ANTIPHON_RANK/SIZE/MASTER
    x = np.full(1000, comm.rank, np.float32)
    comm.all_reduce(x)                           # in place: every rank has the sum

Neither NumPy nor PyTorch is needed or imported. For ``torch.distributed``, see :mod:`antiphon.torch`.
"""

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

__all__ = [
    "AbortedError",
    "ArgumentError",
    "Communicator",
    "Error",
    "Handle",
    "InternalError",
    "MismatchError",
    "PeerLostError",
    "SystemError_",
    "TimeoutError_",
    "UnsupportedError",
    "__version__",
]
