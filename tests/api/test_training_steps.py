"""`python -m capture run` compiles the function or the body of the loop that makes a training step, where a script has one."""
from __future__ import annotations

import contextlib
import functools
import io
import json
import re
from pathlib import Path

import pytest
import torch

from capture import _C, admission
from capture.config import CAPTURING_SHARE
from capture.interceptor import MODULE_CALL, MOST_WASTED, Interceptor
from capture.step_loops import close, with_gates
from capture.training_steps import StepFinder
from capture.unit import Unit
from tests.scripts import check_forked, files

SETTING = """
import torch
from torch import nn
torch.manual_seed(0)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.drop = nn.Linear(4, 8), nn.Linear(8, 2), nn.Dropout(0.1)

    def forward(self, x):
        return self.b(self.drop(torch.relu(self.a(x))))

net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss()

def batches(n=6):
    for _ in range(n):
        yield torch.randn(5, 4), torch.randint(2, (5,))

def state():
    print([round(p.sum().item(), 5) for p in net.parameters()], torch.rand(1).item())
"""
STEP = """
    optimizer.zero_grad()
    loss = criterion(net(x), y)
    loss.backward()
    optimizer.step()
"""


def indented(text: str, by: int) -> str:
    return text.replace("\n    ", "\n" + " " * by)


FUNCTION = f"""
def train_step(x, y):{STEP}
    return loss.item()

for x, y in batches():
    print(train_step(x, y))
state()
"""
METHOD = f"""
class Trainer:
    def step(self, x, y):{indented(STEP, 8)}
        self.last = loss.detach()

trainer = Trainer()
for x, y in batches():
    trainer.step(x, y)
    print(trainer.last.item())
state()
"""
CLOSURE = f"""
def main(scale):
    def step(x, y):{indented(STEP, 8)}
        return loss.item() * scale
    for x, y in batches():
        print(step(x, y))
main(2)
state()
"""
ACCUMULATED = """
def train_step(pairs):
    for x, y in pairs:
        (criterion(net(x), y) / 2).backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()

for _ in range(6):
    train_step(list(batches(2)))
state()
"""
SCHEDULED = """
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
def inner(x, y):
    loss = criterion(net(x), y)
    loss.backward()
    return loss.detach()

def outer(x, y):
    optimizer.zero_grad()
    loss = inner(x, y)
    optimizer.step()
    scheduler.step()
    return loss

for x, y in batches(7):
    print(outer(x, y).item(), optimizer.param_groups[0]["lr"])
state()
"""


def run(script: str, interceptor: Interceptor | None = None) -> str:
    """What a script prints; `interceptor`: that compiles it."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = compile(SETTING + script, "train.py", "exec")
        if interceptor is not None:
            code = with_gates(code)
            interceptor.start()
        try:
            exec(code, {"__name__": "train"})
        finally:
            _C.intercept(None)
            close()
    return printed.getvalue()


def units_of(script: str, *functions: str) -> tuple[dict[str, Unit], list[str]]:
    """Runs a script both ways; what was compiled, by name, and the remarks on the rest."""
    interceptor = Interceptor(functions)
    assert run(script, interceptor) == run(script)
    return {unit.name: unit for unit in interceptor.units()}, interceptor.remarks()


def hits(unit: Unit) -> int:
    return sum(part.counts.hits for part in unit.family)


@pytest.mark.parametrize(("script", "name"), [
    (FUNCTION, "train_step"), (METHOD, "step"), (CLOSURE, "step"), (ACCUMULATED, "train_step"), (SCHEDULED, "outer")])
def test_the_function_of_a_step_is_one_graph(script: str, name: str) -> None:
    units, remarks = units_of(script)
    assert set(units) == {name}
    assert re.fullmatch(rf"training step: train:(.*\.)?{name} at train.py:\d+ is compiled as a whole", "".join(remarks))
    assert units[name].captures <= 2 and hits(units[name]) >= 3 and not units[name].breaks


LOOP = f"""
for x, y in batches():{STEP}
    print(loss.item())
state()
"""
EPOCH = f"""
def train(epochs):
    for epoch in range(epochs):
        for x, y in batches(3):{indented(STEP, 12)}
train(3)
state()
"""
WHILE = f"""
def train():
    n = 0
    while n < 6:
        x, y = next(batches(1))
        n += 1{indented(STEP, 8)}
train()
state()
"""
GENERATOR = f"""
def steps():
    for x, y in batches():
        yield x, y

def run():
    for x, y in steps():{indented(STEP, 8)}
        yield loss.item()
print(list(run()))
state()
"""
CLOSED = """
for x, y in batches():
    def closure():
        optimizer.zero_grad()
        loss = criterion(net(x), y)
        loss.backward()
        return loss
    print(optimizer.step(closure).item())
state()
"""
APART = """
def forward(x, y):
    optimizer.zero_grad()
    return criterion(net(x), y)
for x, y in batches():
    forward(x, y).backward()
    optimizer.step()
state()
"""


@pytest.mark.parametrize(("script", "line"), [
    (LOOP, "for x, y in batches():"), (EPOCH, "for x, y in batches(3):"), (WHILE, "x, y = next(batches(1))"),
    (APART, "for x, y in batches():"), (CLOSED, "for x, y in batches():")], ids=["loop", "epoch", "while", "apart", "closure"])
def test_the_body_of_a_loop_is_one_graph(script: str, line: str) -> None:
    units, remarks = units_of(script)
    place = f"train.py:{[text.strip() for text in (SETTING + script).split(chr(10))].index(line) + 1}"
    assert set(units) == {place} and remarks == [f"training step: the body of the loop at {place} is compiled as a whole"]
    (unit,) = units.values()
    assert unit.captures <= 2 and hits(unit) >= 3 and not unit.breaks


@pytest.mark.parametrize("script", [GENERATOR], ids=["generator"])
def test_else_its_modules_are_compiled(script: str) -> None:
    units, (remark,) = units_of(script)
    assert set(units) == {"Net", "CrossEntropyLoss"} and all(hits(unit) >= 3 for unit in units.values())
    assert remark.startswith("training step: only the modules that it calls are compiled; ")


SAVE = "    torch.save(net.state_dict(), '/dev/null')\n"
BREAKING = FUNCTION.replace("    return loss.item()", f"{SAVE * 3}    return loss.item()")


def test_a_step_that_breaks_once_is_two_graphs() -> None:
    units, remarks = units_of(BREAKING.replace(SAVE * 3, SAVE))
    assert set(units) == {"train_step"} and hits(units["train_step"]) >= 6 and "is compiled as a whole" in remarks[0]


def test_a_step_that_breaks_often_is_left_to_its_modules() -> None:
    units, (remark,) = units_of(BREAKING.replace("batches()", "batches(9)"))
    assert set(units) == {"train_step", "Net", "CrossEntropyLoss"} and hits(units["Net"]) >= 3
    assert remark.startswith("training step: train:train_step at train.py:25 takes too many graphs: only the modules")


def test_a_step_that_the_user_names_is_compiled_whatever_it_is() -> None:
    units, remarks = units_of(BREAKING, "train:train_step")
    assert hits(units["train_step"]) >= 3 and remarks == []


def test_a_step_that_varies_is_left_to_its_modules() -> None:
    units, remarks = units_of("""
def train_step(depth):
    optimizer.zero_grad()
    x = torch.ones(3, 4)
    for _ in range(depth):
        x = x + net(x).sum()
    x.sum().backward()
    optimizer.step()

for depth in [*range(1, 12)] * 2:
    train_step(depth)
state()
""")
    assert units["train_step"].captures <= MOST_WASTED + 1 and hits(units["Net"]) > 50 and len(remarks) == 1


def test_sizes_that_change_from_the_first_step_on_take_one_capture() -> None:
    """The step that is seen first runs natively, and so does the next one: the one after it is known to have other sizes."""
    units, _ = units_of("""
def train_step(pairs, weight):
    optimizer.zero_grad()
    (x, y), = pairs["first"]
    loss = criterion(net(x), y) * weight
    loss.backward()
    optimizer.step()
    return loss.item()

for size, (x, y) in enumerate(batches(9)):
    number = 2 + size % 3
    print(train_step({"first": [(x[:number], y[:number])]}, 1 + size))
state()
""")
    step = units["train_step"]
    assert (step.captures, step.counts.hits, step.counts.native_calls) == (1, 6, 1)


def test_a_step_of_which_one_kind_waits_to_be_captured_is_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second one updates the parameters, and does so otherwise after a while."""
    monkeypatch.setattr(admission, "FREE_SECONDS", 0.0)
    with CAPTURING_SHARE.set(1):
        units, (remark,) = units_of("""
done = []
def train_step(x, y, number):
    loss = criterion(net(x), y)
    loss.backward()
    if number % 2:
        optimizer.step()
        optimizer.zero_grad()
        done.append("late" if number > 4 else "early")

for number, (x, y) in enumerate(batches(40)):
    train_step(x, y, number)
print(done)
state()
""")
    step = units["train_step"]
    assert set(units) == {"train_step"} and hits(step) >= 15 and step.counts.native_calls >= 15 and "as a whole" in remark


def test_a_step_that_varies_after_a_break_is_left_to_its_modules() -> None:
    units, remarks = units_of("""
import time
def train_step(depth):
    optimizer.zero_grad()
    x = net(torch.ones(3, 4)).sum()
    time.perf_counter()
    for _ in range(depth):
        x = x + net(torch.ones(3, 4)).sum()
    x.backward()
    optimizer.step()

for depth in range(1, 40):
    train_step(depth)
state()
""")
    assert hits(units["train_step"]) < 30 and hits(units["Net"]) > 50 and len(remarks) == 1


def test_modules_do_not_wait_for_a_step_that_never_comes() -> None:
    units, _ = units_of("for x, y in batches(30):\n    print(net(x).sum().item())\n")
    assert set(units) == {"Net"} and hits(units["Net"]) >= 10


def test_in_evaluation_they_do_not_wait_at_all() -> None:
    units, _ = units_of("""
with torch.no_grad():
    for x, y in batches(4):
        print(net(x).sum().item())
net.eval()
for x, y in batches(4):
    print(net(x).sum().item())
""")
    assert hits(units["Net"]) + units["Net"].captures == 8


def test_settings_that_change_between_steps() -> None:
    units, _ = units_of(FUNCTION.replace("    print(train_step(x, y))", """
    optimizer.param_groups[0]["lr"] *= 0.5
    print(train_step(x, y), net.a.weight.grad.sum().item(), optimizer.state[net.a.weight]["step"])
    net.train(bool(x[0, 0] > 0))
""").replace("batches()", "batches(12)"))
    assert hits(units["train_step"]) >= 3


def test_a_script_as_it_is_run(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    plain = check_forked(files(tmp_path, train=SETTING + FUNCTION), ("--report", str(report)))
    assert plain.returncode == 0, plain.stderr
    assert [frame["name"] for frame in json.loads(report.read_text())["frames"]] == ["train_step"]


def test_what_a_step_holds_lives_until_the_next_is_made() -> None:
    interceptor = Interceptor()
    printed = run("""
import gc, weakref
def trial():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    def step(x, y):
        optimizer.zero_grad()
        criterion(net(x), y).backward()
        optimizer.step()
    for x, y in batches(4):
        step(x, y)
    return weakref.ref(net)
nets = [trial() for _ in range(12)]
gc.collect()
print(sum(net() is not None for net in nets))
""", interceptor)
    assert int(printed) <= 1


def test_threads_that_train_at_once() -> None:
    """One ends the search for the step while another is told of a module."""
    def finds_another_thread(self) -> None:
        interceptor.finder = None
    interceptor = Interceptor()
    finder = StepFinder()
    finder.called = finder.passed = functools.partial(finds_another_thread, finder)     # type: ignore[method-assign]
    for of in (lambda: interceptor.of_module(MODULE_CALL, torch.nn.ReLU()),
               lambda: interceptor.of_backward(torch.Tensor.backward, None)):
        interceptor.finder = finder
        of()
    assert interceptor.finder is None
