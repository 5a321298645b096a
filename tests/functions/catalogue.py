"""The functions that are run: torch's, with the samples that torch itself tests them on, and numpy's, on the arrays of tensors."""
from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from tests.functions.compare import Case
from tests.samples import name_of, samples_of

# What is in memory, which nothing tells; and what needs a GPU.
LEFT_OUT = ("empty", "new_empty", "jiterator")


# -- torch -------------------------------------------------------------------------------------------------------------

def torch_cases(samples: int = 2, every: int = 1) -> Iterator[Case]:
    """Every operator that torch has samples for, as function, method and in place, with and without gradients: one of `every`."""
    from torch.testing._internal.common_methods_invocations import op_db
    for info in sorted(op_db, key=lambda info: (info.name, info.variant_test_name))[::every]:
        if not info.name.startswith(LEFT_OUT):
            yield from _cases(info, samples)


def _cases(info: Any, samples: int) -> Iterator[Case]:
    name = name_of(info)
    for dtype in (torch.float32, torch.int64, torch.complex64, torch.bool):
        if dtype not in info.supported_dtypes("cpu"):
            continue
        differentiable = dtype is torch.float32 and info.supports_autograd
        found = list(itertools.islice(samples_of(info, dtype, False), 60))
        for sample in found[::max(1, len(found) // samples)][:samples]:
            arguments = (sample.input, *sample.args)
            for kind, function in (("", function_of(info)), (".method", info.method_variant),
                                   (".in_place", info.inplace_variant)):
                if function is not None and not (kind and function is info.op):
                    yield Case(name + kind, _call(function, sample.kwargs), arguments)
        if differentiable:
            for sample in itertools.islice(samples_of(info, dtype, True), samples):
                yield Case(name + ".gradients", _call(function_of(info), sample.kwargs), (sample.input, *sample.args),
                           backward=True)


def function_of(info: Any) -> Any:
    """The operator itself, of which torch's tests wrap some that draw random numbers."""
    found: Any = torch
    for part in info.name.split("."):
        found = getattr(found, part, None)
    return found if callable(found) and info.op.__module__.startswith("torch.testing") else info.op


def _call(function: Callable[..., Any], kwargs: dict[str, Any]) -> Callable[..., Any]:
    def program(*args: Any) -> Any:
        return function(*args, **kwargs)
    return program


# -- numpy -------------------------------------------------------------------------------------------------------------

def numpy_cases() -> Iterator[Case]:
    """Every function of elements, and the functions in `CALLS`, each on arrays of tensors: what it returns, and that as tensors."""
    for name in sorted(set(dir(np))):
        function = getattr(np, name)
        if isinstance(function, np.ufunc) and name not in UNSAFE:
            for dtype in (torch.float32, torch.int32, torch.bool):
                tensors = _tensors(dtype)[:function.nin]
                if _accepts(function, tensors):
                    yield from _both(f"np.{name}", _elementwise(function), tensors)
    for text, function in CALLS.items():
        for dtype in (torch.float32, torch.float64, torch.int64):
            if _accepts(function, _tensors(dtype)[:1]):
                yield from _both(text, function, _tensors(dtype)[:1])


UNSAFE = {"matmul", "vecdot", "matvec", "vecmat"}             # of other shapes: among `CALLS`


def _tensors(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    first = torch.tensor([[3, 1, 2, 5], [7, 2, 6, 4], [1, 8, 9, 2]])
    return first.to(dtype), (first.flip(0) - 1).to(dtype)


def _elementwise(function: Any) -> Callable[..., Any]:
    return lambda *arrays: function(*arrays)


def _accepts(function: Callable[..., Any], tensors: tuple[torch.Tensor, ...]) -> bool:
    try:
        with np.errstate(all="ignore"):
            function(*(t.clone().numpy() for t in tensors))
    except (TypeError, ValueError, AttributeError, np.linalg.LinAlgError):
        return False
    return True


def _both(name: str, function: Callable[..., Any], tensors: tuple[torch.Tensor, ...]) -> Iterator[Case]:
    def returned(*given: torch.Tensor) -> Any:
        return function(*(t.numpy() for t in given))

    def crossing(*given: torch.Tensor) -> Any:
        result = function(*((t * 2).numpy() for t in given))
        if isinstance(result, np.ndarray):
            return torch.from_numpy(result) + given[0].sum()
        if isinstance(result, (tuple, list)):
            return [torch.from_numpy(item) for item in result]
        return given[0] * float(result)

    def shared(*given: torch.Tensor) -> Any:
        result = function(*(t.numpy() for t in given))
        return torch.from_numpy(result) if isinstance(result, np.ndarray) else result
    yield Case(name, returned, tensors)
    yield Case(f"{name} as tensor", crossing, tensors)
    yield Case(f"{name} on the same memory", shared, tensors)


def _in_place(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def function(array: Any) -> Any:
        change(array)
        return array
    return function


def _assign(array: Any) -> None:
    array[0] = 1


def _add(array: Any) -> None:
    array += 1


CALLS: dict[str, Callable[[Any], Any]] = {
    "itself": lambda a: a,
    "a + 1": lambda a: a + 1,
    "2 * a - a": lambda a: 2 * a - a,
    "a @ a.T": lambda a: a @ a.T,
    "a[1:]": lambda a: a[1:],
    "a[0]": lambda a: a[0],
    "a[..., ::2]": lambda a: a[..., ::2],
    "a[a > 2]": lambda a: a[a > 2],
    "a[[0, 2]]": lambda a: a[[0, 2]],
    "a[0, 1]": lambda a: a[0, 1],
    "a > 2": lambda a: a > 2,
    "a.shape": lambda a: a.shape,
    "a.dtype": lambda a: str(a.dtype),
    "a.T": lambda a: a.T,
    "a.astype": lambda a: a.astype(np.float64),
    "a.copy": lambda a: a.copy(),
    "a.reshape": lambda a: a.reshape(2, -1),
    "a.ravel": lambda a: a.ravel(),
    "a.flatten": lambda a: a.flatten(),
    "a.sum": lambda a: a.sum(),
    "a.sum(0)": lambda a: a.sum(0),
    "a.mean": lambda a: a.mean(),
    "a.mean(1)": lambda a: a.mean(1),
    "a.std(0)": lambda a: a.std(0),
    "a.max(1)": lambda a: a.max(1),
    "a.argmax(1)": lambda a: a.argmax(1),
    "a.transpose": lambda a: a.transpose(1, 0),
    "a.tolist": lambda a: a.tolist(),
    "a.item": lambda a: a[0, 0].item(),
    "a.clip": lambda a: a.clip(2, 5),
    "a.round": lambda a: a.round(1),
    "a.cumsum": lambda a: a.cumsum(0),
    "a.squeeze": lambda a: a[None].squeeze(),
    "a.repeat": lambda a: a.repeat(2),
    "a.take": lambda a: a.take([0, 3]),
    "a.dot": lambda a: a.dot(a.T),
    "a.nonzero": lambda a: a.nonzero(),
    "a.all": lambda a: a.all(),
    "a += 1": _in_place(_add),
    "a[0] = 1": _in_place(_assign),
    "a.fill": _in_place(lambda a: a.fill(2)),
    "a.sort": _in_place(lambda a: a.sort()),
    "np.add(out=)": _in_place(lambda a: np.add(a, 1, out=a, casting="unsafe")),
    "np.copyto": _in_place(lambda a: np.copyto(a, 3)),
    "np.put": _in_place(lambda a: np.put(a, [0, 1], 9)),
    "np.array": lambda a: np.array(a),
    "np.asarray": lambda a: np.asarray(a),
    "np.ascontiguousarray": lambda a: np.ascontiguousarray(a.T),
    "np.zeros_like": lambda a: np.zeros_like(a),
    "np.ones_like": lambda a: np.ones_like(a),
    "np.full_like": lambda a: np.full_like(a, 2),
    "np.zeros": lambda a: np.zeros(a.shape) + a,
    "np.ones": lambda a: np.ones(4, dtype=np.float32) * a,
    "np.arange": lambda a: np.arange(a.shape[1]) + a,
    "np.eye": lambda a: np.eye(3) @ a,
    "np.linspace": lambda a: np.linspace(0, 1, 4) * a,
    "np.mean": lambda a: np.mean(a, axis=0),
    "np.mean all": lambda a: np.mean(a),
    "np.sum": lambda a: np.sum(a, axis=1, keepdims=True),
    "np.prod": lambda a: np.prod(a, axis=0),
    "np.std": lambda a: np.std(a, axis=1),
    "np.var": lambda a: np.var(a),
    "np.min": lambda a: np.min(a, axis=0),
    "np.max": lambda a: np.max(a),
    "np.ptp": lambda a: np.ptp(a, axis=0),
    "np.median": lambda a: np.median(a, axis=0),
    "np.percentile": lambda a: np.percentile(a, 30, axis=0),
    "np.quantile": lambda a: np.quantile(a, 0.3),
    "np.average": lambda a: np.average(a, axis=0),
    "np.argmax": lambda a: np.argmax(a, axis=1),
    "np.argsort": lambda a: np.argsort(a, axis=1),
    "np.sort": lambda a: np.sort(a, axis=1),
    "np.unique": lambda a: np.unique(a),
    "np.cumsum": lambda a: np.cumsum(a, axis=1),
    "np.diff": lambda a: np.diff(a, axis=1),
    "np.where": lambda a: np.where(a > 2, a, 0),
    "np.where one": lambda a: np.where(a > 2),
    "np.nonzero": lambda a: np.nonzero(a),
    "np.clip": lambda a: np.clip(a, 2, 4),
    "np.round": lambda a: np.round(a, 1),
    "np.dot": lambda a: np.dot(a, a.T),
    "np.matmul": lambda a: np.matmul(a, a.T),
    "np.einsum": lambda a: np.einsum("ij,kj->ik", a, a),
    "np.tensordot": lambda a: np.tensordot(a, a, 2),
    "np.outer": lambda a: np.outer(a[0], a[1]),
    "np.inner": lambda a: np.inner(a, a),
    "np.trace": lambda a: np.trace(a),
    "np.linalg.norm": lambda a: np.linalg.norm(a, axis=1),
    "np.linalg.svd": lambda a: np.linalg.svd(a)[1],
    "np.linalg.inv": lambda a: np.linalg.inv(a[:, :3] + np.eye(3) * 9),
    "np.reshape": lambda a: np.reshape(a, (4, 3)),
    "np.ravel": lambda a: np.ravel(a),
    "np.transpose": lambda a: np.transpose(a),
    "np.swapaxes": lambda a: np.swapaxes(a, 0, 1),
    "np.moveaxis": lambda a: np.moveaxis(a, 0, 1),
    "np.expand_dims": lambda a: np.expand_dims(a, 0),
    "np.squeeze": lambda a: np.squeeze(a[:1]),
    "np.broadcast_to": lambda a: np.broadcast_to(a, (2, 3, 4)),
    "np.atleast_2d": lambda a: np.atleast_2d(a[0]),
    "np.concatenate": lambda a: np.concatenate([a, a]),
    "np.stack": lambda a: np.stack([a, a], axis=1),
    "np.vstack": lambda a: np.vstack([a, a]),
    "np.hstack": lambda a: np.hstack((a, a)),
    "np.split": lambda a: np.split(a, 2, axis=1),
    "np.array_split": lambda a: np.array_split(a, 2),
    "np.tile": lambda a: np.tile(a, (2, 1)),
    "np.repeat": lambda a: np.repeat(a, 2, axis=0),
    "np.pad": lambda a: np.pad(a, 1),
    "np.roll": lambda a: np.roll(a, 1),
    "np.flip": lambda a: np.flip(a, 1),
    "np.flip contiguous": lambda a: np.flip(a, 1).copy(),
    "np.rot90": lambda a: np.rot90(a).copy(),
    "np.tril": lambda a: np.tril(a),
    "np.diag": lambda a: np.diag(a),
    "np.meshgrid": lambda a: np.meshgrid(a[0], a[1]),
    "np.take": lambda a: np.take(a, [0, 2], axis=1),
    "np.take_along_axis": lambda a: np.take_along_axis(a, np.argsort(a, axis=1), axis=1),
    "np.searchsorted": lambda a: np.searchsorted(np.sort(a[0]), a[1]),
    "np.interp": lambda a: np.interp(a[0], [0, 4, 9], [0, 1, 5]),
    "np.bincount": lambda a: np.bincount(a[0].astype(np.int64), minlength=20),
    "np.histogram": lambda a: np.histogram(a, bins=4)[0],
    "np.convolve": lambda a: np.convolve(a[0], [1, 2]),
    "np.isclose": lambda a: np.isclose(a, 2),
    "np.allclose": lambda a: np.allclose(a, a + 1),
    "np.array_equal": lambda a: np.array_equal(a, a),
    "np.any": lambda a: np.any(a > 3, axis=0),
    "np.count_nonzero": lambda a: np.count_nonzero(a > 3),
    "np.isin": lambda a: np.isin(a, [1, 2]),
    "np.cross": lambda a: np.cross(a[0, :3], a[1, :3]),
    "np.nan_to_num": lambda a: np.nan_to_num(a),
    "np.cov": lambda a: np.cov(a),
    "np.fft.fft": lambda a: np.fft.fft(a),
    "np.float32": lambda a: np.float32(a[0, 0]),
    "float": lambda a: float(a[0, 0]),
    "len": lambda a: len(a),
    "for row": lambda a: [row.sum() for row in a],
}
