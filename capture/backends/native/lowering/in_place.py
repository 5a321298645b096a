"""Which results of a functional graph an input's own memory may hold.

Where a program writes to a part of a tensor (`cache[:, n] = k`, `cache.index_copy_(1, n, k)`), a functional graph makes a new
tensor, `select_scatter(cache, k, 1, n)`, which is like the old one elsewhere, and copies all of it to the input at the end. If
nobody reads the old tensor after that, only the part is written, to the input, right there.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from capture.backends.native.lowering.registry import TABLE
from capture.backends.native.lowering.views import VIEW_OF
from capture.operators.facts import facts_of
from capture.operators.graph_arguments import nodes_in

aten = torch.ops.aten

# Views of all elements of a tensor, by which another one takes a view of a changed tensor back to the form of the tensor itself.
WHOLE = frozenset((
    aten.alias.default, aten.permute.default, aten.transpose.int, aten.t.default, aten.unsqueeze.default, aten.squeeze.dim,
    aten.squeeze.dims, aten.view.default))


@dataclass(frozen=True, slots=True)
class InPlace:
    """changes: nodes that write to the memory of their first argument, and return it. changed: nodes whose memory changes with
    that: inputs, views of them, and earlier changes. Each is what its memory holds until the next change."""

    changes: frozenset[fx.Node]
    changed: frozenset[fx.Node]

    def reads(self, user: fx.Node, node: fx.Node) -> bool:
        """Whether an operation takes elements of a node, and does not just write over them."""
        if user.op != "call_function":
            return True
        facts = facts_of(user.target)
        if facts.takes_form_alone:
            return False
        others = user.args[1:] if user in self.changes or facts.overwrites_first else user.args
        return node in nodes_in((others, dict(user.kwargs)))


def changes_in_place(graph: fx.Graph) -> InPlace:
    """What may be done in place in a graph that writes to inputs by `aten.copy_`."""
    order = {node: place for place, node in enumerate(graph.nodes)}
    copies: dict[fx.Node, list[fx.Node]] = {}
    for node in graph.find_nodes(op="call_function", target=aten.copy_.default):
        copies.setdefault(node.args[0], []).append(node.args[1])
    found: list[InPlace] = []
    for given, values in copies.items():
        if given.op == "placeholder" and len(values) == 1 and isinstance(values[0], fx.Node) and _is_spread(given):
            way = _way(values[0], lambda node, given=given: node is given)
            if way is not None and _is_not_read_on(in_place := InPlace(*way), order):
                found.append(in_place)
    return InPlace(frozenset().union(*(one.changes for one in found)), frozenset().union(*(one.changed for one in found)))


def _is_spread(given: fx.Node) -> bool:
    """Whether each element of an input has a place of its own."""
    value = given.meta["val"]
    return value.layout == torch.strided and not any(stride == 0 and size != 1 for size, stride in zip(
        value.shape, value.stride(), strict=True) if isinstance(stride, int))


def _way(value: fx.Node, starts: Callable[[fx.Node], bool]) -> tuple[frozenset[fx.Node], frozenset[fx.Node]] | None:
    """How a tensor becomes `value` part by part: the changes, and what they change; None if it becomes that in another way.
    starts: whether a node is this tensor as it was before. A part, or a view of the whole, may be changed by itself and then put
    back where it was."""
    if starts(value):
        return frozenset(), frozenset()
    if value.op != "call_function" or value.kwargs or not value.args or not isinstance(base := value.args[0], fx.Node):
        return None
    if value.target in WHOLE:
        return _way_of_view(value, starts)
    lowering = TABLE.get(value.target)
    before = _way(base, starts) if lowering is not None and lowering.changes_part else None
    if before is None:
        return None
    within = None
    if (view := VIEW_OF.get(value.target)) is not None and isinstance(source := value.args[1], fx.Node):
        within = _way(source, lambda node: node.target is view and node.args[0] is base and _equal(node.args[1:], value.args[2:]))
    changes, changed = within or (frozenset(), frozenset())
    return before[0] | changes | {value}, before[1] | changed | {base}


def _way_of_view(value: fx.Node, starts: Callable[[fx.Node], bool]) -> tuple[frozenset[fx.Node], frozenset[fx.Node]] | None:
    """`_way`, where `value` is a view of a tensor that is changed as another view of what `value` was before."""
    bases: list[fx.Node] = []

    def is_other_view(node: fx.Node) -> bool:
        if node.target not in WHOLE or not _is_same_memory(value, node):
            return False
        bases.append(node.args[0])
        return True
    within = _way(value.args[0], is_other_view)
    before = _way(bases[-1], starts) if within is not None else None
    return None if within is None or before is None else (before[0] | within[0], before[1] | within[1] | {bases[-1]})


def _is_same_memory(back: fx.Node, view: fx.Node) -> bool:
    """Whether what `back` does to a view gives the tensor again that it is a view of."""
    whole, part = view.args[0].meta["val"], view.meta["val"]
    try:
        again = back.target(part, *(arg.meta["val"] if isinstance(arg, fx.Node) else arg for arg in back.args[1:]))
    except RuntimeError:                            # it would have to be a copy
        return False
    ours, theirs = ([*value.shape, *value.stride(), value.storage_offset()] for value in (again, whole))
    return _equal(ours, theirs)


def _equal(some: Iterable[Any], others: Iterable[Any]) -> bool:
    """Whether arguments that are numbers, or sizes, are the same in each call."""
    left, right = ([arg.meta["val"] if isinstance(arg, fx.Node) else arg for arg in args] for args in (some, others))
    return len(left) == len(right) and all(a is b or statically_known_true(a == b) for a, b in zip(left, right, strict=True))


def _is_not_read_on(in_place: InPlace, order: dict[fx.Node, int]) -> bool:
    """Whether what changes is read before the next change to that memory alone."""
    for changed in in_place.changed:
        first = min((order[change] for change in in_place.changes if order[change] > order[changed]), default=len(order))
        if any(order[user] >= first and in_place.reads(user, changed) for user in changed.users):
            return False
    return True
