"""A compiled program of a few equal layers, with those put in that were left out (`layers`).

The layers are found anew, in the statements: in the order of running that fusion has chosen, where kernels may reach from one layer
into the next, and in a backward pass from the last layer to the first.
"""
from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from capture.backends.native.dependencies import Order
from capture.backends.native.ir import Batch, Extern, Kernel, Nest, Program, View, nested
from capture.backends.native.render import INVALID, Rendered
from capture.backends.native.repetition import Lengthening, NotAlike, Place, in_full
from capture.backends.native.rewrite import reads, renamed, writes

Statement = Nest | Kernel | Batch | Extern


@dataclass(frozen=True, slots=True)
class LayeredProgram:
    """A program with all layers. results: what each output of the short program is, layers being counted as they run;
    results_in_full: what this one's are."""

    program: Program
    rendered: Rendered
    results: tuple[Place, ...]
    results_in_full: tuple[Place, ...]


def lengthened(program: Program, rendered: Rendered, left_out: int, given: Sequence[Place], given_in_full: Sequence[Place],
               backwards: bool = False, visible: int = 0) -> LayeredProgram:
    """The program with `left_out` more layers. given: what each input of the short program is; given_in_full: the same of the whole
    one. backwards: it runs from the last layer to the first. visible: how many of the first outputs are not to be mixed with the
    others. Raises NotAlike."""
    if program.hosts or rendered.forms:
        raise NotAlike("the program is for a GPU")
    return _Lengthened(program, rendered, left_out, given, given_in_full, backwards, visible).run()


class _Lengthened:
    def __init__(self, program: Program, rendered: Rendered, left_out: int, given: Sequence[Place], given_in_full: Sequence[Place],
                 backwards: bool, visible: int) -> None:
        names = {name: place for name, place in zip(program.inputs, given, strict=True) if isinstance(name, str)}
        program = replace(program, body=_with_ends_in_layers(program, names))
        self.program, self.rendered, self.left_out, self.visible = program, rendered, left_out, visible
        self.given, self.given_in_full = given, given_in_full
        self.buffers = {**program.buffers, **{local.name: local for statement in program.body if isinstance(statement, Kernel)
                                              for local in statement.locals}}
        names_before = [*self.buffers, *(statement.name for statement in program.body if isinstance(statement, (Kernel, Extern)))]
        marks = ("@" * length for length in itertools.count(1))
        self.mark = next(mark for mark in marks if not any(mark in name for name in names_before))      # of new names
        self.first_inputs: dict[Hashable, Any] = {}         # of each row
        for name, place in zip(program.inputs, given, strict=True):
            self.first_inputs.setdefault(place.row, name)
        self.mentions = [list(_mentions(statement, rendered)) for statement in program.body]
        self.layers = Lengthening(
            [_key(statement, rendered) for statement in program.body], self.mentions, names, left_out, program.constants,
            lambda one, other: replace(self.buffers[one], name=other) == self.buffers[other],
            -1 if backwards else 1)

    def run(self) -> LayeredProgram:
        body: list[Statement] = []
        old: dict[str, str] = {name: name for name in self.program.constants}      # of each buffer the one that it is like
        for place in self.given_in_full:
            if isinstance(name := self._name(place), str):
                old[name] = self.first_inputs[place.row]
        kernels: dict[str, tuple[str, dict[str, str]]] = {}                     # name -> name of the like one, names of buffers
        for number, copy in self.layers:
            statement = self.program.body[number]
            names = dict(zip(self.mentions[number], map(self._name, self.layers.mentioned(number, copy)), strict=True))
            old |= {new: name for name, new in names.items()}
            if isinstance(statement, (Kernel, Extern)):
                title = f"{statement.name}{self.mark}{copy}" if copy else statement.name
                if isinstance(statement, Kernel):
                    kernels[title] = statement.name, names
                statement = replace(renamed(statement, names.__getitem__), name=title)
            body.append(statement)
        results = tuple(self._results())
        results_in_full = tuple(in_full(results, self.left_out))
        samples = dict(zip(results, self.program.outputs, strict=True))
        program = replace(
            self.program, body=body, buffers={new: replace(self.buffers[name], name=new) for new, name in old.items()},
            inputs=list(map(self._name, self.given_in_full)), outputs=[self._output(place, samples) for place in results_in_full],
            symbols={symbol: (self.given_in_full.index(self.given[place]), dim)
                     for symbol, (place, dim) in self.program.symbols.items()})
        return LayeredProgram(program, self._rendered(kernels), results, results_in_full)

    def _name(self, thing: Place | tuple[str, int]) -> Any:
        """The name of a buffer in the new program (or the symbol that stands for an input)."""
        if isinstance(thing, Place):
            name, layer = self.first_inputs[thing.row], thing.layer
            return name if layer is None else f"{name}{self.mark}{layer}"
        name, copy = thing
        return f"{name}{self.mark}{copy}" if copy else name

    def _results(self) -> Iterator[Place]:
        """What each output of the short program is."""
        found = [self._made_by_layer(number, output) for number, output in enumerate(self.program.outputs)]
        rows = Counter(place.row for place in found if place is not None)
        for number, place in enumerate(found):
            if place is None or rows[place.row] > 1 or number >= self.visible:
                yield place or Place(("output", number))
            elif place.layer:
                yield Place(("output", number))         # what the last layer returns, and no other
            else:
                raise NotAlike("the first layer alone has a result")

    def _made_by_layer(self, number: int, output: Any) -> Place | None:
        if not isinstance(output, View):
            return None
        if output.buffer in self.layers.given and self.layers.given[output.buffer].layer is not None:
            raise NotAlike(f"{output.buffer} is returned")
        if (found := self.layers.place_of(output.buffer)) is None:
            return None
        inner, place, layer = found
        return Place(("made", number < self.visible, inner, place, replace(output, buffer="")), layer)

    def _output(self, place: Place, samples: Mapping[Place, Any]) -> Any:
        if place.layer is None:
            return samples[place]
        if place.layer > self.left_out:
            return samples[place.later(-self.left_out)]
        first = samples.get(Place(place.row, 0))
        if first is None:
            raise NotAlike("the first layer does not return what the others do")
        return replace(first, buffer=self._name(self.layers.later(first.buffer, place.layer)))

    def _rendered(self, kernels: Mapping[str, tuple[str, Mapping[str, str]]]) -> Rendered:
        rendered = self.rendered
        return replace(rendered, symbols={new: rendered.symbols[old] for new, (old, _) in kernels.items()},
                       buffers={new: tuple(names.get(name, name) for name in rendered.buffers[old])      # `INVALID` as it is
                                for new, (old, names) in kernels.items()},
                       numbers={new: rendered.numbers[old] for new, (old, _) in kernels.items()})


def _with_ends_in_layers(program: Program, given: Mapping[str, Place]) -> list[Statement]:
    """The statements, of which those that nothing comes after, such as copies to results and counts of batches, do not stand at the
    end, but in their layer."""
    order = Order(program.body, program.buffers)
    layers: list[set[int]] = []
    begins: dict[int, int] = {}                     # of each layer: where it is mentioned first by what others come after
    for number, statement in enumerate(program.body):
        mentioned = (given.get(name, Place(None)).layer for name in reads(statement) | writes(statement))
        layers.append({layer for layer in mentioned if layer is not None})
        for layer in layers[number] if order.after[number] else ():
            begins.setdefault(layer, number)

    def time(number: int) -> tuple[int, bool, int]:
        if order.after[number]:
            return number, False, 0
        return max(order.before[number].bit_length() - 1, *(begins.get(layer, -1) for layer in layers[number]), -1), True, number
    return [program.body[number] for number in sorted(range(len(program.body)), key=time)]


def _mentions(statement: Statement, rendered: Rendered) -> Iterator[str]:
    """The buffers of a statement, in an order that is the same for statements that do the same."""
    if isinstance(statement, Kernel):
        yield from (name for name in rendered.buffers[statement.name] if name != INVALID)
        yield from (local.name for local in statement.locals)
    elif isinstance(statement, Extern):
        yield from (view.buffer for view in nested((statement.args, statement.kwargs), View))
        yield from (name for name in (*statement.results, *statement.mutates) if name is not None)
    else:
        yield from sorted(reads(statement) | writes(statement))


def _key(statement: Statement, rendered: Rendered) -> Hashable:
    """What must be equal of two statements, but for their buffers."""
    if isinstance(statement, Kernel):
        return (rendered.symbols[statement.name], rendered.numbers[statement.name], statement.parallel,
                tuple(variable.extent for variable in statement.outer))
    if isinstance(statement, Extern):
        blank = renamed(statement, lambda name: "")
        return blank.op, repr((blank.args, blank.kwargs, blank.results, blank.out, blank.mutates))
    return id(statement)
