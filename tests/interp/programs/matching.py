"""Programs: match."""
from __future__ import annotations

import sys
from collections import OrderedDict

from tests.interp.programs.base import Point, program


@program
def matching(log):
    def f(x):
        match x:
            case 0 | 1:
                return "small"
            case -1.5 | "s" | None | True:
                return "literal"
            case [1, 2, *rest]:
                return ("list", rest)
            case (a, [b, c]) if a == b:
                return ("nested", a, b, c)
            case [_]:
                return "one"
            case {"k": v, "l": [w]}:
                return ("kl", v, w)
            case {"k": v, **rest}:
                return ("k", v, rest)
            case Point(x=0, y=y):
                return ("on axis", y)
            case Point(a, b):
                return ("point", a, b)
            case str() as s:
                return ("str", s)
            case int(n) if n > 10:
                return ("int", n)
            case bytes(b) | bytearray(b):
                return ("bytes", b)
            case Named.value:
                return "named"
            case _:
                return "other"

    class Named:
        value = 7
    for x in (0, 1, -1.5, "s", None, True, [1, 2, 3, 4], (1, [1, 3]), (1, [2, 3]), [5], {"k": 1, "l": [2]}, {"k": 1, "m": 2},
              Point(0, 5), Point(1, 2), "text", 11, 9, b"b", bytearray(b"c"), 7, {}, (), range(1), OrderedDict(k=3)):
        log.append(f(x))


@program
def handled_behind_builtins(log):
    """What the program runs after a builtin failed does not see an exception of the interpreter's."""
    class C:
        __match_args__ = ("a", "b")
        a = 1

        @property
        def b(self):
            log.append(repr(sys.exception()))
            raise AttributeError("b")

        def __getattr__(self, name):
            log.append((name, repr(sys.exception())))
            raise AttributeError(name)
    c = C()
    log.append(getattr(c, "b", None))
    match c:
        case C(x, y):
            log.append("no")
        case C(a=1, z=_):
            log.append("no")
        case C(x):
            log.append(x)
    log.append(next(iter(()), "default"))

    def delegating():
        yield from iter([1, 2])
    g = delegating()
    next(g)
    try:
        g.throw(KeyError("k"))
    except KeyError as error:
        log.append(repr(error.__context__))
    try:
        from types import nothing_at_all
    except ImportError as error:
        log.append(repr(error.__context__))
    c.missing


@program
def bad_matching(log):
    class NoArgs:
        pass

    class BadArgs:
        __match_args__ = ["x"]

    class OddArgs:
        __match_args__ = (5,)

    class Twice:
        __match_args__ = ("x",)
        x = 1

    def attempt(f, x):
        try:
            log.append(f(x))
        except (TypeError, ValueError) as error:
            log.append((type(error).__name__, str(error)))

    def no_args(x):
        match x:
            case NoArgs(a):
                return a

    def bad_args(x):
        match x:
            case BadArgs(a):
                return a

    def odd_args(x):
        match x:
            case OddArgs(a):
                return a

    def twice(x):
        match x:
            case Twice(a, x=b):
                return a, b

    def too_many(x):
        match x:
            case Point(a, b, c):
                return a, b, c

    def self_twice(x):
        match x:
            case int(a, b):
                return a, b

    def not_class(x):
        cls = 5
        match x:
            case cls():
                return 1

    def duplicate(x):
        class K:
            a, b = "k", "k"
        match x:
            case {K.a: 1, K.b: 2}:
                return 1
    attempt(no_args, NoArgs())
    attempt(bad_args, BadArgs())
    attempt(odd_args, OddArgs())
    attempt(twice, Twice())
    attempt(too_many, Point(1, 2))
    attempt(self_twice, 1)
    attempt(not_class, 1)
    attempt(duplicate, {"k": 1, "l": 2})

    class Missing:
        __match_args__ = ("nope",)

    def missing(x):
        match x:
            case Missing(a):
                return a
            case Missing(also=b):
                return b
        return "no match"
    attempt(missing, Missing())
