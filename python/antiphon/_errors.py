"""What can go wrong. The classes tell the kinds apart; the texts say what, which rank, and what to do."""

from __future__ import annotations


class Error(RuntimeError):
    """Anything that goes wrong in a call. It is a ``RuntimeError``, as errors of PyTorch's own backends are.

    ``rank`` is the rank that the error is about, numbered as when the processes met (not as in a group that was split off), or
    ``None``.
    """

    rank: int | None = None


class ArgumentError(Error, ValueError):
    """A value makes no sense. Nothing was sent, and the communicator stays as it is."""


class PeerLostError(Error, ConnectionError):
    """A rank is gone. This call and all later ones of the communicator fail; ``rebuild`` makes one of those that are left."""


class TimeoutError_(Error, TimeoutError):
    """A rank did not do its part in time. This call and all later ones of the communicator fail."""


class MismatchError(Error):
    """Ranks do not make the same call. This call and all later ones of the communicator fail."""


class AbortedError(Error):
    """A rank has ended all calls of the communicator."""


class SystemError_(Error, OSError):
    """The operating system refused something."""


class UnsupportedError(Error, NotImplementedError):
    """The library does not do this."""


class InternalError(Error):
    """A defect of the library."""
