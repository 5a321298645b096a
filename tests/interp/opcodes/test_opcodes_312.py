"""The syntax that is new in Python 3.12."""
from __future__ import annotations

import sys
import textwrap

import pytest

from tests.interp.worlds import checked_stack, interpreted, natively, observe, tracked

SOURCE = textwrap.dedent("""
    def generic_functions(log):
        def first[T](items: list[T]) -> T:
            return items[0]

        def bounded[T: (int, str), *Ts, **P, U: int](x: T) -> U:
            return x
        log.append((first([1]), bounded(2), [str(p) for p in bounded.__type_params__], str(first.__annotations__)))
        log.append((bounded.__type_params__[0].__constraints__, bounded.__type_params__[3].__bound__))

    def generic_classes(log):
        class Box[T]:
            kind = T

            def __init__(self, item: T):
                self.item = item

            def get[U](self, other: U) -> T | U:
                return self.item or other
        box = Box[int](5)
        log.append((box.item, box.get(6), Box.__type_params__ == (Box.kind,), [str(b) for b in Box.__orig_bases__]))

        class Sub(Box[str]):
            def get(self, other):
                return super().get(other)
        log.append(Sub(None).get("other"))

    def aliases(log):
        type Pair = tuple[int, str]
        type Lazy = undefined_yet
        log.append((str(Pair), Pair.__value__))
        try:
            Lazy.__value__
        except NameError as error:
            log.append(str(error))

    def inlined_comprehensions(log):
        x = "kept"
        log.append([x for x in range(3)] + [[x, y] for x in range(2) for y in [x]])
        log.append(x)
        try:
            [1 / x for x in (1, 0)]
        except ZeroDivisionError:
            log.append(x)

        class C:
            y = 2
            z = [y for y in range(3)]
        log.append((C.y, C.z, locals().keys() & {"x", "y"}))

    def fstrings(log):
        words = ["a", "b"]
        log.append(f"{", ".join(f"{w!r:>{4}}" for w in words)}")

""")
NAMES = ("generic_functions", "generic_classes", "aliases", "inlined_comprehensions", "fstrings")


@pytest.mark.skipif(sys.version_info < (3, 12), reason="syntax of Python 3.12")
@pytest.mark.parametrize("run", [interpreted, tracked])
@pytest.mark.parametrize("name", NAMES)
def test_program(name, run):
    namespace = {"__name__": __name__}
    exec(compile(SOURCE, "<programs of 3.12>", "exec", dont_inherit=True), namespace)
    with checked_stack():
        assert observe(run, namespace[name]) == observe(natively, namespace[name])
