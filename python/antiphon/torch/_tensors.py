"""Tensors as the library takes them: memory, and names of types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from antiphon._errors import ArgumentError

_ANY = frozenset({"sum", "prod", "min", "max", "avg"})
#: What the library reduces: names of types, and with which reductions.
REDUCED = {
    torch.float32: ("f32", _ANY),
    torch.float64: ("f64", _ANY),
    torch.float16: ("f16", _ANY),
    torch.bfloat16: ("bf16", _ANY),
    torch.int32: ("i32", _ANY - {"avg"}),
    torch.int64: ("i64", _ANY - {"avg"}),
    torch.uint8: ("u8", _ANY - {"avg"}),
    torch.int8: ("i8", frozenset({"sum", "prod"})),
    torch.bool: ("bool", frozenset({"min", "max"})),
}
#: Names of types that the library adds.
ADDED = {dtype: name for dtype, (name, ops) in REDUCED.items() if "sum" in ops}
#: Names of types of which only the size matters, where they are not reduced.
_OF_SIZE = {1: "u8", 2: "u16", 4: "i32", 8: "i64", 16: "complex128"}


def moved(tensor: torch.Tensor) -> str:
    """As what elements travel that are not reduced."""
    known = REDUCED.get(tensor.dtype)
    return known[0] if known is not None else _OF_SIZE[tensor.element_size()]


def length(tensor: torch.Tensor) -> int:
    """How many bytes a tensor has. Older versions of PyTorch have no ``nbytes``."""
    return tensor.numel() * tensor.element_size()


def place(tensor: torch.Tensor) -> tuple[int, int]:
    """The address and bytes of a contiguous tensor."""
    return tensor.data_ptr(), length(tensor)


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy of it that is contiguous."""
    if tensor.layout is torch.strided and tensor.is_cpu:
        return tensor if tensor.is_contiguous() else tensor.contiguous()
    raise ArgumentError(f"the backend antiphon takes dense CPU tensors, not {tensor.layout} on {tensor.device}")


def put(made: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> Callable[[], None] | None:
    """What copies results to where they are wanted, if they are not there already."""
    pairs = [(source, target) for source, target in zip(made, wanted) if source is not target]
    if not pairs:
        return None

    def copy() -> None:
        with torch.no_grad():
            for source, target in pairs:
                target.copy_(source.view(target.shape))

    return copy


def one(tensors: Any) -> Any:
    """The only tensor of a list: a process has one device."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise ArgumentError(f"a call has one tensor for each process, not {len(tensors)}")
    return tensors[0]
