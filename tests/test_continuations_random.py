"""Random programs of loops, handlers, `with` blocks, functions and cells, cut at random places."""
from __future__ import annotations

import random
import sys

import pytest
import torch

import capture
from tests.cuts import X, compared, outside, raises
from tests.helpers import call

PROGRAMS = 16
DEEPEST = 3


class Manager:
    """Notes how it is left; suppresses LookupErrors, by way of a call outside."""

    def __init__(self, log, suppresses):
        self.log, self.suppresses = log, suppresses

    def __enter__(self):
        self.log.append("enter")
        return len(self.log)

    def __exit__(self, cls, error, traceback):
        self.log.append(cls and cls.__name__)
        return outside(cls is not None and issubclass(cls, LookupError)) if self.suppresses else False


class Writer:
    """Writes the text of one random program, `program(x)`."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.functions = self.loops = 0

    def program(self) -> str:
        self.lines = ["def program(x):", "    a, b, n, log = x * 2, x + 1, 0, []"]
        for _ in range(3):
            self.emit(1, "try:")
            self.block(2, 1, False)
            self.emit(1, "except Exception as error:")
            self.emit(2, "log.extend([repr(error), repr(error.__context__)])")
        self.emit(1, "return a, b, n, log")
        return "\n".join(self.lines)

    def emit(self, indent: int, text: str) -> None:
        self.lines.append("    " * indent + text)

    def block(self, indent: int, depth: int, in_loop: bool) -> None:
        for _ in range(self.random.randint(1, 3)):
            self.statement(indent, depth, in_loop)

    def statement(self, indent: int, depth: int, in_loop: bool) -> None:
        simple = [self.assignment, self.assignment, self.cut, self.cut]
        if in_loop:
            simple.append(self.jump)
        compound = [self.condition, self.loop, self.handlers, self.handlers, self.manager, self.function]
        choice = self.random.choice(simple if depth >= DEEPEST or self.random.random() < 0.5 else compound)
        choice(indent, depth, in_loop)

    def expression(self) -> str:
        return self.random.choice(["a + 1", "b * 2", "a - b", "torch.tanh(a)", "outside(b) + n", "a if outside(n) % 2 else b",
                                   "outside(a, b)", "[outside(t) for t in (a, b)][n % 2]", "(lambda t: outside(t) * 2)(b)"])

    def assignment(self, indent: int, depth: int, in_loop: bool) -> None:
        self.emit(indent, self.random.choice([
            f"a = {self.expression()}", f"b = {self.expression()}", "n += 1", "a.add_(1)", "log.append(n)", "n = outside(n) + 1",
            "a, b = b, a", "log.append(outside(len(log)))"]))

    def cut(self, indent: int, depth: int, in_loop: bool) -> None:
        self.emit(indent, self.random.choice([
            "outside(None, a)", "log.append(repr(sys.exception()))", f"raises({self.error()})", f"if n % 3 == 1: raises({self.error()})",
            f"if n % 3 == 2: raise {self.error()}('own')", "assert outside(n) != 4", "outside(n)"]))

    def jump(self, indent: int, depth: int, in_loop: bool) -> None:
        self.emit(indent, self.random.choice(["if n % 2: continue", "if n > 4: break", "if outside(n) == 3: break"]))

    def error(self) -> str:
        return self.random.choice(["KeyError", "IndexError", "ValueError", "RuntimeError"])

    def condition(self, indent: int, depth: int, in_loop: bool) -> None:
        self.emit(indent, f"if {self.random.choice(['n % 2', 'outside(n) > 1', 'a.sum() > 0', 'not outside(log)', 'n and outside(n)'])}:")
        self.block(indent + 1, depth + 1, in_loop)
        if self.random.random() < 0.5:
            self.emit(indent, "else:")
            self.block(indent + 1, depth + 1, in_loop)

    def loop(self, indent: int, depth: int, in_loop: bool) -> None:
        self.loops += 1
        i = f"i{self.loops}"
        over = self.random.choice(["range(2)", "[a, b]", "enumerate((a, b))", "zip('ab', [1, 2])", "{'k': 1, 'l': 2}.items()", "outside([1, 2])"])
        if self.random.random() < 0.2:
            self.emit(indent, f"{i} = 0")
            self.emit(indent, f"while outside({i}) < 2:")
            self.emit(indent + 1, f"{i} += 1")
        else:
            self.emit(indent, f"for {i} in {over}:")
        self.block(indent + 1, depth + 1, True)
        if self.random.random() < 0.3:
            self.emit(indent, "else:")
            self.block(indent + 1, depth + 1, in_loop)

    def handlers(self, indent: int, depth: int, in_loop: bool) -> None:
        self.emit(indent, "try:")
        self.block(indent + 1, depth + 1, in_loop)
        kinds = self.random.sample(["KeyError", "LookupError", "(ValueError, RuntimeError)", "Exception"], self.random.randint(0, 2))
        for kind in kinds:
            self.emit(indent, f"except {kind} as error:")
            self.emit(indent + 1, self.random.choice([
                "log.append(str(error))", "log.append(repr(error.__context__))", "raise", "raise TypeError('new') from error", "n += 1"]))
            self.block(indent + 1, depth + 1, in_loop)
        if kinds and self.random.random() < 0.3:
            self.emit(indent, "else:")
            self.block(indent + 1, depth + 1, in_loop)
        if not kinds or self.random.random() < 0.4:
            self.emit(indent, "finally:")
            self.block(indent + 1, depth + 1, in_loop)

    def manager(self, indent: int, depth: int, in_loop: bool) -> None:
        self.emit(indent, "with " + self.random.choice([
            "torch.no_grad():", "Manager(log, False) as n:", "Manager(log, True):", "Manager(log, True), torch.no_grad():"]))
        self.block(indent + 1, depth + 1, in_loop)

    def function(self, indent: int, depth: int, in_loop: bool) -> None:
        self.functions += 1
        name = f"f{self.functions}"
        self.emit(indent, f"def {name}(a, b=b):")
        self.emit(indent + 1, "nonlocal n")
        self.block(indent + 1, depth + 1, False)
        self.emit(indent + 1, "return a")
        self.emit(indent, f"a = {name}(a)")


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_a_random_program(seed: int, tmp_path) -> None:
    text = Writer(seed).program()
    path = tmp_path / f"program{seed}.py"
    path.write_text(text)
    scope = {"torch": torch, "outside": outside, "raises": raises, "Manager": Manager, "sys": sys}
    exec(compile(text, str(path), "exec"), scope)
    try:
        with capture.config.RECAPTURE_LIMIT.set(64):
            compared(scope["program"], call(X), call(X), call(X * 2), call(-X), captures=None)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{text}") from None
