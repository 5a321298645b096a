"""Functions of the library in C that call what the program has written: encoders, formatters, sums of generators; and what they
take: groups of exceptions, namespaces, members of enumerations."""
from __future__ import annotations

import copy
import dataclasses
import json
import math
import statistics
import string
from enum import IntEnum, IntFlag
from types import SimpleNamespace

import torch

from tests.programs import Programs

X = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])
programs = Programs()


@dataclasses.dataclass
class Point:
    a: int
    b: list


class Encoder(json.JSONEncoder):
    def default(self, o):
        return dataclasses.asdict(o) if dataclasses.is_dataclass(o) else super().default(o)


@programs.make(X, change=lambda state: setattr(state.point, "a", 2), captures=2)
def json_of_objects():
    state = SimpleNamespace(point=Point(1, [2.5, None, True, float("inf")]), seen=[])

    def default(o):
        state.seen.append(type(o).__name__)
        return {"a": o.a}

    def program(x):
        text = json.dumps({"é": 'a"b', 1: state.point, None: {2.5: ()}, False: []}, cls=Encoder)
        short = json.dumps([state.point, state.point], default=default, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        state.seen.clear()
        failures = []
        for value, options in ((object(), {}), (float("nan"), {"allow_nan": False}), ({(1, 2): 3}, {})):
            try:
                json.dumps(value, cls=Encoder, **options)
            except (TypeError, ValueError) as error:
                failures.append((type(error).__name__, str(error)))
        return x * len(json.loads(text)), text, short, failures, Encoder(indent=1).encode(state.point), json.dumps({(1,): 1, 2: 3},
            skipkeys=True, cls=Encoder)
    return program, state


@programs.add(X)
def json_of_what_a_tensor_holds(x):
    return json.dumps({"loss": x.sum().item(), "shape": list(x.shape)}, cls=Encoder), x + 1


class Marking(string.Formatter):
    def get_value(self, key, args, kwargs):
        return kwargs.get(key, f"<{key}>") if isinstance(key, str) else args[key]

    def format_field(self, value, spec):
        return "!" if spec == "mark" else super().format_field(value, spec)


@programs.add(X, "{0} {q} {0:>3} {1!r} {1.real} {2[0]} {{}} {q:mark} {0:{1}}")
def formatters(x, text):
    return Marking().format(text, 5, 2, [7]), string.Formatter().vformat("{a} {}", (1,), {"a": x.shape[0]}), x


@programs.add(X)
def groups_of_exceptions(x):
    group = ExceptionGroup("several", [ValueError(1), TypeError("t"), ExceptionGroup("inner", [KeyError("k")])])
    seen = []
    try:
        raise group
    except* ValueError as error:
        seen.append((str(error), error.message, f"{error}", len(error.exceptions)))
    except* (TypeError, KeyError) as error:
        seen.append((str(error), error.message))
    return x + 1, seen, str(group), f"{group}", BaseExceptionGroup.__str__(group)


@programs.add(X)
def copies_of_namespaces(x):
    inner = SimpleNamespace(c=2, t=x)
    made = SimpleNamespace(a=[1, inner], b=inner)
    deep, flat = copy.deepcopy(made), copy.copy(made)
    return deep, deep.a[1] is deep.b, flat.a is made.a, flat, made.__reduce__()[2] is made.__dict__


@programs.add(X)
def sums_of_generators(x):
    line = statistics.linear_regression([1, 2, 3], [2, 4, 6])
    related = statistics.correlation([1, 2], [2, 5])
    return math.fsum(v * 2 for v in (0.1, 0.2)), math.fsum(map(float, [1, 2])), x * line.slope, related


@programs.add(X)
def sums_that_keep_what_rounding_takes_off(x):
    tenths = [0.1] * 10
    of_lists = math.sumprod(iter(tenths), (v for v in tenths)) if hasattr(math, "sumprod") else 0.0
    return (sum(v for v in tenths), sum((v for v in tenths), 0.25), sum((v for v in [1, 2, 0.1, 0.2, True, 0.3]), 1), sum([0.1, 0.2,
            0.3, x, 0.1]), sum(t.item() / 3 for t in x[0]), sum(v for v in [0.1, 10 ** 30, 0.2]), of_lists)


@programs.add(X)
def enumerations_made_inside(x):
    class Axis(IntEnum):
        ROW, COLUMN = 0, 1

    class Bits(IntFlag):
        A, B = 1, 2
    turned = x.transpose(Axis.ROW, Axis.COLUMN)
    return x * Axis.COLUMN, x[Axis.COLUMN], x.sum(Axis.ROW), x * (Bits.A | Bits.B), turned, repr(Axis.ROW)


test_library = programs.test()
