"""The compiled part: see `python/src`. It is not for users."""

import os
from collections.abc import Buffer, Callable, Sequence
from typing import Any

__version__: str

def tune(
    communicator: Communicator,
    candidates: Sequence[tuple[str, Sequence[str], Callable[..., object], Callable[..., bool] | None]],
    collectives: Sequence[str] | None,
    sizes: Sequence[int] | None,
    dtype: str,
    op: str,
    budget: float,
    timeout: float,
    seed: int,
) -> str | None: ...
def use_candidates(
    communicator: Communicator,
    candidates: Sequence[tuple[str, Sequence[str], Callable[..., object], Callable[..., bool] | None]],
) -> list[str]: ...

class Handle:
    def test(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> None: ...
    def when_over(self, listener: Callable[[], object]) -> None: ...

class CallCounts:
    def __init__(self, core: Communicator) -> None: ...
    def add(self, name: str, bytes_: int, dtype: str, nanoseconds: int | None = None) -> None: ...
    # Name, bytes and type; plan, calls, and the nanoseconds and number of those that were timed.
    def items(self) -> list[tuple[tuple[str, int, str], tuple[str, int, int, int]]]: ...
    def clear(self) -> None: ...

class StraightSum:
    def __init__(self, core: Communicator, counts: CallCounts, added: dict[Any, str], strided: object, sum: object) -> None: ...
    def __call__(self, tensors: object, options: object) -> bool: ...

class Communicator:
    rank: int
    size: int
    @staticmethod
    def from_env() -> Communicator: ...
    @staticmethod
    def connect(
        rank: int,
        size: int,
        masters: Sequence[str],
        secret: str | None = None,
        timeout: float | None = None,
        joining: float | None = None,
        machine: str | None = None,
        table: str | os.PathLike[str] | None = None,
    ) -> Communicator: ...
    @staticmethod
    def local(ranks: int) -> list[Communicator]: ...
    def split(self, color: int | None, key: int = 0) -> Communicator | None: ...
    def duplicate(self) -> Communicator: ...
    def subset(self, members: Sequence[int], tag: int) -> Communicator: ...
    def rebuild(self, least: int = 1) -> Communicator: ...
    def abort(self) -> None: ...
    def set_timeout(self, limit: float) -> None: ...
    def use_table(self, path: str) -> None: ...
    def sender_of_next(self, timeout: float | None = None) -> int | None: ...
    # "plans", "stock", "prepared", "confirmation" and "long_messages"; `antiphon.Communicator.statistics` says what is in them.
    def statistics(self) -> dict[str, Any]: ...
    def last_plan(self) -> str: ...
    def collective(
        self,
        name: str,
        send: Buffer | None,
        receive: Buffer | None,
        op: str | None = None,
        root: int | None = None,
        dtype: str | None = None,
        begin: bool = False,
    ) -> Handle | None: ...
    def collective_at(
        self,
        name: str,
        send: tuple[int, int],
        receive: tuple[int, int],
        dtype: str,
        op: str | None = None,
        root: int | None = None,
        owners: object = None,
    ) -> Handle | None: ...
    def exchange(
        self,
        send: Buffer,
        counts: Sequence[int],
        receive: Buffer,
        receive_counts: Sequence[int],
        offsets: Sequence[int] | None = None,
        receive_offsets: Sequence[int] | None = None,
        dtype: str | None = None,
        begin: bool = False,
    ) -> Handle | None: ...
    def exchange_at(
        self,
        send: tuple[int, int],
        counts: Sequence[int],
        receive: tuple[int, int],
        receive_counts: Sequence[int],
        dtype: str,
        owners: object = None,
    ) -> Handle | None: ...
    def message(self, buffer: Buffer, peer: int, is_sent: bool, begin: bool = False) -> Handle | None: ...
    def message_at(
        self, buffer: tuple[int, int], peer: int, is_sent: bool, owners: object = None
    ) -> Handle | None: ...
