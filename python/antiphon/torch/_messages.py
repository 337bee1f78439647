"""Messages between two ranks of a group."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from antiphon._errors import TimeoutError_
from antiphon.torch._group import Group
from antiphon.torch._tensors import one, place, put
from antiphon.torch._work import DONE, PendingWork, is_done


class Messages:
    """The messages of a group. Those with different tags do not wait for each other."""

    _group: Group
    _dense: Callable[[torch.Tensor], torch.Tensor]

    def send(self, tensors: Any, peer: int, tag: int = 0) -> Any:
        tensor = self._dense(one(tensors))
        handle = self._group.tagged(tag).message_at(place(tensor), peer, True, tensor)
        # A short message leaves at once.
        return DONE if is_done(handle) else PendingWork([handle], [tensor])

    def recv(self, tensors: Any, peer: int, tag: int = 0) -> Any:
        tensor = one(tensors)
        whole = self._dense(tensor)
        handle = self._group.tagged(tag).message_at(place(whole), peer, False, whole)
        after = None if whole is tensor else put([whole], [tensor])
        return PendingWork([handle], [tensor], after, source=peer)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        tensor = one(tensors)
        return WorkOfAnySource(self._group.tagged(tag), tensor, self._dense(tensor))


class WorkOfAnySource(PendingWork):
    """A receive from whoever sends next. It looks for a sender when it is asked, not before: of several, the one that is asked first gets
    the first message."""

    def __init__(self, core: Any, tensor: torch.Tensor, whole: torch.Tensor) -> None:
        super().__init__([], [tensor], None if whole is tensor else put([whole], [tensor]))
        self._core = core
        self._whole = whole
        self._begins = threading.Lock()

    def _begin(self, timeout: float | None) -> bool:
        """Whether a sender was found within so many seconds, or never will be."""
        with self._begins:
            if self._source < 0 and not self._is_over:
                try:
                    peer = self._core.sender_of_next(timeout)
                    if peer is None:
                        return False
                    self._handles = [self._core.message_at(place(self._whole), peer, False, self._whole)]
                    self._source = peer
                except Exception as error:
                    self._error, self._is_over = error, True
                    self.hand_over()
            return True

    def _end(self, timeout: float | None) -> None:
        if not self._begin(timeout):
            raise TimeoutError_(f"no rank has sent anything within {timeout:g} s; the receive goes on")
        super()._end(timeout)

    def is_completed(self) -> bool:
        return self._begin(0.0) and super().is_completed()

    def _promise(self, future: torch.futures.Future[list[torch.Tensor]]) -> None:
        # Nobody else would look for a sender.
        threading.Thread(target=self._complete, args=(future,), name="antiphon-receive", daemon=True).start()
