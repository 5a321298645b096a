"""Equal layers in a sequence of items (nodes of a graph, statements of a program, checks), and how the sequence reads with more.

A layer is a row of items that stands there again right away. Each item mentions things: those that it takes and those that it
makes. An item does the same as one a layer before if it mentions the same things, or things that items of its own layer, or of one
before, have made in the same places, or inputs of which each layer has its own. So a layer is the one before it with the next
layer's things, and so are those that are put in between two of them.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

BEFORE, BEHIND = "before", "behind"     # the layers, in the order of the program

TIMES = 4           # that a layer may have the same item
LENGTHS = 16        # of a layer that are tried

N = TypeVar("N", bound=Hashable)


class NotAlike(Exception):
    """What was made of a graph's layers cannot be repeated."""


class Place(NamedTuple):
    """One of several things in order, such as inputs and results. row: all that are the same in different layers have one row, and
    all else has a row of its own. layer: in which it is, counted as the graph has layers for its inputs and outputs, and as a
    program runs them for its results; None for what is in none."""

    row: Hashable
    layer: int | None = None

    def later(self, layers: int) -> Place:
        return self if self.layer is None else Place(self.row, self.layer + layers)


class Repetition(NamedTuple):
    """Items [first, end) of a sequence are `times` equal rows; the beginning of another one stands in [end, stop)."""

    first: int
    length: int
    times: int
    stop: int

    @property
    def end(self) -> int:
        return self.first + self.length * self.times


def find_repetition(keys: Sequence[Hashable], alike: Callable[[int, int], bool], fewest: int = 1) -> Repetition | None:
    """The repetition that leaves most of a sequence out, if all but `fewest` of its rows are; None where there is none. keys: equal
    for items that may be alike. alike(i, length): whether items i and i + length are."""
    places: dict[Hashable, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(key, []).append(place)
    distances = Counter(other - one for found in places.values() for times in range(1, TIMES + 1)
                        for one, other in zip(found, found[times:]))
    best, most = None, 0
    for length, _ in distances.most_common(LENGTHS):
        first = 0
        for i in range(len(keys) - length + 1):
            if i + length < len(keys) and keys[i] == keys[i + length] and alike(i, length):
                continue
            times = (i - first) // length + 1
            if (times - fewest) * length > most:
                best, most = Repetition(first, length, times, i + length), (times - fewest) * length
            first = i + 1
    return best


def in_full(places: Sequence[Place], left_out: int) -> list[Place]:
    """A list with the layers that were left out; those of a row stand together. Raises NotAlike for a row with gaps."""
    rows: dict[Hashable, list[int]] = {}
    for place in places:
        if place.layer is not None:
            rows.setdefault(place.row, []).append(place.layer)
    found = []
    for place in dict.fromkeys(place if place.layer is None else Place(place.row, 0) for place in places):
        if place.layer is None:
            found.append(place)
            continue
        layers = sorted(rows[place.row])
        if len(layers) < 2 or layers != list(range(layers[0], layers[-1] + 1)):
            raise NotAlike(f"only layers {layers} have {place.row}")
        found += [Place(place.row, layer) for layer in range(layers[0], layers[-1] + 1 + left_out)]
    return found


def beside(side: str, place: Place, left_out: int, step: int) -> Place:
    """What stands in the whole sequence for something of a layer that is found, where it is needed beside the layers, on one `side`
    of them. step: as of `Lengthening`. Raises NotAlike if it is not certain which layer that is."""
    if place.layer is None:
        return place
    comes_first = side == (BEFORE if step > 0 else BEHIND)
    if side not in (BEFORE, BEHIND) or comes_first != (place.layer == 0):
        raise NotAlike(f"{place} is needed beside the layers")
    return place if comes_first else place.later(left_out)


def in_layer(row: Mapping[int, Place], layer: int, left_out: int, step: int) -> Place:
    """What stands for a layer where all have something of their own, of which most have it alike. row: what does so for the layers
    that were not left out; its places count layers in the order in which they come: from the last one on where `step` is -1. Raises
    NotAlike."""
    first = next((other for other, place in row.items() if place.layer == 0), None)
    if first is None:
        raise NotAlike("no layer's result is one of those that are repeated")
    if any(place.layer is not None and place != row[first].later((other - first) * step) for other, place in row.items()):
        raise NotAlike("layers have their results from different places")
    since = layer - first if step > 0 else first + left_out - layer
    if 0 <= since <= left_out:
        return row[first].later(since)
    early = since < 0
    kept = layer - left_out * (early == (step < 0))
    if kept not in row or early and row[kept].layer is not None:
        raise NotAlike("layers have their results from different places")
    return row[kept].later(0 if early else left_out)


class Lengthening(Generic[N]):
    """A sequence with `left_out` more layers, which are put in before `second`, where the second one begins that is found.

    keys: equal for items that do the same with different things. mentions: what each item takes and makes, in an order that is the
    same for items that do the same. given: what is there before; shared: what else is. like: whether two things can stand for each
    other. step: from one layer to the one that comes next, 1 or -1. writes: whether an item writes to what it takes. Raises
    NotAlike.
    """

    def __init__(self, keys: Sequence[Hashable], mentions: Sequence[Sequence[N]], given: Mapping[N, Place], left_out: int,
                 shared: Collection[N] = (), like: Callable[[N, N], bool] = lambda one, other: True, step: int = 1,
                 writes: Callable[[int], bool] = lambda number: False) -> None:
        self.writes = writes
        self.mentions, self.given, self.left_out, self.like, self.step = mentions, given, left_out, like, step
        self.made: dict[N, tuple[int, int]] = {}        # the item that mentions a thing first, and where
        for number, names in enumerate(mentions):
            for place, name in enumerate(names):
                if name not in given and name not in shared:
                    self.made.setdefault(name, (number, place))
        found = find_repetition(keys, self._alike)
        if found is None:
            raise NotAlike("no layers are found")
        self.first, self.length, _, self.stop = found
        self.second = self.first + self.length
        self.following = self._following()              # of each layer's own things the next layer's
        self._check_layers()
        self._check_sides()

    # --- what is alike

    def _alike(self, number: int, length: int) -> bool:
        names, others = self.mentions[number], self.mentions[number + length]
        return len(names) == len(others) and all(
            name == other and not self._of_layer(name) or self._follows(name, other, length) and self.like(name, other)
            for name, other in zip(names, others, strict=True))

    def _of_layer(self, name: N) -> bool:
        return name in self.given and self.given[name].layer is not None

    def _follows(self, name: N, other: N, length: int) -> bool:
        if name in self.made and other in self.made:
            (number, place), after = self.made[name], self.made[other]
            return (number + length, place) == after
        return self._of_layer(name) and other in self.given and self.given[name].later(self.step) == self.given[other]

    def _following(self) -> dict[N, N]:
        following: dict[N, N] = {}
        for number in range(self.first, self.stop - self.length):
            for name, other in zip(self.mentions[number], self.mentions[number + self.length], strict=True):
                if following.setdefault(name, other) != other:
                    raise NotAlike(f"{name} is one layer's own, and all layers'")
        if len(set(following.values())) < len(following):
            raise NotAlike("two layers have a thing in common")
        return {name: other for name, other in following.items() if name != other}

    def _check_layers(self) -> None:
        """What is found must be the layers: something that each has its own of tells one from another, else it could be something
        else that is repeated, or two layers at a time. The one in the middle must be found: else it could be the few beside one end
        that do something more (such as those that gradients get to). And each must do with its own what the others do, in what is
        found or beside that."""
        def own(mentions: Sequence[Sequence[N]]) -> list[N]:
            return [name for names in mentions for name in names if self._of_layer(name)]
        mentioned, found = Counter(own(self.mentions)), set(own(self.mentions[self.first:self.stop]))
        each = Counter(self.given[name].row for name in own(self.mentions[self.first:self.second]))
        if not each:
            raise NotAlike("nothing that layers have of their own is in what is repeated")
        layers: dict[Hashable, int] = {}
        for place in self.given.values():
            layers[place.row] = max(layers.get(place.row, 0), place.layer or 0)
        most = max(layers[row] for row in each)
        for name, place in self.given.items():
            if place.row in each and layers[place.row] == most and place.layer == (most + 1) // 2 and name not in found:
                raise NotAlike(f"{place} is not in what is repeated")
        if any(mentioned[name] != each[self.given[name].row] for name in found):
            raise NotAlike("layers take what they have of their own more or less often")

    def _check_sides(self) -> None:
        """What stands before `second` may take no inputs of layers that come later; what stands from there on, nothing of layers
        that have been by then."""
        here: dict[Hashable, list[int]] = {}
        for name in (name for names in self.mentions[self.first:self.second] for name in names if self._of_layer(name)):
            here.setdefault(self.given[name].row, []).append(self._order(name))
        for number, names in enumerate(self.mentions):
            for name in filter(self._of_layer, names):
                layers = here.get(self.given[name].row)
                if layers is None or (self._order(name) > max(layers) if number < self.second else
                                      self._order(name) <= min(layers)):
                    raise NotAlike(f"{name} is taken on the other side of the layers")
            if number >= self.stop and any(self.first <= self.made.get(name, (-1, 0))[0] < self.second for name in names):
                raise NotAlike("what comes behind the layers takes something of the first one")

    def _order(self, name: N) -> int:
        return (self.given[name].layer or 0) * self.step

    def check_chains(self) -> None:
        """Raises NotAlike if some items of the layers are computed of each other alone, round after round, or write to what is the
        same for all: what comes of that depends on how many layers there are, but fusion may compute it beside them, where it does
        not show. Each item makes what it mentions last."""
        takes: list[set[int]] = []                      # of each item of a layer: those that it takes anything of that varies
        own: set[int] = set()
        for number in range(self.second, self.second + self.length):
            taken = set()
            for place, name in enumerate(self.mentions[number][:-1]):
                if self._of_layer(name):
                    own.add(number - self.second)
                elif name != self.mentions[number - self.length][place]:
                    taken.add((self.made[name][0] - self.first) % self.length)
            takes.append(taken)
        while more := {item for item, taken in enumerate(takes) if item not in own and not taken.isdisjoint(own)}:
            own |= more
        chained = set(range(self.length)) - own
        if any(self.writes(self.second + item) for item in chained):
            raise NotAlike("each layer may write to what all have in common")
        while ends := {item for item in chained if takes[item].isdisjoint(chained)}:
            chained -= ends
        if chained:
            raise NotAlike("a part of the layers takes nothing that a layer has of its own")

    # --- the sequence with more layers

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The items: (number, copy); a copy is that of an item so many layers later, 0 the item itself."""
        for number in range(len(self.mentions)):
            if number == self.second:
                yield from ((inner, copy) for copy in range(1, self.left_out + 1) for inner in range(self.first, self.second))
            yield number, 0

    def mentioned(self, number: int, copy: int) -> list[Place | tuple[N, int]]:
        """What a copy of an item mentions, in order: what is given, or (a thing, how many layers later than it)."""
        return [self._mentioned(number, copy, place) for place in range(len(self.mentions[number]))]

    def _mentioned(self, number: int, copy: int, place: int) -> Place | tuple[N, int]:
        name = self.mentions[number][place]
        if name in self.given:
            moves = number < self.second if self.step < 0 else number >= self.second        # whose layers stand there later
            return self.given[name].later(copy * self.step + self.left_out * moves)
        if copy:
            return self.later(name, copy) if name in self.following else (name, 0)
        if self.second <= number < self.stop and self.made.get(name, (self.second, 0))[0] < self.second:
            before = self.mentions[number - self.length][place]
            return (name, 0) if before == name else self.later(name, self.left_out)
        return name, 0

    def later(self, name: N, layers: int) -> tuple[N, int]:
        """The thing that is so many layers later than one which was made before the second layer."""
        while layers and self.made[name][0] < self.first:
            if name not in self.following:
                raise NotAlike(f"{name} is taken in a later layer")
            name, layers = self.following[name], layers - 1
        return name, layers

    def place_of(self, name: N) -> tuple[int, int, int] | None:
        """Of a thing that a layer has made: the item in the layer, where in that, and the layer, counted as they come. None for
        what no layer has made, or all have in common."""
        number, place = self.made.get(name, (-1, 0))
        if not self.first <= number < self.stop or name not in self.following and name not in self.following.values():
            return None
        layer, inner = divmod(number - self.first, self.length)
        return inner, place, layer
