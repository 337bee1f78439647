"""Calls under way."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from antiphon import _core


class Handle:
    """A call under way, which a thread of the library carries on.

    The memory of the call belongs to it until the call is over; what it is made of may be dropped meanwhile. In a coroutine,
    ``await handle`` waits, and gives what ``wait`` returns.
    """

    __slots__ = ("_core", "_result")

    def __init__(self, core: _core.Handle, result: Any) -> None:
        self._core = core
        self._result = result

    def test(self) -> bool:
        """Whether the call is over. Raises an :class:`antiphon.Error` if it has failed.

        It never waits: just after the last message of a call it may still say no, until the library's thread has told the end.
        """
        return self._core.test()

    def wait(self, timeout: float | None = None) -> Any:
        """Waits until the call is over, and returns what the call without ``async_`` would.

        After ``timeout`` seconds it raises :class:`antiphon.TimeoutError_`, and the call goes on.
        """
        self._core.wait(timeout)
        return self._result

    def __await__(self) -> Generator[Any, None, Any]:
        import asyncio

        loop = asyncio.get_running_loop()
        is_over: asyncio.Future[None] = loop.create_future()

        def tell() -> None:
            if not is_over.done():
                is_over.set_result(None)

        def over() -> None:
            try:
                loop.call_soon_threadsafe(tell)
            except RuntimeError:
                # The loop was closed: nobody waits any more.
                pass

        self._core.when_over(over)
        yield from is_over
        return self.wait()
