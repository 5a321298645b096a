"""Equal layers of a graph: found, and all but a few of them left out, so that a deep model compiles like one of a few layers.

A layer is a row of nodes that stands there again right away: the same operations with the same arguments, but for inputs of its
own, each like that of the layer before, and for what it takes of the layer before. The compiler works on the graph with KEPT
layers, finds them again in what it has made (`layered_program`), and repeats what it has made of one. If it does not find them, it
compiles the whole graph.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from torch import fx

from capture.backends.native.job import Job, TensorSpec
from capture.backends.native.repetition import BEFORE, BEHIND, Lengthening, NotAlike, Place, Repetition, find_repetition
from capture.operators.facts import facts_of
from capture.operators.graph_arguments import nodes_in

KEPT = 5            # the first and the last layer are compiled with what is around them; between them equal ones must be found
FEWEST_NODES = 24   # that are left out; else what it saves is not worth looking for the layers again


@dataclass(frozen=True, slots=True)
class ShortJob:
    """A job without most of its layers. left_out: how many. given, returned: what each of its inputs and outputs is; …in_full: the
    same of the whole job's."""

    job: Job
    left_out: int
    given: tuple[Place, ...]
    given_in_full: tuple[Place, ...]
    returned: tuple[Place, ...]
    returned_in_full: tuple[Place, ...]
    computed: tuple[bool, ...]          # whether each output of `job` is computed from what layers make


def without_layers(job: Job) -> list[ShortJob]:
    """The job with KEPT of its equal layers, then this one with KEPT of other layers, and so on; nothing where there are hardly
    more."""
    found = []
    while (short := _without_layers(job)) is not None:
        found.append(short)
        job = short.job
    return found


def _without_layers(job: Job) -> ShortJob | None:
    nodes = [node for node in job.graph.graph.nodes if node.op not in ("placeholder", "output")]
    search = _Search(nodes, job)
    found = find_repetition(list(map(key_of, nodes)), search.alike, KEPT)
    if found is None or (found.times - KEPT) * found.length < FEWEST_NODES:
        return None
    rows, returned = search.rows(found), search.returned(found)
    if rows is None or returned is None or not search.ends_with_last(found):
        return None
    short = _shortened(job, nodes, found, rows, returned)
    try:
        check_chains(short.job.graph, short.given)
    except NotAlike:
        return None
    return short


class _Search:
    """Compares nodes of a graph, with all that they take."""

    def __init__(self, nodes: Sequence[fx.Node], job: Job) -> None:
        self.order = {node: place for place, node in enumerate(nodes)}
        self.nodes = nodes
        self.inputs = job.graph.graph.find_nodes(op="placeholder")
        self.specs = dict(zip(self.inputs, job.inputs, strict=True))
        self.storages = Counter(spec.storage[0] for spec in job.inputs if spec.storage is not None)

    def alike(self, place: int, length: int) -> bool:
        """Whether a node and the one `length` places later take the same, or what stands `length` places later, or inputs that are
        alike."""
        pairs = zip(operands(self.nodes[place]), operands(self.nodes[place + length]), strict=True)
        return all(one is other or self._follows(one, other, length) for one, other in pairs)

    def _follows(self, one: fx.Node, other: fx.Node, length: int) -> bool:
        if one in self.order and other in self.order:
            return self.order[one] + length == self.order[other]
        if one not in self.specs or other not in self.specs:
            return False
        kind = self._kind(self.specs[one])
        return kind is not None and kind == self._kind(self.specs[other])

    def _kind(self, spec: TensorSpec) -> TensorSpec | None:
        """What must be equal of two inputs; None for one that is like no other. (Conditions of sizes are not repeated.)"""
        if spec.number or spec.free is not None or spec.storage is not None and self.storages[spec.storage[0]] > 1:
            return None
        return spec if spec.storage is None else replace(spec, storage=(0, spec.storage[1]))

    def rows(self, found: Repetition) -> list[list[fx.Node]] | None:
        """The inputs that each layer has its own of, layer by layer; None if any is used elsewhere, too."""
        following: dict[fx.Node, fx.Node] = {}
        for place in range(found.first, found.end - found.length):
            for one, other in zip(operands(self.nodes[place]), operands(self.nodes[place + found.length]), strict=True):
                if one in self.specs and one is not other and following.setdefault(one, other) is not other:
                    return None
        rows = []
        for first in following.keys() - set(following.values()):
            row = [first]
            while (after := following.get(row[-1])) is not None:
                row.append(after)
            rows.append(row)
        used = [{(self.order.get(user, -1) - found.first) // found.length for user in node.users} for row in rows for node in row]
        if any(len(row) != found.times for row in rows) or used != [{layer} for row in rows for layer in range(found.times)] or sum(
                map(len, rows)) != len(following.keys() | set(following.values())):
            return None
        return sorted(rows, key=lambda row: self.inputs.index(row[0]))

    def ends_with_last(self, found: Repetition) -> bool:
        """Whether what comes after the layers, but for the end, takes nothing of layers before the last two."""
        return all(user.op == "output" or self.order[user] < found.end
                   for node in self.nodes[found.first:found.end - 2 * found.length] for user in node.users)

    def returned(self, found: Repetition) -> list[Place] | None:
        """What each output is: one of a row that layers return, else the side of the layers on which it is made (or that it is an
        input). None if some of the layers return what others do not."""
        outputs = self.nodes[0].graph.output_node().args[0]
        if not all(isinstance(node, fx.Node) for node in outputs):
            return None
        rows: dict[tuple[int, int], dict[int, int]] = {}        # by where a layer makes it, and how often it was returned before
        places = []
        for number, node in enumerate(outputs):
            place = self.order.get(node, -1)
            layer, inner = divmod(place - found.first, found.length)
            places.append(Place((BEFORE if 0 <= place < found.first else BEHIND if place >= 0 else "output", number)))
            if 0 <= layer < found.times:
                rows.setdefault((inner, outputs[:number].count(node)), {})[layer] = number
        for row, numbers in rows.items():
            if len(numbers) == found.times:
                for layer, number in numbers.items():
                    places[number] = Place(("returned", *row), layer)
            elif min(numbers) < found.times - 1:
                return None
        return places


def key_of(node: fx.Node) -> Hashable:
    """What must be equal of two nodes, but for the nodes that they take."""
    meta = node.meta
    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda _: "<node>")
    return node.op, node.target, repr((args, kwargs)), repr([meta.get(name) for name in ("writes", "orders", "dtypes", "number")])


def operands(node: fx.Node) -> list[fx.Node]:
    """The nodes that one takes, in order and with repetition."""
    return nodes_in((node.args, dict(node.kwargs)))


def check_chains(gm: fx.GraphModule, given: Sequence[Place], saved: int = 0) -> None:
    """Raises NotAlike unless all that the layers of a graph make, but for what is the same in each, depends on what each has of its
    own (`Lengthening.check_chains`). given: what its inputs are. saved: of a backward graph, which begins with the last layer, how
    many of the first are no gradients. What follows from these alone, such as views, may stand anywhere there, and counts to the
    layer that takes it first; what is returned and not taken, such as copies, to the layer that it is made of."""
    nodes = [node for node in gm.graph.nodes if node.op not in ("placeholder", "output")]
    of_saved = set(gm.graph.find_nodes(op="placeholder")[:saved])
    for node in nodes if saved else ():
        if of_saved.issuperset(operands(node)):
            of_saved.add(node)
    places = {node: number for number, node in enumerate(nodes)}
    for node in reversed(nodes):
        if node in of_saved and node.users:
            places[node] = min(places.get(user, len(nodes)) for user in node.users)
    for node in nodes:
        if all(user.op == "output" for user in node.users):
            places[node] = max((places[operand] for operand in operands(node) if operand in places), default=places[node])
    layers_of(gm, sorted(nodes, key=places.__getitem__), 0, given, -1 if saved else 1, _computed_from).check_chains()


def _computed_from(node: fx.Node) -> list[fx.Node]:
    """The nodes whose values a node takes, and not just their sizes."""
    facts = facts_of(node.target)
    return [] if facts.takes_form_alone else operands(node)[facts.overwrites_first:]


def layers_of(gm: fx.GraphModule, nodes: Sequence[fx.Node], left_out: int, given: Sequence[Place],
              step: int = 1, taken: Callable[[fx.Node], Sequence[fx.Node]] = operands) -> Lengthening[fx.Node]:
    """The layers of a graph, of whose `nodes` the inputs are none. taken: what a node takes. Raises NotAlike."""
    return Lengthening(list(map(key_of, nodes)), [[*taken(node), node] for node in nodes],
                       dict(zip(gm.graph.find_nodes(op="placeholder"), given, strict=True)), left_out, step=step,
                       writes=lambda number: bool(nodes[number].meta.get("writes")))


def _shortened(job: Job, nodes: Sequence[fx.Node], found: Repetition, rows: list[list[fx.Node]],
               returned: Sequence[Place]) -> ShortJob:
    left_out = found.times - KEPT
    places = {node: Place(("own", number), layer) for number, row in enumerate(rows) for layer, node in enumerate(row)}
    gone = {node for row in rows for node in row[KEPT:]} | set(nodes[found.first + KEPT * found.length:found.end])
    order = {node: place for place, node in enumerate(nodes)}
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}

    def copy(node: fx.Node) -> fx.Node:
        return copies[nodes[order[node] - left_out * found.length] if node in gone else node]

    def alone(node: fx.Node, number: int) -> Place:
        """What an input is that is no layer's. It tells on which side of the layers it is taken, if on one alone."""
        users = [order.get(user, len(nodes)) for user in node.users]
        before, behind = all(user < found.first for user in users), all(user >= found.end for user in users)
        return Place((BEFORE if before and users else BEHIND if behind and users else "input", number))

    def is_kept(place: Place) -> bool:
        return place.layer is None or place.layer < KEPT
    computed = set(nodes[found.first:found.end])
    for node in nodes[found.end:]:
        if not computed.isdisjoint(operands(node)):
            computed.add(node)
    given = []
    for node in job.graph.graph.nodes:
        if node.op == "output":
            graph.output(tuple(copy(out) for out, place in zip(node.args[0], returned, strict=True) if is_kept(place)))
        elif node not in gone:
            copies[node] = graph.node_copy(node, copy)
        if node.op == "placeholder":
            given.append(places.get(node) or alone(node, len(given)))
    short = replace(job, graph=fx.GraphModule(job.graph, graph),
                    inputs=tuple(spec for spec, place in zip(job.inputs, given, strict=True) if is_kept(place)))
    return ShortJob(short, left_out, tuple(filter(is_kept, given)), tuple(given), tuple(filter(is_kept, returned)), tuple(returned),
                    tuple(out in computed for out, place in zip(nodes[0].graph.output_node().args[0], returned, strict=True)
                          if is_kept(place)))
