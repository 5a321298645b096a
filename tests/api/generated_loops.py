"""Random scripts with a loop that makes training steps and does other things as well, beside plain Python.

    python -m tests.api.generated_loops [first seed] [how many]
"""
from __future__ import annotations

import random
import re
import sys

from tests.api.step_loop_scripts import STEP

NAMES = "abcdef"


class Writer:
    """Writes one script."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.depth = 0

    def script(self) -> str:
        """A script whose loop is its own, or a function's."""
        self.in_function = self.random.random() < 0.6
        bound = self.random.sample(NAMES, self.random.randint(0, 4))
        lines = [f"{name} = {self.random.randint(0, 4)}" for name in bound]
        loop = self.loop()
        if self.random.random() < 0.3:
            kind, at_last = self.random.choice(["KeyError", "Exception", "NameError"]), self.random.random() < 0.5
            loop = ["try:", *indented(loop), f"except {kind} as e:", "    print('outside', type(e).__name__, e)",
                    *(["finally:", "    print('at last')"] if at_last else [])]
        elif self.random.random() < 0.2:
            loop = ["for epoch in range(2):", *indented(loop)]
        lines += [*loop, "print('after')", *(f"print({name!r}, {name})" for name in self.random.sample(NAMES, 2))]
        if not self.in_function:
            return "\n".join(lines)
        shared = [name for name in bound if self.random.random() < 0.3]
        inner = [f"def peek(): return [{', '.join(shared)}]"] if shared else []
        return "\n".join(["def main():", *indented(inner + lines), "    return 'end'", "print(main())"])

    def loop(self) -> list[str]:
        head, first = self.random.choice([
            ("for i, (x, y) in enumerate(data):", []), ("for i in range(len(data)):", ["x, y = data[i]"]),
            ("for x, y in data:", []), ("while a < 9:", ["a += 1", "x, y = data[a % 8]"]),
            ("while True:", ["a += 1", "x, y = data[a % 8]", "if a > 8: break"])])
        body = [*first, STEP]
        for _ in range(self.random.randint(1, 5)):
            part = self.statement()
            body = body + part if self.random.random() < 0.7 or first else part + body
        return [*(["a = 0"] if head.startswith("while") else ["i = 0"]), head, *indented(body),
                *(["else:", "    print('else')"] if self.random.random() < 0.2 else [])]

    def name(self) -> str:
        return self.random.choice(NAMES[1:])

    def condition(self) -> str:
        return self.random.choice(["len(seen) % 3 == 1", "len(seen) > 5", "len(seen) == 4", "'c' in seen", "x is not None"])

    def block(self) -> list[str]:
        self.depth += 1
        lines = [line for _ in range(self.random.randint(1, 2)) for line in self.statement()]
        self.depth -= 1
        return indented(lines)

    def statement(self) -> list[str]:
        kinds = [self.assign, self.show, self.delete, self.raising, self.leave, self.comprehension, self.define, self.augment]
        if self.depth < 3:
            kinds += [self.branch, self.handle, self.handle, self.within, self.inner, self.at_last]
        return self.random.choice(kinds)()

    def assign(self) -> list[str]:
        value = self.random.choice(
            ["len(seen)", "loss.item() > 0", "[len(seen)]", "x.shape[0]", "(len(seen), 'c')", self.name(), "y.sum()"])
        return [f"{self.name()} = {value}"]

    def augment(self) -> list[str]:
        return [f"seen.append({self.random.choice(['1', repr('c'), 'len(seen)'])})"]

    def show(self) -> list[str]:
        return [f"print({self.random.choice([self.name(), 'len(seen)', 'weights()'])})"]

    def delete(self) -> list[str]:
        return [f"if {self.condition()}: del {self.name()}"]

    def raising(self) -> list[str]:
        error = self.random.choice(["KeyError(len(seen))", "ValueError", "RuntimeError(str(seen))"])
        return [f"if {self.condition()}: raise {error}"]

    def leave(self) -> list[str]:
        returns = ["return 7", "return len(seen)", "return"] if self.in_function else []
        return [f"if {self.condition()}: {self.random.choice(['continue', 'break', *returns])}"]

    def comprehension(self) -> list[str]:
        value = self.random.choice(["[j + len(seen) for j in range(2)]", "{j: 1 for j in seen[:2]}", "sum(j for j in (1, 2))"])
        return [f"{self.name()} = {value}"]

    def define(self) -> list[str]:
        return self.random.choice([[f"{self.name()} = lambda n=len(seen): n"], ["def f(n): return n + 1", "print(f(len(seen)))"]])

    def branch(self) -> list[str]:
        return [f"if {self.condition()}:", *self.block(), *(["else:", *self.block()] if self.random.random() < 0.5 else [])]

    def handle(self) -> list[str]:
        kind = self.random.choice(["KeyError", "Exception", "(ValueError, NameError)"])
        return ["try:", *self.block(), f"except {kind} as {self.name()}:", "    print('caught')", *self.block(),
                *(["else:", *self.block()] if self.random.random() < 0.3 else [])]

    def at_last(self) -> list[str]:
        return ["try:", *self.block(), "finally:", "    print('finally')"]

    def within(self) -> list[str]:
        context = self.random.choice(["torch.no_grad()", "Context(len(seen))", "Context(1)"])
        return [f"with {context} as {self.name()}:", *self.block()]

    def inner(self) -> list[str]:
        return [f"for {self.name()} in {self.random.choice(['range(3)', 'seen[:2]', '(1, 2)'])}:", *self.block()]


def indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


BEFORE = """
seen = []
class Context:
    def __init__(self, n): self.n = n
    def __enter__(self): print('in', self.n); return self.n
    def __exit__(self, kind, error, trace): print('out', kind); return kind is KeyError
    def __repr__(self): return 'Context'
"""


def compare(seed: int) -> bool:
    """Runs one script both ways. Whether rounds of its loop were calls of a compiled function."""
    from capture.interceptor import Interceptor
    from tests.api.test_step_loops import outcome
    script = BEFORE + Writer(seed).script()
    interceptor = Interceptor(backend="eager")
    plain, ours = (tuple(map(same_error, each)) for each in (outcome(script), outcome(script, interceptor)))
    assert ours == plain, f"seed {seed}:\n{script}\n{first_difference(plain, ours)}"
    return interceptor.body is not None and any(unit.captures for unit in interceptor.body.units.values())


def same_error(said: object) -> object:
    """The same for both kinds of errors of unbound variables: one that inner functions share raises the other kind (limits.md)."""
    if not isinstance(said, str):
        return said
    return re.sub(r"\w+Error: cannot access (free|local) variable ('\w') .*", r"unbound \2", said)


def first_difference(plain: tuple[object, ...], ours: tuple[object, ...]) -> str:
    return next(f"plain: {a}\nours:  {b}" for a, b in zip(plain, ours) if a != b)


def main() -> None:
    first, count = (int(text) for text in [*sys.argv[1:], "0", "100"][:2])
    compiled = failed = 0
    for seed in range(first, first + count):
        try:
            compiled += compare(seed)
        except AssertionError as error:
            failed += 1
            print(error, flush=True)
    print(f"{count} scripts, {compiled} with a compiled loop, {failed} different")


if __name__ == "__main__":
    main()
