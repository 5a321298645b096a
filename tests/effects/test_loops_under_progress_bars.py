"""Loops under progress bars: left early, suspended, nested, over all kinds of things; bars that the program asks and changes."""
from __future__ import annotations

import io
from collections.abc import Callable
from functools import partialmethod

import pytest
import torch
from torch import nn

import capture
from tests.effects.test_progress_bars import ALWAYS, CALLS, NEVER, World, agrees, auto, tqdm, trange

contrib = pytest.importorskip("tqdm.contrib")
torch.manual_seed(0)
LAYERS = nn.ModuleList([nn.Linear(2, 2) for _ in range(3)])
BLOCK = nn.Sequential(nn.Linear(2, 2), nn.ReLU())


# -- how a loop ends ---------------------------------------------------------------------------------------------------

def returns_early(x, w):
    for i in tqdm(range(5), file=w.file, **w.options):
        x = x + i
        if i == 2:
            return x, i
    return x, None


def breaks_the_inner_loop(x, w):
    for i in trange(3, file=w.file, **w.options):
        for j in trange(4, leave=False, file=w.file, **w.options):
            x = x + i * j
            if j == 2:
                break
    return x


def catches_what_the_iterable_raises(x, w):
    def items():
        yield 1
        print("next", file=w.file)
        raise ValueError("no more")
    try:
        for i in tqdm(items(), file=w.file, **w.options):
            x = x + i
    except ValueError as error:
        w.log.append(str(error))
    return x


def catches_inside(x, w):
    for i in tqdm(range(3), file=w.file, **w.options):
        try:
            if i == 1:
                raise KeyError(i)
            x = x + i
        except KeyError:
            continue
    return x


def leaves_a_generator(x, w):
    def doubled():
        for i in tqdm(range(4), file=w.file, **w.options):
            yield i * 2
    for value in doubled():
        x = x + value
        if value == 4:
            break
    print("after", file=w.file)
    return x


def is_decided_by_tensors(x, w):
    for i in tqdm(range(4), file=w.file, **w.options):
        x = x - 1 if x.sum() > 5 else x + i
    return x


def keeps_an_iterator(x, w):
    rounds = iter(tqdm(range(4), file=w.file, **w.options))
    x = x + next(rounds) + next(rounds)
    w.bars.append(rounds)
    return x


def goes_on_in_the_next_call(x, w):
    rounds = w.bars.pop() if w.bars else iter(tqdm(range(40), file=w.file, **w.options))
    for i in rounds:
        x = x + i
        if i % 3 == 2:
            break
    w.bars.append(rounds)
    return x


def a_generator_that_goes_on(x, w):
    items = (i * 2 for i in range(4))
    for i in tqdm(items, file=w.file, **w.options):
        x = x + i
        break
    return x, list(items)


# -- what a bar goes around --------------------------------------------------------------------------------------------

def modules(x, w):
    for layer in tqdm(LAYERS, file=w.file, **w.options):
        x = layer(x)
    for layer in auto(BLOCK, file=w.file, **w.options):
        x = layer(x)
    for i, layer in tqdm(enumerate(LAYERS), total=len(LAYERS), file=w.file, **w.options):
        x = layer(x) * i
    return x


def dicts(x, w):
    table = {"a": x, "b": x * 2}
    for _, value in tqdm(table.items(), file=w.file, **w.options):
        x = x + value
    for key in tqdm(table, file=w.file, **w.options):
        x = x * table[key]
    return x


def rows(x, w):
    for row in tqdm(torch.stack([x, x * 2, x * 3]), file=w.file, **w.options):
        x = x + row
    for number in tqdm(x, file=w.file, **w.options):
        x = x * number
    return x


def iterators(x, w):
    for a, b in tqdm(zip([x, x * 2], [1, 2]), file=w.file, **w.options):
        x = x + a * b
    for a in tqdm(reversed([x, x * 3]), file=w.file, **w.options):
        x = x + a
    for i, a in contrib.tenumerate([x, x * 2], file=w.file, **w.options):
        x = x + a * i
    for a, b in contrib.tzip([x, x * 2], (1, 2), file=w.file, **w.options):
        x = x + a * b
    return x


def what_c_walks_over(x, w):
    first, second = tqdm([x, x * 2], file=w.file, **w.options)
    total = sum([x * i for i in trange(3, file=w.file, **w.options)])
    return torch.stack(list(tqdm([first, second], file=w.file, **w.options))), total, max(trange(4, file=w.file, **w.options))


def a_list_that_grows(x, w):
    items = [x]
    for item in tqdm(items, file=w.file, **w.options):
        if len(items) < 4:
            items.append(item * 2)
        x = x + item
    return x, items


def tensors_that_are_written_to(x, w):
    y = x * 2
    for item in tqdm([y, x], file=w.file, **w.options):
        y.add_(1)
        x = x + item
    return x, y


def what_the_loop_has_gathered(x, w):
    sums = []
    for _ in trange(3, file=w.file, **w.options):
        sums.append(x.sum().item())
        for number in tqdm(sums, leave=False, file=w.file, **w.options):
            x = x + number * 0.01
    return x, sums


# -- bars that the program asks and changes ----------------------------------------------------------------------------

def keeps_the_bar(x, w):
    items = [x, x * 2]
    bar = tqdm(items, file=w.file, **w.options)
    bar.update()
    items.append(3)
    w.bars.append(bar)
    w.log.append((bar.iterable is items, len(bar.iterable)))
    return x


def loops_twice(x, w):
    bar = tqdm(range(3), file=w.file, **w.options)
    for i in bar:
        x = x + i
    for i in bar:
        x = x * 2 + i
    return x, bar.disable


def changes_the_bar(x, w):
    bar = tqdm(range(9), file=w.file, **w.options)
    bar.total, bar.n, bar.custom = 20, 4, 3
    bar.refresh()
    bar.set_description("described")
    bar.close()
    w.log.append((len(bar), bool(bar), 3 in bar))
    return x * bar.custom


def a_bar_in_a_block(x, w):
    with tqdm(range(3), initial=2, postfix={"a": 1}, file=w.file, **w.options) as bar:
        for i in bar:
            x = x + i
            bar.set_postfix(i=i, sum=x.sum().item())
    print("after", file=w.file)
    return x


def a_bar_that_dies(x, w):
    def step():
        bar = tqdm(total=3, file=w.file, **w.options)
        bar.update()
    step()
    print("after", file=w.file)
    bar = tqdm(total=4, file=w.file, **w.options)
    bar.update(2)
    del bar
    print("at last", file=w.file)
    tqdm(total=5, file=w.file, **w.options)
    return x + 1


ONE_TRACE = [returns_early, breaks_the_inner_loop, catches_inside, leaves_a_generator, keeps_an_iterator, modules, dicts, rows,
             iterators, what_c_walks_over, a_list_that_grows, tensors_that_are_written_to, what_the_loop_has_gathered,
             keeps_the_bar, loops_twice, a_bar_in_a_block, a_bar_that_dies]
MORE = {catches_what_the_iterable_raises: 2, is_decided_by_tensors: 7, goes_on_in_the_next_call: 3, a_generator_that_goes_on: 2,
        changes_the_bar: 2}


@pytest.mark.parametrize("options", [NEVER, ALWAYS, {"disable": True}], ids=["never", "always", "disabled"])
@pytest.mark.parametrize("program", [*ONE_TRACE, *MORE], ids=lambda program: program.__name__)
def test_the_same_text_and_results(program: Callable, options: dict) -> None:
    stats = agrees(program, options)
    assert stats.captures <= MORE.get(program, 1) and stats.native_calls == stats.bailouts == 0 < stats.graphs, stats


@pytest.mark.parametrize("program", [breaks_the_inner_loop, rows, tensors_that_are_written_to],
                         ids=lambda program: program.__name__)
def test_with_kernels(program: Callable) -> None:
    stats = agrees(program, ALWAYS, backend="native", options={"background": False})
    assert stats.captures == 1 and stats.hits == CALLS - 1, stats


@pytest.mark.parametrize("program", [returns_early, modules, iterators, keeps_the_bar, a_bar_that_dies],
                         ids=lambda program: program.__name__)
def test_one_graph(program: Callable) -> None:
    assert agrees(program, ALWAYS, fullgraph=True).captures == 1


def test_modules_of_a_module() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = LAYERS

        def forward(self, x, w):
            for layer in tqdm(self.layers, file=w.file, **w.options):
                x = layer(x)
            return x
    model = Model()

    def change(world: World, number: int) -> None:
        world.options = {**ALWAYS, "mininterval": 1e9 * (number % 2)}
    stats = agrees(lambda x, w: model(x, w), {}, change)
    assert (stats.captures, stats.graphs, stats.hits) == (1, 1, CALLS - 1), stats


def test_an_exception_leaves_the_call() -> None:
    def program(x, w):
        for i in tqdm(range(4), file=w.file, **ALWAYS):
            x = x + i
            if i == 2:
                raise ValueError("enough")
    compiled = capture.compile(program, backend="eager")
    texts = []
    for function in (program, compiled, compiled):
        world = World(ALWAYS)
        with pytest.raises(ValueError, match="enough"):
            function(torch.ones(2), world)
        texts.append(world.seen())
        assert not tqdm._instances
    assert texts[0] == texts[1] == texts[2]


# -- code of the program's ---------------------------------------------------------------------------------------------

class Noting(io.StringIO):
    """A stream of the program's own, which notes that it is written to."""

    def __init__(self, log: list) -> None:
        super().__init__()
        self.log = log

    def write(self, text: str) -> int:
        self.log.append("noted")
        return super().write(text)


def around_and_asks(x, w):
    for i in tqdm(range(3), position=0, file=w.file, **w.options):
        x = x + i + len(w.log)
    return x


def updated_and_asks(x, w):
    for bar in w.bars:
        bar.update()
    return x + len(w.log)


def other_streams(world: World, number: int) -> None:
    world.log.clear()
    world.file = io.StringIO() if number != 3 else Noting(world.log)
    if number == 2:
        write = world.file.write
        world.file.write = lambda text: (world.log.append("written"), write(text))[1]       # type: ignore[method-assign]
    world.bars[:] = [tqdm(total=9, position=0, file=world.file, **ALWAYS)]
    if number == 4:
        world.bars[0].display = lambda *args, **kwargs: world.log.append("shown")


def other_methods(world: World, number: int) -> None:
    def note(bar, *args, **kwargs):
        if bar.fp._wrapped is world.file:       # none that an earlier test has left, and that is closed as it dies
            world.log.append("shown")
    tqdm.__init__ = partialmethod(INIT, disable=True) if number in (2, 4) else INIT
    tqdm.display = note if number == 3 else DISPLAY
    world.log.clear()


INIT, DISPLAY = tqdm.__init__, tqdm.display


@pytest.mark.parametrize("change", [other_streams, other_methods], ids=lambda change: change.__name__)
@pytest.mark.parametrize("program", [around_and_asks, updated_and_asks], ids=lambda program: program.__name__)
def test_streams_and_methods_of_the_program(program: Callable, change: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tqdm, "__init__", INIT)
    monkeypatch.setattr(tqdm, "display", DISPLAY)
    agrees(program, ALWAYS, change)


def test_the_report_says_what_no_bar_can_be_given() -> None:
    def program(x, w):
        for i in tqdm((i for i in range(3)), file=w.file):
            x = x + i
        return x
    compiled = capture.compile(program, backend="eager")
    compiled(torch.ones(2), World({}))
    text = str(capture.explain(compiled))
    assert "a progress bar around a generator" in text and "for i in tqdm((i for i in range(3)), file=w.file):" in text
