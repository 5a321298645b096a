"""Progress bars around and inside of loops: the same text and bars as in eager mode, and a graph for what the loop computes."""
from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import capture

tqdm_module = pytest.importorskip("tqdm")
tqdm, trange = tqdm_module.tqdm, tqdm_module.trange
auto = pytest.importorskip("tqdm.auto").tqdm
NEVER, ALWAYS = {"mininterval": 1e9}, {"mininterval": 0, "miniters": 1}
SHOWN = ("n", "last_print_n", "total", "desc", "postfix", "disable", "pos", "leave", "unit", "initial")
TIMES, PADDING = re.compile(r"\[\d\d:\d\d.*?(?:it/s|s/it|step/s|s/step)"), re.compile(r" +(?=[\r\n\x1b]|$)")
CALLS = 6


class World:
    """What a program writes to, and the bars that it has kept."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.file, self.bars, self.log, self.options, self.rounds = io.StringIO(), [], [], options, 4

    def seen(self) -> Any:
        text = PADDING.sub("", TIMES.sub("[time", self.file.getvalue()))
        return text, [[getattr(bar, name, None) for name in SHOWN] for bar in self.bars], [*self.log]


def around_a_range(x, w):
    for i in tqdm(range(w.rounds), file=w.file, **w.options):
        x = x * 2 + i
    return x


def by_name(x, w):
    for i in trange(w.rounds, desc="steps", file=w.file, **w.options):
        x = (x + i).sin()
    return x


def of_the_notebook(x, w):
    for i in auto(range(w.rounds), file=w.file, **w.options):
        x = x * 2 + i
    return x


def around_a_list(x, w):
    for t in tqdm([x, x * 2, x * 3], file=w.file, **w.options):
        x = x + t
    return x


def around_enumerate(x, w):
    for i, t in enumerate(tqdm([x, x * 2, x * 3], file=w.file, **w.options)):
        x = x + t * i
    return x


def around_enumerate_inside(x, w):
    for i, t in tqdm(enumerate([x, x * 2, x * 3]), total=3, file=w.file, **w.options):
        x = x + t * i
    return x


def around_a_generator(x, w):
    for t in tqdm((x * i for i in range(w.rounds)), file=w.file, **w.options):
        x = x + t
    return x


def around_a_loader(x, w):
    for (t,) in tqdm(DataLoader(TensorDataset(torch.arange(6.0).view(3, 2)), batch_size=1), file=w.file, **w.options):
        x = x + t.sum() * 2
    return x


def updated(x, w):
    with tqdm(total=w.rounds, file=w.file, **w.options) as bar:
        for i in range(w.rounds):
            x = x * 2 + i
            bar.update()
    w.bars.append(bar)
    return x


def updated_and_read(x, w):
    bar = tqdm(total=10, file=w.file, **w.options)
    for _ in range(w.rounds):
        bar.update(2)
        x = x + bar.n
    bar.close()
    w.bars.append(bar)
    return x, bar.n, bar.last_print_n


def postfix(x, w):
    bar = tqdm(range(w.rounds), file=w.file, **w.options)
    for i in bar:
        x = x * 0.5 + i
        bar.set_postfix(loss=x.sum().item(), refresh=False)
        bar.set_description(f"round {i}")
    w.bars.append(bar)
    return x


def writes(x, w):
    for i in tqdm(range(w.rounds), file=w.file, **w.options):
        x = x * 2 + i
        tqdm.write(f"round {i}", file=w.file)
    return x


def disabled(x, w):
    for i in tqdm(range(w.rounds), file=w.file, disable=True):
        x = x * 2 + i
    return x


def not_left(x, w):
    for i in tqdm(range(w.rounds), file=w.file, leave=False, **w.options):
        x = x * 2 + i
    return x


def nested(x, w):
    for i in tqdm(range(2), file=w.file, desc="outer", **w.options):
        for j in tqdm(range(3), file=w.file, desc="inner", leave=False, **w.options):
            x = x * 2 + i * j
    return x


def left_early(x, w):
    bar = tqdm(range(w.rounds), file=w.file, **w.options)
    for i in bar:
        x = x * 2 + i
        if i == 1:
            break
    w.bars.append(bar)
    return x


def raised_inside(x, w):
    try:
        for i in tqdm(range(w.rounds), file=w.file, **w.options):
            x = x * 2 + i
            if i == 2:
                raise ValueError("enough")
    except ValueError as error:
        w.log.append(str(error))
    return x


def prints_around(x, w):
    print("before", file=w.file)
    for i in tqdm(range(2), file=w.file, **w.options):
        print("inside", i, file=w.file)
        x = x + i
    print("after", x.shape, file=w.file)
    return x


def trains(x, w):
    weight = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in (bar := tqdm(range(3), file=w.file, **w.options)):
        optimizer.zero_grad()
        loss = ((weight * x) ** 2).sum()
        loss.backward()
        optimizer.step()
        bar.set_postfix({"loss": f"{loss.item():.3f}"})
    return weight.detach().clone()


PROGRAMS = [around_a_range, by_name, of_the_notebook, around_a_list, around_enumerate, around_enumerate_inside, around_a_generator,
            around_a_loader, updated, updated_and_read, postfix, writes, disabled, not_left, nested, left_early, raised_inside,
            prints_around, trains]


# Of programs that are more than one trace: a bar is made between two if a generator or a loader goes into it; a number of the bar's
# is computed with; a backward pass ends a trace.
CAPTURES = {around_a_generator: 2, around_a_loader: 2, updated_and_read: 6, trains: 3}


def run(program: Callable, options: dict[str, Any], engine: Callable, change: Callable[[World, int], None]) -> list[Any]:
    """What some calls of a program return, write and leave behind."""
    world, results = World(options), []
    compiled = engine(program)
    for number in range(CALLS):
        change(world, number)
        results.append((compiled(torch.full((2,), number + 1.0), world), world.seen()))
    return results


def agrees(program: Callable, shown: dict[str, Any], change: Callable[[World, int], None] = lambda world, number: None,
           **arguments: Any) -> capture.Stats:
    """The statistics of a captured program that does what it does in eager mode."""
    compiled: list[Any] = []

    def engine(program: Callable) -> Callable:
        compiled.append(capture.compile(program, **{"backend": "eager", **arguments}))
        return compiled[0]
    eager, captured = run(program, shown, lambda program: program, change), run(program, shown, engine, change)
    for (left, seen), (right, also) in zip(eager, captured, strict=True):
        torch.testing.assert_close(left, right)
        assert also == seen
    return capture.stats(compiled[0])


@pytest.mark.parametrize("options", [NEVER, ALWAYS], ids=["never", "always"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_same_text_and_bars(program: Callable, options: dict[str, Any]) -> None:
    stats = agrees(program, options)
    assert not tqdm._instances
    assert stats.captures <= CAPTURES.get(program, 1) and stats.native_calls == stats.bailouts == 0 < stats.graphs, stats


@pytest.mark.parametrize("program", [around_a_range, updated, postfix, around_a_loader], ids=lambda program: program.__name__)
def test_with_kernels(program: Callable) -> None:
    stats = agrees(program, ALWAYS, backend="native", options={"background": False})
    assert stats.native_calls == stats.bailouts == 0, stats


@pytest.mark.parametrize("program", [around_a_range, nested, updated, postfix], ids=lambda program: program.__name__)
def test_the_world_changes_between_calls(program: Callable) -> None:
    def change(world: World, number: int) -> None:
        world.rounds = 2 + number % 3
        world.options = (NEVER, ALWAYS, {"disable": True}, {"ascii": True, "unit": "step", **ALWAYS})[number % 4]
    assert agrees(program, {}, change).bailouts == 0


def test_a_bar_of_the_callers() -> None:
    def program(x, w):
        if not w.bars:
            return x
        for _ in range(w.rounds):
            w.bars[0].update()
            x = x * 2
        return x + w.bars[0].n

    def change(world: World, number: int) -> None:
        if number == 1:
            world.bars.append(tqdm(total=30, file=world.file, **ALWAYS))
        if number == CALLS - 1:
            world.bars[0].close()
    agrees(program, ALWAYS, change)


@pytest.mark.parametrize("kept", [True, False])
def test_what_a_repeated_call_changed_now_and_then_is_read_anew(kept: bool) -> None:
    """When a bar is shown depends on the time."""
    def program(x, w):
        before = w.bars[0].last_print_n if kept else 0
        w.bars[0].update()
        return x * 2, before, w.bars[0].last_print_n

    def change(world: World, number: int) -> None:
        if number == 0:
            world.bars.append(tqdm(total=30, file=world.file, mininterval=0))
        world.bars[0].mininterval, world.bars[0].miniters = (1e9 if number < 3 else 0), 1
    agrees(program, {}, change)


class Loud(tqdm):
    """A bar of the program's own, which counts how often it is shown."""

    shown: ClassVar[list[int]] = []

    def display(self, *args, **kwargs):
        self.shown.append(self.n)
        return super().display(*args, **kwargs)


def around_by_own_code(x, w):
    for i in Loud(range(w.rounds), file=w.file, **w.options):
        x = x * 2 + i + len(Loud.shown)
    return x


def test_a_bar_of_the_programs_own_class() -> None:
    stats = agrees(around_by_own_code, ALWAYS, lambda world, number: Loud.shown.clear())
    assert stats.native_calls == stats.bailouts == 0 < stats.hits, stats


def test_the_report_says_what_python_runs() -> None:
    compiled = capture.compile(around_by_own_code, backend="eager")
    for _ in range(3):
        compiled(torch.ones(2), World(ALWAYS))
    text = str(capture.explain(compiled))
    assert "and the rest of tqdm.__new__(), which CPython runs" in text
    assert "time(), and the rest of tqdm.__iter__(), which CPython runs" in text
