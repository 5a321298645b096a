"""Whether a graph of ATen's operators is linear in some of its arguments: where these are zero its results are, and results for a
sum are sums of results."""
from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from capture.operators.beyond_schemas import FILLED, LINEAR, LINEAR_IN_EACH, ZEROS
from capture.operators.facts import facts_of
from capture.operators.graph_arguments import nodes_in
from capture.operators.schemas import Overload


class Kind(enum.Enum):
    """How a value depends on these arguments."""

    ZERO = "it is zero"
    FIXED = "not at all"
    LINEAR = "linearly"
    OTHER = "in other ways, perhaps"


VANISHING = frozenset({Kind.ZERO, Kind.LINEAR})
NUMBERS = (bool, int, float, complex)
OPERANDS = frozenset({"self", "other", "value"})        # names of arguments that may be numbers, and then are terms


def are_linear(outputs: Iterable[fx.Node | None], arguments: Collection[fx.Node]) -> bool:
    """Whether these nodes of a graph are linear in these placeholders of it, together. None stands for zero. Nodes may tell the
    type of their results, as meta["dtype"]: a write to integers does not show it otherwise."""
    wanted = [node for node in outputs if node is not None]
    kinds: dict[fx.Node, Kind] = {}
    owners: dict[fx.Node, fx.Node] = {}         # of the memory in which a value lies
    for node in wanted[0].graph.nodes if wanted else ():
        if node.op == "call_function":
            kinds[node], owners[node] = kind_of(node, kinds), owner_of(node, owners)
            if isinstance(node.target, OpOverload) and node.target._schema.is_mutable:
                known = Overload(node.target._schema).is_in_place
                inside = [other for other in kinds if owners[other] is owners[node]] if known else node.all_input_nodes
                kinds |= dict.fromkeys(inside, together([kinds[other] for other in inside]) if known else Kind.OTHER)
        elif node.op != "output":
            kinds[node], owners[node] = Kind.LINEAR if node in arguments else Kind.FIXED, node
    return all(kinds[node] in VANISHING for node in wanted)


def owner_of(node: fx.Node, owners: Mapping[fx.Node, fx.Node]) -> fx.Node:
    """In whose memory the result of an operation lies, itself or an operand."""
    overload = Overload(node.target._schema) if isinstance(node.target, OpOverload) else None
    shares = overload is None or overload.is_view or overload.is_in_place or facts_of(node.target).shares_unseen
    return owners[node.all_input_nodes[0]] if shares and node.all_input_nodes else node


def kind_of(node: fx.Node, kinds: Mapping[fx.Node, Kind]) -> Kind:
    """How the result of an operation depends."""
    target, name = node.target, facts_of(node.target).plain
    found = [kinds[arg] for arg in node.all_input_nodes]
    if target is torch.tensor:          # of constants
        return Kind.ZERO if type(node.args[0]) in NUMBERS and not node.args[0] else Kind.FIXED
    if not isinstance(target, OpOverload):          # an item of several results
        return found[0]
    values = dict(zip([argument.name for argument in target._schema.arguments], node.args)) | node.kwargs
    if name in ZEROS or name in FILLED and not values[FILLED[name]]:
        return Kind.ZERO
    if facts_of(target).takes_form_alone:
        return Kind.FIXED
    if Kind.OTHER in found or Kind.LINEAR in found and not keeps_fractions(node.meta.get("dtype", values.get("dtype"))):
        return Kind.OTHER
    first = target._schema.arguments[0].name
    is_view = Overload(target._schema).is_view and "dtype" not in values
    is_derivative = first.startswith("grad") and "backward" in name
    is_other = any(values.get(option) is not None for option in ("rounding_mode", "reduce"))
    if not is_other and (name in LINEAR or is_view or is_derivative):
        own = (first,) if is_derivative else LINEAR.get(name) or tuple(values)
        terms = [kinds[arg] for part in own for arg in nodes_in(values.get(part))]
        numbers = [values[part] for part in own if part in OPERANDS and type(values.get(part)) in NUMBERS]
        result = together([*terms, *(Kind.FIXED if number else Kind.ZERO for number in numbers)])
    elif name in LINEAR_IN_EACH and not is_other:
        own = LINEAR_IN_EACH[name]
        factors = [kinds[arg] for part in own for arg in nodes_in(values.get(part))]
        result = Kind.ZERO if Kind.ZERO in factors else Kind.OTHER if factors.count(Kind.LINEAR) > 1 else (
            Kind.LINEAR if Kind.LINEAR in factors else Kind.FIXED)
    else:
        own, result = (), Kind.FIXED
    others = [kinds[arg] for part, value in values.items() if part not in own for arg in nodes_in(value)]
    return Kind.OTHER if Kind.LINEAR in others else result


def together(kinds: Iterable[Kind]) -> Kind:
    """How what is made of several values depends, if it is linear in all of them together."""
    found = set(kinds)
    if found <= {Kind.ZERO, Kind.FIXED}:
        return Kind.ZERO if found == {Kind.ZERO} else Kind.FIXED
    return Kind.LINEAR if found <= VANISHING else Kind.OTHER


def keeps_fractions(dtype: Any) -> bool:
    """Whether numbers of a type are not rounded to integers."""
    return dtype is None or type(dtype) is torch.dtype and (dtype.is_floating_point or dtype.is_complex)
