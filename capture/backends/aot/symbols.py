"""Sizes that change from call to call, as torch's symbols: a graph traced with these is valid for all sizes that meet some
conditions."""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from capture.backends.native.index import LEAST_SIZE, Size, Symbol
from capture.backends.native.job import TensorSpec
from capture.backends.native.signature import Signature
from capture.backends.native.symbolic import as_size, conditions

if TYPE_CHECKING:       # importing it imports sympy, and making one all of torch._dynamo
    from torch.fx.experimental.symbolic_shapes import ShapeEnv


class Symbols:
    """The symbols of one trace, one for each size that changes. Each stands for LEAST_SIZE at least."""

    def __init__(self) -> None:
        self._env: ShapeEnv | None = None           # where there are any
        self.places: dict[str, tuple[int, int]] = {}        # by name: of which input, and in which dimension, it is the size
        self.layouts: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()      # as of `Signature`

    def of(self, specs: Sequence[TensorSpec]) -> list[TensorSpec]:
        """The specs, with symbols in the places of such sizes. What has such already stays as it is."""
        self.layouts = self.layouts or tuple(spec.free or (tuple(spec.shape), tuple(spec.stride)) for spec in specs)
        return [spec if spec.free is None else self._of(place, spec) for place, spec in enumerate(specs)]

    def _of(self, place: int, spec: TensorSpec) -> TensorSpec:
        assert spec.free is not None
        sizes, strides = spec.free
        shape = tuple(self._symbol(place, dim, real) if size < 0 else size
                      for dim, (size, real) in enumerate(zip(sizes, spec.shape, strict=True)))

        def stride(dim: int) -> int | torch.SymInt:
            inner = -1 - strides[dim]
            return strides[dim] if inner < 0 else shape[inner] * stride(inner)
        return replace(spec, shape=shape, stride=tuple(map(stride, range(len(strides)))), free=None)

    def _symbol(self, place: int, dim: int, real: int) -> torch.SymInt:
        from torch._dynamo.source import ConstantSource
        from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
        env = self._env = self._env or ShapeEnv(duck_shape=False)
        source = ConstantSource(f"input_{place}_{dim}")
        symbol = env.create_symbol(real, source, DimDynamic.DYNAMIC)
        assert env.var_to_range[symbol].lower == LEAST_SIZE
        self.places[str(symbol)] = place, dim
        return env.create_symintnode(symbol, hint=real, source=source)

    def closed(self, signature: Signature) -> Signature:
        """The signature, with all conditions that have come up by now. Raises Unsupported."""
        if self._env is None:
            return signature
        known = symbols_of(self._env)
        places = tuple((known[name], *place) for name, place in self.places.items())
        found = dict.fromkeys(condition for guard in self._env.guards for condition in conditions(self._env, guard.expr, known))
        return replace(signature, symbols=places, conditions=tuple(found))


def symbols_of(env: ShapeEnv) -> Mapping[str, Symbol]:
    """The symbols of a trace, by name; without those of sizes that depend on values."""
    from torch.utils._sympy.symbol import SymT, symbol_is_type
    return {str(symbol): Symbol(str(symbol)) for symbol in env.var_to_range if symbol_is_type(symbol, SymT.SIZE)}


def sizes_of(sizes: Sequence[int | torch.SymInt]) -> tuple[Size, ...]:
    """Sizes or strides of a traced tensor, as plain data. Raises Unsupported."""
    return tuple(size if isinstance(size, int) else as_size(size, symbols_of(size.node.shape_env)) for size in sizes)


def unguarded(fake: torch.Tensor) -> AbstractContextManager[Any]:
    """A context in which torch gets the sizes of the call that is compiled for as numbers, without a condition."""
    env = _shape_env(fake)
    return contextlib.nullcontext() if env is None else env.suppress_guards()


def refusing_guards(fake: torch.Tensor) -> AbstractContextManager[Any]:
    """A context in which an operator that would put a condition on sizes raises a RuntimeError, where torch can do so."""
    refuse: Callable[[], AbstractContextManager[Any]] = getattr(_shape_env(fake), "error_on_new_guards", contextlib.nullcontext)
    return refuse()


def _shape_env(fake: torch.Tensor) -> ShapeEnv | None:
    return getattr(getattr(fake, "fake_mode", None), "shape_env", None)
