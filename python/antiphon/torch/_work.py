"""What PyTorch gets for a call: a ``Work``, which has a ``Future``."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Work, _create_work_from_future

from antiphon import _core

#: What PyTorch's own work does not hand on to that of a Python backend.
_NOT_HANDED_ON = ("is_completed", "is_success", "exception", "result", "synchronize", "source_rank", "_source_rank")


class _Look(threading.local):
    """What a thread does that looks for the work behind one of PyTorch's."""

    is_under_way = False
    found: PendingWork | None = None


_LOOK = _Look()
#: The result of what was over at once.
_ENDED: list[torch.Tensor] = []
#: What a work gives to who only looks for it.
_NO_FUTURE: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
#: Before 2.0, PyTorch's C++ keeps only its own part of a work, which knows no end: works stay here until they have been waited for.
_KEPT: set[PendingWork] | None = set() if int(torch.__version__.split(".")[0]) < 2 else None


def done(tensors: list[torch.Tensor]) -> PendingWork:
    """A call that was over before it returned."""
    return PendingWork([], tensors)


def done_and_waited_for() -> Any:
    """The same where nobody but PyTorch's C++ sees the work, which asks this one without calling Python."""
    future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
    future.set_result(_ENDED)
    return _create_work_from_future(future)


#: A call that is over, where nobody but PyTorch's C++ sees the work.
DONE = done_and_waited_for()


def see_through_works() -> None:
    """Lets PyTorch's works say what ours know.

    From 2.14 on, PyTorch puts the work of a Python backend into one of its own, which hands on ``wait`` and ``get_future`` only.
    The rest would say for ever that the call is not over, and a program that asks until it is would never end. The works of other
    backends answer as before.
    """
    for name in _NOT_HANDED_ON:
        own = getattr(Work, name)
        if not hasattr(own, "__wrapped__"):
            setattr(Work, name, _handed_on(name, own))


def _handed_on(name: str, own: Callable[[Work], Any]) -> Callable[[Work], Any]:
    @functools.wraps(own)
    def method(self: Work) -> Any:
        work = _behind(self)
        return own(self) if work is None else getattr(work, name)()

    return method


def _behind(work: Work) -> PendingWork | None:
    """Our work behind one of PyTorch's, if there is one: PyTorch asks it for its future, in this thread."""
    _LOOK.found, _LOOK.is_under_way = None, True
    try:
        # Works of other backends may have none.
        with contextlib.suppress(RuntimeError):
            future = work.get_future()
            if _LOOK.found is None and future.done() and future.value() is _ENDED:
                _LOOK.found = done(_ENDED)
    finally:
        _LOOK.is_under_way = False
    found, _LOOK.found = _LOOK.found, None
    return found


class PendingWork(Work):
    """Calls under way, which a thread of the library carries on. ``after`` is done once, when they are over.

    With a backend of PyTorch 2.14 or newer, users see this through PyTorch's own ``Work``: see :func:`see_through_works`.
    """

    def __init__(
        self,
        handles: list[_core.Handle],
        tensors: list[torch.Tensor],
        after: Callable[[], None] | None = None,
        source: int = -1,
    ) -> None:
        super().__init__()
        self._handles = handles
        self._tensors = tensors
        self._after = after
        self._source = source
        self._lock = threading.Lock()
        self._is_over = False
        self._error: BaseException | None = None
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None
        if _KEPT is not None:
            _KEPT.add(self)

    def _end(self, timeout: float | None) -> None:
        """Waits for the end. What the call raises is kept."""
        with self._lock:
            if self._is_over:
                return
            for handle in self._handles:
                try:
                    handle.wait(timeout)
                except Exception as error:
                    if isinstance(error, TimeoutError) and not _is_over(handle):
                        # It was only the patience of whoever waits.
                        raise
                    self._error = self._error or error
            if self._after is not None and self._error is None:
                self._after()
            self._is_over = True
            self.hand_over()

    def hand_over(self) -> tuple[list[_core.Handle], Callable[[], None] | None]:
        """The calls, and what follows them, for a work that takes the place of this one."""
        handed, self._handles, self._after = (self._handles, self._after), [], None
        if _KEPT is not None:
            _KEPT.discard(self)
        return handed

    def is_over_within(self, seconds: float) -> bool:
        """Whether the calls are over after so many seconds at most.

        Raises what they raise.
        """
        try:
            return self.wait(timedelta(seconds=max(seconds, 1e-3)))
        except TimeoutError:
            if self._is_over:
                raise
            return False

    def is_completed(self) -> bool:
        if self._is_over:
            return True
        if not all(_is_over(handle) for handle in list(self._handles)):
            return False
        self._end(None)
        return True

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        return self._error if self.is_completed() else None

    def wait(self, timeout: Any = None) -> bool:
        limit = None
        if isinstance(timeout, timedelta) and timeout > timedelta():
            limit = timeout.total_seconds()
        self._end(limit)
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        return self._tensors

    def source_rank(self) -> int:
        return self._source

    def _source_rank(self) -> int:
        return self._source

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        if _LOOK.is_under_way:
            _LOOK.found = self
            return _NO_FUTURE
        if self._future is None:
            self._future = torch.futures.Future()
            self._promise(self._future)
        return self._future

    def _promise(self, future: torch.futures.Future[list[torch.Tensor]]) -> None:
        """Completes a future when the calls are over."""
        left = _Countdown(len(self._handles), lambda: self._complete(future))
        for handle in list(self._handles):
            handle.when_over(left)
        if not left.total:
            self._complete(future)

    def _complete(self, future: torch.futures.Future[list[torch.Tensor]]) -> None:
        self._end(None)
        if isinstance(self._error, Exception):
            future.set_exception(self._error)
        else:
            future.set_result(self._tensors)


class _Countdown:
    """Does something when it was called as often as there are calls."""

    def __init__(self, total: int, then: Callable[[], None]) -> None:
        self.total = total
        self._left = total
        self._then = then
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            self._left -= 1
            is_last = self._left == 0
        if is_last:
            self._then()


def is_done(handle: _core.Handle) -> bool:
    """Whether a call is over and went well."""
    try:
        return handle.test()
    except Exception:
        # Whoever waits for it is told.
        return False


def _is_over(handle: _core.Handle) -> bool:
    try:
        return handle.test()
    except Exception:
        # It is over, and has failed; `wait` tells why.
        return True
