"""Scripts whose loop makes a training step: what they do when the body of the loop is compiled is what they do without capture."""
from __future__ import annotations

import contextlib
import io
import pickle
import re
import traceback
import types
from pathlib import Path

import pytest

import capture
from capture import _C, loop_bodies
from capture.interceptor import Interceptor
from capture.reports.build import report_of
from capture.step_loops import Gate, close, with_gates
from tests import scripts
from tests.api import generated_loops
from tests.api.step_loop_scripts import BODIES, FUNCTIONS, LEFT, STEP

SETTING = """
import torch, sys
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
data = [(torch.randn(5, 3), torch.randn(5, 1)) for _ in range(8)]

def fit(x, y):
    return ((net(x) - y) ** 2).mean()

def weights():
    return round(sum(p.sum().item() for p in net.parameters()), 5)
"""


@pytest.fixture(autouse=True)
def every_variant_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_bodies, "OFTEN", 1)


def outcome(script: str, interceptor: Interceptor | None = None, name: str = "script.py") -> tuple[str, str, dict[str, str]]:
    """What a script prints, the traceback in which it ends, and its variables at the end."""
    scope = {"__name__": "script"}
    printed, ended = io.StringIO(), ""
    code = compile(SETTING + script, name, "exec")
    if interceptor is not None:
        code = with_gates(code)
    with contextlib.redirect_stdout(printed):
        if interceptor is not None:
            interceptor.start()
        try:
            exec(code, scope)
        except BaseException as error:
            trace = error.__traceback__
            while trace is not None and trace.tb_frame.f_code.co_filename != name:
                trace = trace.tb_next
            ended = "".join(traceback.format_exception(type(error), error, trace))
        finally:
            _C.intercept(None)
            close()
    left = {key: shown(repr(value)) for key, value in scope.items() if not key.startswith("__")}
    return re.sub(r"0x[0-9a-f]+", "0x…", printed.getvalue()), ended, left


def shown(text: str) -> str:
    """What is the same in both runs of a representation: no addresses, and numbers to three digits."""
    return re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.3f}", re.sub(r"0x[0-9a-f]+", "0x…", text))


def check(script: str, compiled: bool = True) -> Interceptor:
    """Runs a script both ways. compiled: its loop is found, and rounds of it are hits."""
    interceptor = Interceptor(backend="eager")
    plain, ours = outcome(script), outcome(script, interceptor)
    assert ours == plain
    units = [] if interceptor.body is None else interceptor.body.units.values()
    hits = sum(part.counts.hits for unit in units for part in unit.family)
    assert (hits > 0) is compiled, interceptor.remarks()
    return interceptor


def in_function(body: str) -> str:
    """The same as the body of a function, whose variables are its own."""
    return "def main():\n" + "".join(f"    {line}\n" for line in body.split("\n")) + "main()\nprint(weights())"


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_loop_of_the_script(body: str) -> None:
    check(body)


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_loop_in_a_function(body: str) -> None:
    check(in_function(body))


@pytest.mark.parametrize("script", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_loop_with_what_only_functions_have(script: str) -> None:
    check(script)


@pytest.mark.parametrize("script", LEFT.values(), ids=LEFT)
def test_a_loop_that_is_left_alone(script: str) -> None:
    check(script, compiled=False)


def test_code_without_such_loops_stays_what_it_is() -> None:
    code = compile("for x in y:\n    x.step()\ndef f():\n    while y: y.backward()", "f.py", "exec")
    assert with_gates(code) is code


def test_all_else_of_the_code_is_as_it_was() -> None:
    code = compile(in_function(BODIES["handled"]), "f.py", "exec")
    gated = with_gates(code)
    plain, made = (next(c for c in each.co_consts if isinstance(c, types.CodeType)) for each in (code, gated))
    different = {"co_code", "co_consts", "co_exceptiontable", "co_linetable", "co_lnotab", "co_stacksize", "_co_code_adaptive"}
    for name in dir(plain):
        if name.startswith("co_") and name not in different and not callable(getattr(plain, name)):
            assert getattr(plain, name) == getattr(made, name), name
    assert hash(made) != hash(plain) and {made: 1}[made] == 1
    assert {line for *_, line in plain.co_lines()} == {line for *_, line in made.co_lines()}


def test_a_copy_of_the_code_runs_its_loop_by_itself() -> None:
    """As cloudpickle sends functions of `__main__` to other processes."""
    interceptor = Interceptor(backend="eager")
    script = in_function(BODIES["break"])
    scope = {"__name__": "script"}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        interceptor.start()
        try:
            exec(with_gates(compile(SETTING + script, "script.py", "exec")), scope)
            code = scope["main"].__code__
            gates = [c for c in code.co_consts if isinstance(c, Gate)]
            assert gates and all(gates)
            sent = pickle.loads(pickle.dumps(gates))
            assert sent == [[]] * len(gates) and {*map(type, sent)} == {list}
            copy = code.replace(co_consts=tuple([] if isinstance(c, Gate) else c for c in code.co_consts))
            before = sum(unit.counts.hits for unit in interceptor.body.units.values())
            types.FunctionType(copy, scope)()
            assert sum(unit.counts.hits for unit in interceptor.body.units.values()) == before > 0
        finally:
            _C.intercept(None)
            close()
    assert "5" in printed.getvalue()


def test_under_a_tracer_the_loop_runs_by_itself() -> None:
    traced = in_function(BODIES["break"]) + """
lines = set()
def trace(frame, event, arg):
    if frame.f_code.co_name == 'main' and event == 'line':
        lines.add(frame.f_lineno)
    return trace
sys.settrace(trace)
main()
sys.settrace(None)
print(sorted(lines))
"""
    check(traced)


@pytest.mark.parametrize("seed", range(12))
def test_generated_loops(seed: int) -> None:
    """`python -m tests.api.generated_loops` runs more of them."""
    generated_loops.compare(seed)


LOOKS_AROUND = """
import inspect, logging, sys, traceback, warnings
import torch
from torch import nn
logging.basicConfig(format="%(funcName)s:%(lineno)d %(message)s", stream=sys.stdout)
torch.manual_seed(0)

def look(i):
    print([(f.f_code.co_name, f.f_lineno) for f, _ in traceback.walk_stack(sys._getframe(1))][:1], inspect.stack()[1].code_context)
    warnings.warn(f"round {i}", stacklevel=2)
    warnings.warn(f"round {i} of main", stacklevel=3)
    logging.error("round %d", i)

def main(net, opt):
    for i in range(8):
        opt.zero_grad()
        loss = net(torch.ones(2, 3)).sum()
        loss.backward()
        opt.step()
        look(i)
    print(inspect.getsource(main).count("\\n"), main.__code__.co_firstlineno)

if __name__ == "__main__":
    net = nn.Linear(3, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    main(net, opt)
    for i in range(8):
        opt.zero_grad()
        loss = net(torch.ones(2, 3)).sum()
        loss.backward()
        opt.step()
        if i == 6:
            raise RuntimeError("at the end")
"""


@pytest.mark.parametrize("first", ["", "import sys; sys.exit = None\n"], ids=["function", "module"])
def test_callers_and_tracebacks_are_the_same(tmp_path: Path, first: str) -> None:
    text = LOOKS_AROUND.replace("    main(net, opt)\n", "") if first else LOOKS_AROUND
    plain = scripts.check(scripts.files(tmp_path, train=first + text), fork=True)
    assert plain.returncode == 1 and "at the end" in plain.stderr


def test_a_loop_in_a_module_of_the_program(tmp_path: Path) -> None:
    report = tmp_path / "report.txt"
    body = in_function(BODIES["break"]).removesuffix("main()\nprint(weights())")
    engine = "import torch\n" + body.replace("main()", "train(data, opt, fit, weights)")
    script = scripts.files(tmp_path, train=SETTING + "import engine\nengine.train(data, opt, fit, weights)\n", engine=engine)
    scripts.check_forked(script, ("--report", str(report)))
    assert "training step: the body of the loop at engine.py:3 is compiled as a whole" in report.read_text()


def test_an_interrupt_finds_the_variables() -> None:
    """On a hit the program's code does not run, so that nothing says how far the round has come. (The interrupt comes again: one in
    the callback of a weak reference, which the garbage collector calls, is lost in Python.)"""
    check("""
import os, signal
class Stop(Exception): pass
def stop(*_): raise Stop
signal.signal(signal.SIGALRM, stop)
def main(net, opt):
    best, seen = 0.0, []
    try:
        for i in range(10 ** 9):
            opt.zero_grad(); loss = fit(*data[0]); loss.backward(); opt.step()
            best = max(best, i)
            if i == 20: signal.setitimer(signal.ITIMER_REAL, 0.05, 0.5)
    except Stop:
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(i >= 20, best <= i, type(opt).__name__, seen, callable(net))
    print(i > 0)
main(net, opt)
# what the weights are depends on when it comes
for p in net.parameters(): p.data.zero_()
del p
""")


def test_a_loop_with_too_many_variables() -> None:
    names = [f"v{i}" for i in range(70)]
    lines = "".join(f"        {name} = i\n" for name in names)
    loop = f"    for i, (x, y) in enumerate(data):\n        {STEP}\n{lines}"
    interceptor = check(f"def main():\n{loop}    print({', '.join(names)})\nmain()", compiled=False)
    assert interceptor.remarks()[0].endswith("it uses 74 variables, and 60 are the most (script.py:15)")


def test_loops_in_threads() -> None:
    check("""
import threading
def main(k):
    total = 0
    for i in range(12):
        opt.zero_grad(); loss = fit(*data[k]); loss.backward(); opt.step()
        total += i
    seen.append(total)
seen = []
main(0)
threads = [threading.Thread(target=main, args=(k,)) for k in range(2)]
for k in range(2): main(k)
for thread in threads:
    thread.start()
    thread.join()
del thread, threads
print(seen, weights())
""")


def test_with_kernels() -> None:
    script = """
losses = []
for epoch in range(40):
    for x, y in data:
        opt.zero_grad(); loss = fit(x, y); loss.backward(); opt.step()
        losses.append(loss.item())
    if epoch == 20: wait()
print(round(losses[-1], 3))
"""

    interceptor = Interceptor(backend="native")
    plain = outcome("def wait(): pass\n" + script)
    ours = outcome("from capture import wait\n" + script, interceptor)
    assert ours[0] == plain[0] and ours[1] == plain[1] == ""
    assert interceptor.body is not None and capture.wait()
    (unit,) = interceptor.body.units.values()
    assert "1 kernel" in str(report_of([unit])) or "kernels" in str(report_of([unit]))
    assert unit.counts.hits > 300


EPOCHS = """
for epoch in range(EPOCHS):
    for x, y in data:
        if y is None: print(last)
        STEP
        last = x
    del last
"""


@pytest.mark.parametrize(("often", "epochs", "variants"), [(1, 3, 2), (3, 3, 1), (3, 5, 2)])
def test_rounds_that_begin_a_loop_anew_are_compiled_once_they_are_many(monkeypatch, often, epochs, variants) -> None:
    """The first round of an epoch finds a variable unbound: another variant of the body."""
    monkeypatch.setattr(loop_bodies, "OFTEN", often)
    interceptor = check(in_function(EPOCHS.strip().replace("EPOCHS", str(epochs)).replace("STEP", STEP)))
    assert interceptor.body is not None and len(interceptor.body.units) == variants
