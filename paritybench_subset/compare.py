"""What of two runs of a program differs: results, arguments, and the state of the module with its gradients."""
from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import numpy as np
import torch

SCALARS = (bool, int, float, complex, str, bytes, type(None), range, slice, type(...),
           torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)
OPAQUE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.CodeType,
          types.GeneratorType, torch.Generator, Mock)
MARKS = ("_dynamo", "_is_torch_compile", "__")     # with which engines begin the names of attributes that they leave behind
MOST = 5                    # differences that are reported


def differences(left: Any, right: Any, tolerance: float) -> list[str]:
    """One line for each place at which two object graphs differ, at most `MOST`. `tolerance`: of floating-point values, relative
    and absolute. Objects met before must be the same objects on both sides; functions, classes and mocks are not looked into."""
    found: list[str] = []
    for line in _Walk(tolerance).compare("", left, right):
        found.append(line)
        if len(found) == MOST:
            break
    return found


class _Walk:
    def __init__(self, tolerance: float) -> None:
        self.tolerance = tolerance
        self.seen: dict[int, tuple[str, Any]] = {}      # the other side's object, by that of the left side
        self.alive: list[Any] = []

    def compare(self, path: str, left: Any, right: Any) -> Iterator[str]:
        if _class(left) != _class(right):
            yield f"{path}: {_name(left)} in eager, {_name(right)} here"
        elif isinstance(left, SCALARS):
            if not _same(left, right, self.tolerance):
                yield f"{path}: {left!r:.60} in eager, {right!r:.60} here"
        elif isinstance(left, OPAQUE):
            return
        elif id(left) in self.seen:
            where, other = self.seen[id(left)]
            if not _is_one(other, right):
                yield f"{path}: is {where} in eager, but not here"
        else:
            self.seen[id(left)] = path, right
            self.alive += [left, right]             # identities stay theirs
            if isinstance(left, torch.Tensor):
                yield from self.tensors(path, left, right)
            elif isinstance(left, np.ndarray):
                yield from self.arrays(path, left, right)
            yield from self.children(path, left, right)

    def tensors(self, path: str, left: torch.Tensor, right: torch.Tensor) -> Iterator[str]:
        for name in ("shape", "dtype", "layout", "requires_grad"):
            ours, theirs = getattr(left, name), getattr(right, name)
            if ours != theirs:
                yield f"{path}: {name} {ours} in eager, {theirs} here"
                return
        if left.is_meta or left.is_quantized:
            return
        try:
            torch.testing.assert_close(_dense(right), _dense(left), rtol=self.tolerance, atol=self.tolerance, equal_nan=True)
        except AssertionError as error:
            yield f"{path}: {' '.join(str(error).split())[:200]}"

    def arrays(self, path: str, left: np.ndarray, right: np.ndarray) -> Iterator[str]:
        if left.shape != right.shape or left.dtype != right.dtype:
            yield f"{path}: {left.dtype}{left.shape} in eager, {right.dtype}{right.shape} here"
        elif left.dtype.kind in "fc":
            if not np.allclose(left, right, self.tolerance, self.tolerance, equal_nan=True):
                yield f"{path}: values differ"
        elif left.dtype.kind != "O" and not np.array_equal(left, right):
            yield f"{path}: values differ"

    def children(self, path: str, left: Any, right: Any) -> Iterator[str]:
        ours, theirs = dict(_parts(left)), dict(_parts(right))
        for step in ours.keys() ^ theirs.keys():
            yield f"{path}{step}: only {'in eager' if step in ours else 'here'}"
        for step in ours:
            if step in theirs:
                yield from self.compare(path + step, ours[step], theirs[step])


def _parts(obj: Any) -> Iterator[tuple[str, Any]]:
    """What an object holds, by the step from it."""
    if isinstance(obj, torch.Tensor):
        if obj.is_leaf and obj.grad is not None:
            yield ".grad", obj.grad
    elif isinstance(obj, dict):
        for number, (key, value) in enumerate(obj.items()):
            plain = isinstance(key, SCALARS)
            yield f"[{key!r}]" if plain else f".value({number})", value
            if not plain:
                yield f".key({number})", key
    elif isinstance(obj, (list, tuple)):
        yield from ((f"[{number}]", item) for number, item in enumerate(obj))
    elif isinstance(obj, (set, frozenset)):
        yield ".length", len(obj)
        yield from ((f".element({item!r})", item) for item in obj if isinstance(item, SCALARS))
    attributes = getattr(obj, "__dict__", None)
    if isinstance(attributes, dict):
        yield from ((f".{name}", value) for name, value in attributes.items() if not name.startswith(MARKS))


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    tensor = tensor if tensor.layout is torch.strided else tensor.to_dense()
    return tensor.resolve_conj().resolve_neg()


def _same(left: Any, right: Any, tolerance: float) -> bool:
    if isinstance(left, (float, complex)):
        return bool(np.isclose(left, right, tolerance, tolerance, equal_nan=True))
    return bool(left == right)


def _is_one(left: Any, right: Any) -> bool:
    """Whether two objects are one to a program: a compiled module may be another object over the very `__dict__` of the module."""
    return left is right or isinstance(left, torch.nn.Module) and isinstance(right, torch.nn.Module) and vars(left) is vars(right)


def _class(obj: Any) -> tuple[str, str]:
    """Two runs of one program may each make a class of their own."""
    return type(obj).__module__, type(obj).__qualname__


def _name(obj: Any) -> str:
    return repr(obj)[:60] if isinstance(obj, SCALARS) else type(obj).__qualname__
