"""What calls are given that run natively: sizes of tensors and numbers in their arguments, with the paths to them."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from capture import _C
from capture.refgraph.node import SCALARS
from capture.refgraph.source import Item, Local, Source

MOST = 200          # values that are looked at


@dataclass(frozen=True, slots=True)
class Given:
    """The number at a path; or the size of the tensor there, and its strides, as `TensorProperties.with_free` has them."""

    source: Source
    number: int | float | None = None
    size: torch.Size | None = None
    stride: tuple[int, ...] = ()


def given_values(names: Sequence[str], args: Sequence[Any]) -> Iterator[Given]:
    """The numbers and plain tensors among the arguments of a call, and in those that are plain lists, tuples and dicts."""
    todo: list[tuple[Source, Any]] = [(Local(name, index), arg) for index, (name, arg) in enumerate(zip(names, args))]
    for source, value in todo:
        room = MOST - len(todo)
        if type(value) is list or type(value) is tuple:
            todo += ((Item(source, i), item) for i, item in enumerate(value[:room]))
        elif type(value) is dict:
            todo += [(Item(source, key), item) for key, item in value.items() if type(key) in SCALARS][:room]
        elif type(value) is int or type(value) is float:
            yield Given(source, number=value)
        elif type(value) is torch.Tensor and value.layout is torch.strided and not value.is_nested:
            yield Given(source, size=value.shape, stride=_C.tensor_properties(value).with_free(range(value.dim())).stride)
