"""Sizes that change from call to call, as torch's symbols: what is traced with these holds for all sizes that meet conditions."""
from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, free_symbols
from torch.utils._sympy.symbol import SymT, symbol_is_type

from capture.backends.native.index import Atom, Div, Mod, Size, Symbol, plain
from capture.backends.native.job import TensorSpec
from capture.backends.native.numbers import put_in
from capture.backends.native.signature import Input, Result, Signature, Unsupported
from capture.backends.native.symbolic import as_size, conditions


class Symbols:
    """The symbols of one trace, one for each size that changes: 2 at least, since torch takes 0 and 1 for sizes of another kind."""

    def __init__(self) -> None:
        self.env = ShapeEnv(duck_shape=False)
        self.places: dict[str, tuple[int, int]] = {}        # by name: of which input, and in which dimension, it is the size

    def of(self, specs: Sequence[TensorSpec]) -> list[TensorSpec]:
        """The specs, with symbols in the places of such sizes."""
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
        source = ConstantSource(f"input_{place}_{dim}")
        symbol = self.env.create_symbol(real, source, DimDynamic.DYNAMIC)
        self.places[str(symbol)] = place, dim
        return self.env.create_symintnode(symbol, hint=real, source=source)

    def closed(self, signature: Signature) -> Signature:
        """The signature, with all conditions that have come up by now. Raises Unsupported."""
        known = symbols_of(self.env)
        places = tuple((known[name], *place) for name, place in self.places.items())
        found = dict.fromkeys(condition for guard in self.env.guards for condition in conditions(self.env, guard.expr, known))
        return replace(signature, symbols=places, conditions=tuple(found))


def symbols_of(env: ShapeEnv) -> Mapping[str, Symbol]:
    """The symbols of a trace, by name; without those of sizes that depend on values."""
    return {str(symbol): Symbol(str(symbol)) for symbol in env.var_to_range if symbol_is_type(symbol, SymT.SIZE)}


def sizes_of(sizes: Sequence[int | torch.SymInt]) -> tuple[Size, ...]:
    """Sizes or strides of a traced tensor, as plain data. Raises Unsupported."""
    return tuple(size if isinstance(size, int) else as_size(size, symbols_of(size.node.shape_env)) for size in sizes)


def unguarded(fake: torch.Tensor) -> AbstractContextManager[Any]:
    """Within it torch may ask for sizes as numbers, and gets those of the call that is compiled for: no condition comes of it."""
    env = getattr(getattr(fake, "fake_mode", None), "shape_env", None)
    return contextlib.nullcontext() if env is None else env.suppress_guards()


def inline_sizes(gm: fx.GraphModule) -> None:
    """Writes sizes, and what is calculated of them, in the places of the nodes that do so: operations take nothing but tensors from
    others."""
    found = {node: value for node in gm.graph.nodes
             if node.op == "call_function" and isinstance(value := node.meta.get("val"), (torch.SymInt, torch.SymFloat))}
    put_in(gm.graph, found)
    for node in reversed(found):
        gm.graph.erase_node(node)
    gm.recompile()


def emit_size(graph: fx.Graph, size: torch.SymInt, node_of: Callable[[str], fx.Node]) -> fx.Node | int:
    """Writes the nodes that compute a size, at the end of a graph. node_of: gives that of a symbol, by its name."""
    def write(value: Size) -> fx.Node | int:
        if isinstance(value := plain(value), int):
            return value
        terms = [chain(operator.mul, [*map(atom, monomial), *([factor] if factor != 1 or not monomial else [])])
                 for monomial, factor in value.terms.items()]
        return chain(operator.add, terms)

    def atom(one: Atom) -> fx.Node | int:
        if isinstance(one, Symbol):
            return node_of(one.name)
        assert isinstance(one, (Div, Mod)), one
        operation = operator.floordiv if isinstance(one, Div) else operator.mod
        return graph.call_function(operation, (write(one.dividend), write(one.divisor)))

    def chain(operation: Callable[..., Any], operands: Sequence[fx.Node | int]) -> fx.Node | int:
        return functools.reduce(lambda left, right: graph.call_function(operation, (left, right)), operands)
    return write(as_size(size, symbols_of(size.node.shape_env)))


def pass_sizes_to_backward(forward: fx.GraphModule, backward: fx.GraphModule,
              saved: tuple[Input | Result, ...]) -> tuple[Input | Result, ...]:
    """Has the backward graph take, behind what is saved, the sizes that it computes with and that no tensor has which it takes.
    Returns what is saved then."""
    placeholders = backward.graph.find_nodes(op="placeholder")
    bound = {size.node.expr for node in placeholders for size in node.meta["val"].shape if isinstance(size, torch.SymInt)}
    needed = {symbol for node in backward.graph.nodes for symbol in _symbols_in(node)}
    results = list(forward.graph.output_node().args[0])
    sizes = {size.node.expr: size for node in forward.graph.find_nodes(op="placeholder") for size in node.meta["val"].shape
             if isinstance(size, torch.SymInt)}
    for symbol in sorted(needed - bound, key=str):
        if symbol not in sizes:
            raise Unsupported("a size depends on values")
        size = sizes[symbol]
        with backward.graph.inserting_before(_behind(backward.graph, placeholders, len(saved))):
            node = backward.graph.placeholder(f"size_{symbol}")
        node.meta["val"] = size
        placeholders.insert(len(saved), node)
        saved = (*saved, Result(len(results)))
        results.append(size)
    forward.graph.output_node().args = (tuple(results),)
    return saved


def _behind(graph: fx.Graph, placeholders: Sequence[fx.Node], count: int) -> fx.Node:
    """The node behind the first `count` placeholders."""
    if count < len(placeholders):
        return placeholders[count]
    return next(node for node in graph.nodes if node.op != "placeholder")


def _symbols_in(node: fx.Node) -> set[Any]:
    values = node.meta.get("val")
    found: set[Any] = set()
    for value in values if isinstance(values, (tuple, list)) else [values]:
        if isinstance(value, (torch.Tensor, torch.SymInt, torch.SymFloat)):
            found |= free_symbols(value)

    def add(size: Any) -> Any:
        if isinstance(size, (torch.SymInt, torch.SymFloat)):
            found.update(free_symbols(size))
        return size
    fx.node.map_aggregate((node.args, node.kwargs), add)
    return found
