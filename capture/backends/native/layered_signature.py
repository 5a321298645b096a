"""How a graph is called of which most layers were left out while it was compiled (`layers`): the signature with these put in."""
from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import fx

from capture.backends.native.ir import Program
from capture.backends.native.layered_graphs import lengthened_core, tail_with_edges, tail_with_outputs
from capture.backends.native.layered_program import lengthened
from capture.backends.native.layers import KEPT, ShortJob, check_chains
from capture.backends.native.render import Rendered
from capture.backends.native.repetition import BEHIND, Lengthening, NotAlike, Place, beside, in_full, in_layer
from capture.backends.native.signature import Check, Input, Part, Result, Signature, Tangent

Name = Input | Result
Gradient = Result | Tangent | None


class LayeredSignature:
    """Puts layers into the programs of a job, first into the forward one, and into its `signature`, `tail` and `core`. shortened:
    the jobs with less and less layers, of which the last one was compiled. All methods raise NotAlike."""

    def __init__(self, shortened: Sequence[ShortJob], signature: Signature, tail: fx.GraphModule | None,
                 core: fx.GraphModule | None) -> None:
        if signature.inlined_backward or signature.partial_passes and signature.partial_passes.graph:
            raise NotAlike("the graph runs backward passes, or has several results with gradients")
        self.shortened, self.signature, self.tail, self.core = shortened, signature, tail, core
        self.steps: list[_Step] = []

    def forward(self, program: Program, rendered: Rendered) -> tuple[Program, Rendered, Sequence[int]]:
        """The forward program. (None of its arguments die.)"""
        for short in reversed(self.shortened):
            step = _Step(short, self.signature)
            program, rendered = step.forward(program, rendered)
            self.signature, self.tail, self.core = step.finished(self.tail, self.core)
            self.steps.append(step)
        return program, rendered, ()

    def check_forward(self, gm: fx.GraphModule) -> None:
        """Raises NotAlike if what the forward graph, in ATen's operations, does for each layer cannot be told from it. To be called
        before `forward`."""
        numbers = list(range(len(self.shortened[-1].given)))
        for short in reversed(self.shortened):
            places = [short.given[number] for number in numbers]
            casts = [Place(("cast", *places[place].row), places[place].layer) for place in self.signature.casts]
            check_chains(gm, [*places, *casts])
            numbers = [short.given_in_full.index(place) for place in places]

    def check_backward(self, number: int, gm: fx.GraphModule) -> None:
        """The same of a backward graph. To be called between `forward` and `backward`."""
        names = list(self.steps[0].signature.arguments()[number])
        for step in self.steps:
            places = list(map(step.place, names))
            if any(place.layer is not None for place in places):
                tangents = len(gm.graph.find_nodes(op="placeholder")) - len(places)
                check_chains(gm, [*places, *(Place(("tangent", tangent)) for tangent in range(tangents))], len(places))
            names = [step.names[place] for place in places]

    def backward(self, number: int, program: Program, rendered: Rendered) -> tuple[Program, Rendered, Sequence[int]]:
        """The backward program of one node of autograd, and which of its arguments die."""
        gradients: list[Gradient] = list(_gradients(self.steps[0].signature, number))
        for step in self.steps:
            program, rendered, gradients = step.backward(number, program, rendered, gradients)
        parts = list(self.signature.parts)
        if parts:
            parts[number] = replace(parts[number], gradients=tuple(gradients))
            self.signature = replace(self.signature, parts=tuple(parts))
        else:
            receivers = (place for place, _ in self.signature.gradients)
            self.signature = replace(self.signature, gradients=tuple(
                sorted(zip(receivers, gradients, strict=True), key=lambda pair: pair[0])))
        return program, rendered, self.signature.dying()[number]

    def with_symbols(self, short: Signature) -> Signature:
        """The signature, which says of sizes what that of the short job says by now."""
        symbols = []
        for symbol, place, dim in short.symbols:
            for step in self.steps:
                place = step.number_in_full(place)
            symbols.append((symbol, place, dim))
        return replace(self.signature, symbols=tuple(symbols), conditions=short.conditions)


class _Step:
    """The layers that were left out at one time. signature: without them."""

    def __init__(self, short: ShortJob, signature: Signature) -> None:
        self.short, self.signature, self.left_out = short, signature, short.left_out
        casts = [Place(("cast", short.given[place].row), short.given[place].layer) for place in signature.casts]
        self.given = [*short.given, *casts]
        self.given_in_full = [*short.given_in_full, *in_full(casts, self.left_out)]
        self.inputs = len(short.given_in_full)
        self.names: dict[Place, Name] = {place: Input(number) for number, place in enumerate(self.given_in_full)}

    # --- programs

    def forward(self, program: Program, rendered: Rendered) -> tuple[Program, Rendered]:
        found = lengthened(program, rendered, self.left_out, self.given, self.given_in_full, visible=self.signature.visible)
        self.results = found.results
        self.names |= {place: Result(number) for number, place in enumerate(found.results_in_full)}
        return found.program, found.rendered

    def backward(self, number: int, program: Program, rendered: Rendered,
                 gradients: Sequence[Gradient]) -> tuple[Program, Rendered, list[Gradient]]:
        """A backward program, and the gradients for all that gets any of it."""
        saved = list(map(self.place, self.signature.arguments()[number]))
        receivers = self._receivers(number)
        given = [*saved, *(Place(("tangent", place)) for place in range(len(program.inputs) - len(saved)))]
        if all(place.layer is None for place in (*given, *receivers)):
            if not all(map(self._is_behind, receivers)):
                raise NotAlike("a backward pass may go through layers, of which it takes nothing")
            return program, rendered, list(gradients)
        found = lengthened(program, rendered, self.left_out, given, in_full(given, self.left_out), backwards=True)
        numbers = {place: Result(result) for result, place in enumerate(found.results_in_full)}
        rows: dict[Hashable, dict[int, Place]] = {}
        for place, gradient in zip(receivers, gradients, strict=True):
            if place.layer is not None and isinstance(gradient, Result):
                rows.setdefault(place.row, {})[place.layer] = found.results[gradient.index]
        by_place = dict(zip(receivers, gradients, strict=True))
        return found.program, found.rendered, [
            self._gradient(place, by_place, rows, found.results, numbers) for place in in_full(receivers, self.left_out)]

    def _is_behind(self, place: Place) -> bool:
        """Whether something that gets a gradient is an input that is taken behind the layers alone, or a result that is computed
        from what they make."""
        kind: str = place.row[0]
        if kind != "inner":
            return kind == BEHIND
        result = self.signature.inner[place.row[1]].index
        return result >= 0 and self.short.computed[self.signature.roots[result][0]]

    def _gradient(self, place: Place, gradients: Mapping[Place, Gradient], rows: Mapping[Hashable, Mapping[int, Place]],
                  results: Sequence[Place], numbers: Mapping[Place, Result]) -> Gradient:
        """What one input gets. rows: of those that layers have of their own, the results for the layers that were not left out."""
        if place.layer is not None:
            own = {gradient for other, gradient in gradients.items() if other.row == place.row}
            if own == {None}:
                return None
            if len(rows.get(place.row, ())) < sum(other.row == place.row for other in gradients):
                raise NotAlike("some layers hand on gradients as they are")
            return numbers[in_layer(rows[place.row], place.layer, self.left_out, -1)]
        gradient = gradients[place]
        if not isinstance(gradient, Result):
            return gradient
        return numbers[beside(place.row[0], results[gradient.index], self.left_out, -1)]

    # --- the signature

    def number_in_full(self, place: int) -> int:
        """The number of an input."""
        return self._index(self.given[place])

    def finished(self, tail: fx.GraphModule | None, core: fx.GraphModule | None) -> tuple[
            Signature, fx.GraphModule | None, fx.GraphModule | None]:
        """The signature with the layers (but for the gradients), and the graphs beside the programs."""
        signature, visible = self.signature, self.signature.visible
        if any(place.layer is not None for place in self.results[:signature.differentiable]):
            raise NotAlike("each layer has a result with a gradient")
        if core is not None:
            inner = [Place(("inner", number)) for number in range(len(signature.inner))]
            core = lengthened_core(core, self.left_out, [*self.short.given, *inner], [*self.short.given_in_full, *inner])
        parts = tuple(self._part(part, number) for number, part in enumerate(signature.parts))
        taken = list(map(self.place, signature.outputs))
        if parts:
            assert tail is not None
            places = in_full(taken, self.left_out)
            edges = [self._receivers(number) for number in range(len(parts))]
            tail = tail_with_edges(tail, taken, places, edges, [in_full(places, self.left_out) for places in edges])
        elif tail is not None:
            tail, places = tail_with_outputs(tail, taken, self.short.returned, self.short.returned_in_full, self.left_out)
        else:
            rows: dict[Hashable, dict[int, Place]] = {}
            for place, name in zip(self.short.returned, taken, strict=True):
                rows.setdefault(place.row, {})[place.layer or 0] = name
            places = [beside(place.row[0], rows[place.row][0], self.left_out, 1) if place.layer is None else
                      in_layer(rows[place.row], place.layer, self.left_out, 1) for place in self.short.returned_in_full]
        return replace(
            signature,
            inputs=self.inputs,
            casts=tuple(self._index(Place(place.row[1], place.layer)) for place in self.given_in_full[self.inputs:]),
            outputs=tuple(map(self._name, places)),
            roots=tuple((self._output(place), is_base) for place, is_base in signature.roots),
            visible=len(in_full(self.results[:visible], self.left_out)),
            saved=tuple(self._names_in_full(signature.saved)),
            gradients=() if parts else tuple((self._index(place), None) for place in in_full(self._receivers(0), self.left_out)),
            written=self._inputs_in_full(signature.written),
            advanced=tuple(self._counted_in_full(signature.advanced)),
            checks=tuple(self._checks(signature.checks)),
            snapshots=self._inputs_in_full(signature.snapshots),
            numbers=tuple(map(self.number_in_full, signature.numbers)),
            parts=parts,
            inner=tuple(replace(like, index=self._result_in_full(like.index)) for like in signature.inner),
            layouts=self._layouts() if signature.layouts else ()), tail, core

    def _part(self, part: Part, number: int) -> Part:
        edges = dict(zip(self._receivers(number), part.edges, strict=True))

        def edge(place: Place) -> tuple[int, int]:
            if place.row[0] == "part":
                return edges[place]
            return (self.inputs + place.row[1] if place.row[0] == "inner" else self._index(place)), -1
        return replace(part, saved=tuple(self._names_in_full(part.saved)), gradients=(), checks=tuple(self._checks(part.checks)),
                       edges=tuple(map(edge, in_full(list(edges), self.left_out))))

    def _receivers(self, number: int) -> list[Place]:
        """What a backward program makes gradients for, in order."""
        signature = self.signature
        if not signature.parts:
            found = [self.given[place] for place, _ in signature.gradients]
        else:
            found = [Place(("part", place, other)) if other >= 0 else self.given[place] if place < signature.inputs else
                     Place(("inner", place - signature.inputs)) for place, other in signature.parts[number].edges]
        if any(count != KEPT for count in Counter(place.row for place in found if place.layer is not None).values()):
            raise NotAlike("gradients get to some of the layers")
        return found

    def _checks(self, checks: Sequence[Check]) -> list[Check]:
        """The checks of a backward pass, which comes to the last layer first."""
        places = {check.place: self.place(check.place) for check in checks if check.place is not None}
        if all(place.layer is None for place in places.values()):
            if any(count >= KEPT for count in Counter(replace(check, node=0) for check in checks).values()):
                raise NotAlike("each layer may check the same")
            return [replace(check, place=check.place and self.names[places[check.place]]) for check in checks]
        rows = [check.place and places[check.place].row for check in checks]
        layers: Lengthening[Any] = Lengthening(
            [(row, replace(check, place=None, node=0)) for row, check in zip(rows, checks, strict=True)],
            [[check.node, *([check.place] if check.place is not None else ())] for check in checks], places, self.left_out, step=-1)
        nodes: dict[Any, int] = {}
        found = []
        for number, copy in layers:
            node, *place = layers.mentioned(number, copy)
            found.append(replace(checks[number], node=nodes.setdefault(node, len(nodes)),
                                 place=self.names[place[0]] if place else None))
        return found

    def _layouts(self) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
        layouts = dict(zip((place.row for place in self.short.given), self.signature.layouts, strict=True))
        return tuple(layouts[place.row] for place in self.short.given_in_full)

    # --- names

    def place(self, name: Name) -> Place:
        """What an input or result is, without the layers."""
        return self.given[name.index] if isinstance(name, Input) else self.results[name.index]

    def _name(self, place: Place) -> Name:
        if place not in self.names:
            raise NotAlike(f"{place} is in no layer that was found")
        return self.names[place]

    def _index(self, place: Place) -> int:
        """The number of an input."""
        return self._name(place).index

    def _result_in_full(self, result: int) -> int:
        """The number of a result that is no layer's; -1 for -1."""
        if result >= 0 and self.results[result].layer is not None:
            raise NotAlike("results are computed from a layer's own")
        return result if result < 0 else self.names[self.results[result]].index

    def _output(self, number: int) -> int:
        """The number of an output that is no layer's."""
        place = self.short.returned[number]
        if place.layer is not None:
            raise NotAlike("each layer has a result with a gradient")
        return self.short.returned_in_full.index(place)

    def _names_in_full(self, names: Iterable[Name]) -> list[Name]:
        return [self._name(place) for place in in_full(list(map(self.place, names)), self.left_out)]

    def _inputs_in_full(self, numbers: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted(name.index for name in self._names_in_full(map(Input, numbers))))

    def _counted_in_full(self, names: Sequence[Name]) -> list[Name]:
        """Those that stand there several times, as often."""
        counts = Counter(map(self.place, names))
        by_row = {place.row: count for place, count in counts.items()}
        if any(by_row[place.row] != count for place, count in counts.items()):
            raise NotAlike("layers write to their own tensors more or less often")
        if any(count >= KEPT for place, count in counts.items() if place.layer is None):
            raise NotAlike("each layer may write to the same tensor")
        return [self._name(place) for place in in_full(list(counts), self.left_out) for _ in range(by_row[place.row])]


def _gradients(signature: Signature, number: int) -> Sequence[Gradient]:
    return signature.parts[number].gradients if signature.parts else [gradient for _, gradient in signature.gradients]
