"""Traces graphs that have Python numbers among their inputs, with samples in the place of the numbers."""
from __future__ import annotations

import contextlib
import copy
import functools
import math
import operator
import random
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_aggregate
from torch.utils import checkpoint

from capture.backends import aot
from capture.backends.aot.observed import Eager
from capture.backends.aot.symbols import Symbols
from capture.backends.native.job import Modes, TensorSpec
from capture.backends.native.number_operations import operations_alone
from capture.backends.native.numbers import ALL, DTYPES, Domain, put_in
from capture.backends.native.signature import Input, Result, Unsupported
from capture.backends.native.transport import NotPortable, encode_graph

aten = torch.ops.aten

NOT_NAN = Domain(nan=False)
NOT_NEGATIVE = Domain(0.0, apart=frozenset((math.inf,)), nan=False)
POSITIVE = Domain(5e-324, nan=False)
# Eager mode multiplies, or takes roots, for some exponents; in a gradient the exponent is one less.
EXPONENTS = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0)
EXPONENT = Domain(apart=frozenset(value + less for value in EXPONENTS for less in (0, 1)), nan=False)
# What is done with numbers, by the names of functions and methods, in place or not.
DOMAINS: dict[str, Domain] = {
    **dict.fromkeys(("add", "sub", "subtract", "rsub", "mul", "multiply", "truediv", "div", "divide", "true_divide", "floordiv",
                     "floor_divide", "mod", "remainder", "fmod", "eq", "ne", "lt", "le", "gt", "ge", "addcmul", "addcdiv", "lerp",
                     "where", "masked_fill", "setitem", "fill", "full", "full_like", "tensor", "as_tensor", "scalar_tensor"), ALL),
    **dict.fromkeys(("clamp", "clip", "clamp_min", "clamp_max", "threshold", "hardshrink"), NOT_NAN),
    **dict.fromkeys(("leaky_relu", "softshrink", "elu"), NOT_NEGATIVE),
    **dict.fromkeys(("layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm", "native_layer_norm", "normalize",
                     "softplus", "celu", "smooth_l1_loss", "huber_loss", "cosine_similarity", "pairwise_distance"), POSITIVE),
    "pow": EXPONENT,
    **dict.fromkeys((f"foreach_{name}" for name in ("add", "sub", "mul", "div", "addcmul", "addcdiv", "lerp")), ALL),
    **dict.fromkeys(("foreach_clamp_min", "foreach_clamp_max", "foreach_maximum", "foreach_minimum"), NOT_NAN),
}
OF_SEVERAL = {functools.partial, checkpoint.checkpoint}       # nodes that stand for the operations of a body
NARROW = {torch.float16, torch.bfloat16}        # where greater numbers than these hold are errors in some operations alone


def _single(value: float) -> float:
    """As float32 holds it."""
    return struct.unpack("f", struct.pack("f", value))[0]


def _stored(value: Tensor) -> Tensor:
    return value.to(torch.float32).to(value.dtype)


# Numbers that operators compute from others before they take them: how, and the same on the tensor that stands for the number.
DERIVED: tuple[tuple[Callable[[Any], Any], Callable[[Tensor], Tensor]], ...] = (
    (operator.neg, aten.neg.default),
    (lambda value: value - 1, lambda value: aten.sub.Tensor(value, 1)),
    (lambda value: 1 - value, lambda value: aten.rsub.Scalar(value, 1)),
    (lambda value: 1 / value, aten.reciprocal.default),
    (lambda value: 0.5 * value, lambda value: aten.mul.Tensor(value, 0.5)),
    (math.log, aten.log.default),
    (_single, _stored),
    (lambda value: 1 / _single(value), lambda value: aten.reciprocal.default(_stored(value))),
)


def trace(gm: fx.GraphModule, specs: Sequence[TensorSpec], modes: Modes, symbols: Symbols | None = None,
          rewrite: Callable[[fx.GraphModule], object] | None = None) -> aot.Traced:
    """As `aot.trace`. Nodes that stand for numbers, or are computed from them alone, have the number's type as meta["number"].
    rewrite: not called if there are numbers: it would take their samples for constants.

    Raises Unsupported, also where something unknown is done with a number.
    """
    places = _numbers_among(specs)
    if not places:
        return aot.trace(gm, specs, modes, symbols, rewrite)
    for place, node in enumerate(gm.graph.nodes):
        node.meta.setdefault("place", place)
    domains = _domains(gm, places)
    first = aot.trace(sampled(gm, specs, 0), specs, modes, symbols)
    known = _shows_alone(gm, specs, modes, first.eager)
    second = None if known else aot.trace(sampled(gm, specs, 1), specs, modes, symbols)
    signature = _without_portable_graph(first).signature.with_arguments(_merge(first, second, _numbers_of(specs)))
    if first.backward is not None and signature.partial_passes is not None and signature.differentiable > 1:
        with contextlib.suppress(NotPortable):
            signature = replace(signature, partial_passes=replace(signature.partial_passes, graph=encode_graph(first.backward)))
    narrow = Domain(most=min((torch.finfo(dtype).max for dtype in NARROW & _dtypes(first.forward)), default=math.inf))
    return replace(first, signature=replace(signature, domains=tuple(domains[place] & narrow for place in places)))


def _shows_alone(gm: fx.GraphModule, specs: Sequence[TensorSpec], modes: Modes, eager: Eager) -> bool:
    """Whether all that tracing makes of numbers is known, as the operations that take them show, traced by themselves. Then only
    samples, and what DERIVED makes of them, are in the traced graph. Of integers that cannot be told: others may be equal."""
    numbers = {node: float for node, spec in zip(_placeholders(gm), specs, strict=True) if spec.number}
    if any(specs[place].dtype != DTYPES[float] for place in _numbers_among(specs)) or any(
            node.target in OF_SEVERAL and not numbers.keys().isdisjoint(node.all_input_nodes)
            or node.target is torch.set_autocast_enabled for node in gm.graph.nodes):
        return False
    try:
        for alone, given, grad in operations_alone(gm, numbers, eager):
            first, second = (aot.trace(sampled(alone, given, series), given, replace(modes, grad=grad)) for series in range(2))
            _merge(first, second, _numbers_of(given))
    except Unsupported:         # the operations may fit together where they do not by themselves
        return False
    return True


def _merge(first: aot.Traced, second: aot.Traced | None, numbers: Sequence[_Number]) -> list[tuple[Input | Result, ...]]:
    """Puts nodes for numbers into the graphs of `first`, in the places of samples; returns what the backward graphs take then.
    second: the trace with the other samples, to compare. Raises Unsupported."""
    if second is not None and _without_portable_graph(first).signature != _without_portable_graph(second).signature:
        raise _depends()
    inputs = _placeholders(first.forward)
    others: Sequence[fx.GraphModule | None] = second.graphs if second is not None else [None] * len(first.graphs)
    _Merge(first.forward, others[0], numbers, lambda number: inputs[number.place]).run()
    backward = zip(first.graphs[1:], others[1:], first.signature.arguments(), strict=True)
    if first.core is not None:
        _merge_core(first.core, second and second.core, numbers)
    return [_merge_backward(*graphs, numbers, inputs) for graphs in backward]


def _merge_backward(first: fx.GraphModule, second: fx.GraphModule | None, saved: Sequence[Input | Result],
                    numbers: Sequence[_Number], inputs: Sequence[fx.Node]) -> tuple[Input | Result, ...]:
    """Puts numbers into a backward graph, which takes them behind the saved values; returns what is saved then."""
    names = list(saved)

    def save(number: _Number) -> fx.Node:
        placeholders = _placeholders(first)
        before = placeholders[len(names)] if len(names) < len(placeholders) else _first_call(first.graph)
        with first.graph.inserting_before(before):
            node = first.graph.placeholder(f"number_{number.place}")
        node.meta["val"] = inputs[number.place].meta["val"]
        names.append(Input(number.place))
        return node
    _Merge(first, second, numbers, save).run()
    return tuple(names)


def _merge_core(first: fx.GraphModule, second: fx.GraphModule | None, numbers: Sequence[_Number]) -> None:
    """Puts numbers into a graph in torch's operations, which takes them as they are."""
    inputs = _placeholders(first)
    _Merge(first, second, numbers, lambda number: inputs[number.place]).run()
    for node in first.graph.nodes:
        if node.target is _assign:
            node.target = operator.setitem


def _without_portable_graph(traced: aot.Traced) -> aot.Traced:
    """The same without the backward graph as bytes, in which a sample would be taken for the number."""
    partial_passes = traced.signature.partial_passes
    if partial_passes is None:
        return traced
    return replace(traced, signature=replace(traced.signature, partial_passes=replace(partial_passes, graph=None)))


def samples(specs: Sequence[TensorSpec], series: int) -> dict[int, int | float]:
    """What stands for the numbers among a graph's inputs, by their places, while that is traced; series: 0 or 1."""
    return {place: _sample(specs[place].dtype, number, series) for number, place in enumerate(_numbers_among(specs))}


def _sample(dtype: torch.dtype, number: int, series: int) -> int | float:
    """For the number that comes after so many others."""
    if dtype == DTYPES[float]:
        return random.Random(f"{number} {series}").uniform(0.1, 0.9)        # no function of another one, nor a constant
    return (11 + 6 * number, 14 + 7 * number)[series]       # also the difference of two is another one in the other trace


def sampled(gm: fx.GraphModule, specs: Sequence[TensorSpec], series: int) -> fx.GraphModule:
    """A copy of `gm` that computes with samples; its inputs in the places of numbers are not used."""
    made = _LazyGraphModule(gm, copy.deepcopy(gm.graph))
    placeholders = _placeholders(made)
    _substitute(made, {placeholders[place]: value for place, value in samples(specs, series).items()})
    return made


def _substitute(gm: fx.GraphModule, samples: Mapping[fx.Node, int | float]) -> None:
    for node in put_in(gm.graph, samples):
        name = name_of(node)
        if name in ("tensor", "as_tensor"):         # what is made of a number would be a constant
            node.target, node.args = torch.full, ((), *node.args)
        elif name == "setitem":
            node.op, node.target = "call_function", _assign
    gm.recompile()


def _assign(x: Tensor, index: Any, value: int | float) -> None:
    x[index] = torch.full((), value, dtype=x.dtype, device=x.device)


# What is done with numbers.

def _domains(gm: fx.GraphModule, places: Sequence[int]) -> dict[int, Domain]:
    """For the number at each of `places`, the domain of all that is done with it. Raises Unsupported for what is not known."""
    placeholders = _placeholders(gm)
    domains = dict.fromkeys(places, ALL)
    nodes = {placeholders[place]: place for place in places}
    for place, name, domain in _uses(gm, nodes):
        if domain is None:
            raise Unsupported(f"{name} with a number that changes from call to call")
        domains[place] &= domain
    return domains


def _uses(gm: fx.GraphModule, numbers: Mapping[fx.Node, int]) -> Iterator[tuple[int, str, Domain | None]]:
    """(place, name, domain) of each operation on a number."""
    for node in gm.graph.nodes:
        if node.target is functools.partial:        # the body of a checkpoint
            continue
        if node.target is checkpoint.checkpoint:
            body, *own = node.args
            body, *bound = body.args if body.target is functools.partial else (body,)
            inner, values = getattr(gm, body.target), (*bound, *own)
            given = zip(_placeholders(inner), values, strict=True)
            yield from _uses(inner, {n: numbers[value] for n, value in given if value in numbers})
            continue
        used = [numbers[arg] for arg in node.all_input_nodes if arg in numbers]
        if not used:
            continue
        name, values = name_of(node), (*node.args, *node.kwargs.values())
        plain = sum(isinstance(value, fx.Node) and value in numbers for value in values) == len(used)
        known = plain or name.startswith("foreach")      # not within an index, nor one number among several
        for place in used:
            yield place, name, DOMAINS.get(name) if known else None


def name_of(node: fx.Node) -> str:
    """What an operation is called, in place or not, of Python or of torch."""
    name = (node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")).strip("_")
    shifted = name[:1] in ("i", "r") and name != "rsub" and hasattr(operator, name[1:]) and hasattr(operator, f"i{name[1:]}")
    return name[1:] if shifted else name


# Two traces made one.

@dataclass(frozen=True, slots=True)
class _Number:
    """The number at `place` among the inputs, and what stands for it in the two traces."""

    place: int
    samples: tuple[int | float, int | float]


def _numbers_among(specs: Sequence[TensorSpec]) -> list[int]:
    return [place for place, spec in enumerate(specs) if spec.number]


def _numbers_of(specs: Sequence[TensorSpec]) -> list[_Number]:
    first, second = samples(specs, 0), samples(specs, 1)
    return [_Number(place, (first[place], second[place])) for place in first]


class _Merge:
    """Puts nodes in the places of samples, and of what DERIVED makes of them, in the graph `first`. second: the graph with the
    other samples, which must be the same but for these; None where nothing else can be there."""

    def __init__(self, first: fx.GraphModule, second: fx.GraphModule | None, numbers: Sequence[_Number],
                 node_of: Callable[[_Number], fx.Node]) -> None:
        self.first, self.second = first, second
        self.node_of = node_of
        self.nodes: dict[tuple[_Number, int], fx.Node] = {}
        self.known: dict[tuple[int | float, ...], tuple[_Number, int]] = {}
        for which, derive in ((-1, lambda value: value), *enumerate(derive for derive, _ in DERIVED)):
            for number in numbers:
                found = tuple(map(derive, number.samples if second is not None else number.samples[:1]))
                if type(found[0]) is type(number.samples[0]):
                    self.known.setdefault(found, (number, which))

    def run(self) -> None:
        if self.second is None:
            for node in self.first.graph.nodes:
                node.args, node.kwargs = map_aggregate((node.args, dict(node.kwargs)), self._put_in)
        else:
            self._run_beside(self.second)
        self.first.recompile()

    def _put_in(self, value: Any) -> Any:
        return self._node(*self.known[value,]) if type(value) is float and (value,) in self.known else value

    def _run_beside(self, second: fx.GraphModule) -> None:
        ours, theirs = list(self.first.graph.nodes), list(second.graph.nodes)
        if [(node.op, node.target) for node in ours] != [(node.op, node.target) for node in theirs]:
            raise _depends()
        places = {node: place for place, node in enumerate(theirs)}
        for node, other in zip(ours, theirs, strict=True):
            if node.op == "get_attr" and not _equal(getattr(self.first, node.target), getattr(second, other.target)):
                raise _depends()
            merge = self._merging(ours, places)
            node.args, node.kwargs = merge(node.args, other.args), merge(dict(node.kwargs), dict(other.kwargs))

    def _merging(self, ours: Sequence[fx.Node], places: Mapping[fx.Node, int]) -> Callable[[Any, Any], Any]:
        def merge(a: Any, b: Any) -> Any:
            if isinstance(a, fx.Node) and isinstance(b, fx.Node) and a is ours[places[b]]:
                return a
            if isinstance(a, (list, tuple)) and type(a) is type(b) and len(a) == len(b):
                return type(a)(map(merge, a, b))
            if isinstance(a, dict) and isinstance(b, dict) and list(a) == list(b):
                return {key: merge(value, b[key]) for key, value in a.items()}
            if type(a) is type(b) and repr(a) == repr(b):
                return a
            if type(a) is type(b) and type(a) in DTYPES and (a, b) in self.known:
                return self._node(*self.known[a, b])
            raise _depends()
        return merge

    def _node(self, number: _Number, derived: int) -> fx.Node:
        """The node of a number, or of the one that DERIVED makes of it."""
        if (number, derived) in self.nodes:
            return self.nodes[number, derived]
        if derived < 0:
            node = self.node_of(number)
        else:
            node = self._insert(DERIVED[derived][1], self._node(number, -1))
        node.meta["number"] = type(number.samples[0])
        return self.nodes.setdefault((number, derived), node)


    def _insert(self, compute: Callable[[Tensor], Tensor], source: fx.Node) -> fx.Node:
        """The operations of `compute` on `source`, before all others."""
        fake = source.meta["val"]
        with fake.fake_mode:
            traced = make_fx(compute)(fake)
        copies: dict[fx.Node, fx.Node] = {}
        graph, nodes = self.first.graph, iter(traced.graph.nodes)
        copies[next(nodes)] = source
        with graph.inserting_before(_first_call(graph)):
            for node in nodes:
                if node.op == "output":
                    return copies[node.args[0]]
                copies[node] = graph.node_copy(node, copies.__getitem__)
                copies[node].meta = {"val": node.meta["val"], "number": source.meta["number"]}
        raise AssertionError("a graph without output")


def _depends() -> Unsupported:
    return Unsupported("something is computed from a number that changes from call to call while the graph is traced")


def _equal(left: Any, right: Any) -> bool:
    return isinstance(left, Tensor) and isinstance(right, Tensor) and left.dtype == right.dtype and torch.equal(left, right)


def _dtypes(gm: fx.GraphModule) -> set[torch.dtype]:
    return {value.dtype for node in gm.graph.nodes if isinstance(value := node.meta.get("val"), Tensor)}


def _placeholders(gm: fx.GraphModule) -> list[fx.Node]:
    return [node for node in gm.graph.nodes if node.op == "placeholder"]


def _first_call(graph: fx.Graph) -> fx.Node:
    return next(node for node in graph.nodes if node.op != "placeholder")
