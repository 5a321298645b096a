"""The standard library on plain data beside tensors, in one graph."""
from __future__ import annotations

import abc
import base64
import bisect
import cmath
import collections.abc
import copy
import datetime
import decimal
import hashlib
import importlib.util
import inspect
import json
import math
import numbers
import os.path
import pathlib
import pprint
import re
import statistics
import string
import struct
import textwrap
import typing
import uuid
import warnings
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace

import torch

import capture
from tests.programs import Programs

X = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])
programs = Programs()


@programs.make(X, change=lambda state: setattr(state, "text", '{"scale": 5, "sizes": []}'), captures=2)
def reading_json():
    state = SimpleNamespace(text='{"scale": 2.5, "sizes": [1, {"a": null}], "on": true}')

    def program(x):
        config = json.loads(state.text)
        config["sizes"].append(3)
        return x * config["scale"], config, config.get("on")
    return program, state


@programs.add(X, {"b": [1, 2.5, None], "a": "text"})
def writing_json(x, data):
    text = json.dumps(data, sort_keys=True)
    return x, text, len(text), json.loads(json.dumps({"a": [1]}))["a"][0], json.dumps([1, "ä"], ensure_ascii=False, indent=1)


@programs.make(X, change=lambda state: setattr(state, "name", "layer10.bias"), captures=2)
def regular_expressions():
    pattern, state = re.compile(r"layer(\d+)\.(?P<kind>\w+)"), SimpleNamespace(name="layer3.weight")

    def program(x):
        m = pattern.match(state.name)
        return x * int(m.group(1)), m["kind"], m.groups(), m.groupdict(), m.span(), bool(pattern.search("none")), m.re is pattern
    return program, state


@programs.add(X, "a1 b22 c333")
def functions_of_regular_expressions(x, text):
    return (x * len(re.findall(r"\d+", text)), re.sub(r"\d", "#", text), re.split(r"\s", text),
            [m.group() for m in re.finditer(r"[a-z]\d", text)],
            re.sub(r"\d+", lambda m: str(int(m[0]) + 1), text), re.fullmatch("a.*", text) is not None, re.match("z",
                text), re.escape("a.b"),
            re.compile("B", re.IGNORECASE).search(text).start(), re.subn("a", "b", text))


@programs.make(X, change=lambda state: state.insert(0, 0.5), captures=2)
def bisection():
    edges = [1.0, 2.0, 5.0]

    def program(x):
        made = [1, 3]
        bisect.insort(made, 2)
        keyed = bisect.bisect([(1, x), (3, x)], 2, key=lambda p: p[0])
        return x * bisect.bisect_left(edges, 2.0), bisect.bisect(edges, 9.0), made, keyed, bisect.bisect_right(edges, 2.0, 0, 2)
    return program, edges


@programs.make(X, change=lambda state: setattr(state, "price", Decimal("3.50")), captures=2)
def decimals():
    state = SimpleNamespace(price=Decimal("1.10"))

    def program(x):
        total = state.price * 3 + Decimal("0.05")
        return (x * float(total), total, str(total), total.quantize(Decimal("0.1")), total > 2, Decimal(1) / Decimal(3), int(total),
                -total,
                Decimal("2").sqrt(), sum([Decimal(1), Decimal(2)]), max(Decimal(1), Decimal(2)), f"{total:.1f}", round(total,
                    1), hash(Decimal(2)) == hash(2))
    return program, state


@programs.make(X, change=lambda state: setattr(state, "ratio", Fraction(5, 7)), captures=2)
def fractions_of_numbers():
    state = SimpleNamespace(ratio=Fraction(1, 3))

    def program(x):
        total = state.ratio + Fraction(1, 6)
        return (x * float(total), total, total.numerator, str(total), total * 2 == 1, Fraction("0.25"), Fraction(2.5), total < 1,
                Fraction(3, 6),
                round(Fraction(7, 2)), math.floor(Fraction(7, 2)), Fraction(1, 3).limit_denominator(2))
    return program, state


@programs.make(X, change=lambda state: setattr(state, "start", datetime.datetime(2024, 5, 6)), captures=2)
def dates_and_times():
    state = SimpleNamespace(start=datetime.datetime(2024, 1, 2, 3, 4, 5))

    def program(x):
        end = state.start + datetime.timedelta(days=1, hours=2)
        day = datetime.date(2024, 2, 28)
        return (x * (end - state.start).total_seconds(), end, end.isoformat(), end.year, end > state.start,
                end.strftime("%Y-%m-%d"), day.weekday(),
                day + datetime.timedelta(1), datetime.datetime.strptime("2020-01-01", "%Y-%m-%d").month, end.replace(hour=0).time(),
                datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC).isoformat(), datetime.date.fromisoformat("2020-03-01"),
                datetime.timedelta(minutes=90) / 2, {day: 1}[day])
    return program, state


@programs.make(X, change=lambda state: setattr(state, "key", uuid.UUID(int=7)), captures=2)
def uuids():
    state = SimpleNamespace(key=uuid.UUID("12345678123456781234567812345678"))
    return (lambda x: (x, str(state.key), state.key.hex, uuid.UUID(int=5).int, state.key == uuid.UUID(int=7),
            uuid.uuid5(uuid.NAMESPACE_DNS, "a").hex), state)


@programs.add(X, 3, 2.5)
def packing(x, n, f):
    data = struct.pack("<if", n, f)
    a, b = struct.unpack("<if", data)
    return (x * a, b, data, struct.calcsize("<if"), struct.Struct("<h").pack(n), struct.Struct(">h").unpack(b"\1\2")[0],
            list(struct.iter_unpack("<h", b"\1\0\2\0")))


@programs.add(X, 1000, b"\x01\x02")
def integers_and_bytes(x, n, data):
    return (x * int.from_bytes(data, "little"), n.to_bytes(2, "big"), data.hex(), bytes.fromhex("00ff"), data + b"!",
            data.decode("latin-1"), data[0],
            b"a,b".split(b","), b"x".join([b"1", b"2"]), bytes(3), bytes([1,
                2]), data.startswith(b"\x01"), n.bit_length(), (255).bit_count(), list(data),
            int("ff", 16), n.as_integer_ratio(), bin(5), base64.b64encode(data), hashlib.sha256(data).hexdigest(), b"%d" % n)


@programs.add(X, "Hello, World")
def strings(x, s):
    return (x * len(s), s.casefold(), s.removeprefix("Hello"), s.rpartition(","), s.splitlines(),
            s.translate(str.maketrans("lo", "01")), s.swapcase(), s.format(), "{0:>5}|{k!r}".format(1, k="v"), f"{12345:,}",
            f"{s[:5]:*^9}", "%05.1f" % 2.25, s.encode("utf-8"), s.count("l"), s.index("W"), s.isascii(), "a\tb".expandtabs(4),
            ",".join(map(str, range(3))), s.endswith(("x", "d")), string.Template("$a b").substitute(a=1),
            string.ascii_lowercase[:3], textwrap.dedent("  a\n  b"), textwrap.shorten("a b c d", 5, placeholder=""), "a" "b", s * 2,
            s[::-1], f"{[7][0]} {(3).real}", "x".zfill(3), repr("q'"), ascii("ä"), s.title().split(), min(s), sorted(set(s))[0])


@programs.make(X, change=lambda state: setattr(state, "z", 3 + 1j), captures=2)
def complex_numbers():
    state = SimpleNamespace(z=1 + 2j)

    def program(x):
        z = state.z * 1j
        return x * z, z.conjugate(), abs(3 + 4j), z.real, complex("1+2j"), z == -2 + 1j, (x * 1j).abs(), complex(1, 2) ** 2
    return program, state


@programs.add(X, [1, 2, 3])
def numbers_and_statistics(x, items):
    return (x * statistics.mean(items), statistics.median(items), math.comb(5, 2), math.hypot(3, 4), isinstance(3,
            numbers.Integral),
            isinstance(2.5, numbers.Number), math.copysign(1,
                -0.0), math.isnan(math.nan), math.fsum([0.1] * 3), sum(items) / len(items), divmod(7, 2),
            round(2.675,
                2), 7 // -2, float("1e3"), float("inf") > 1, (2.5).hex(), (0.5).as_integer_ratio(), math.ulp(1.0), math.perm(4, 2))


# --- types

class Sized(typing.Protocol):
    def size(self) -> int: ...


@typing.runtime_checkable
class Runs(typing.Protocol):
    def run(self): ...


class Runner:
    def run(self):
        return 2


class Abstract(abc.ABC):
    @abc.abstractmethod
    def f(self): ...


@Abstract.register
class Registered:
    pass


class HooksIn(abc.ABC):
    @classmethod
    def __subclasshook__(cls, other):
        return hasattr(other, "run") or NotImplemented


@programs.add(X)
def checks_of_types(x):
    return (x, isinstance([], collections.abc.Sequence), isinstance({}, collections.abc.Mapping), isinstance(iter([]),
            collections.abc.Iterator),
            isinstance(x, collections.abc.Hashable), isinstance(len, collections.abc.Callable), isinstance(Registered(), Abstract),
            issubclass(Runner, HooksIn), isinstance(Runner(), Runs), isinstance(3, Runs), isinstance(3, int | str), isinstance(x,
                (list, torch.Tensor)),
            issubclass(bool, int), callable(Runner), isinstance(3, typing.Hashable), isinstance("a", collections.abc.Container))


@programs.make(X, change=lambda state: collections.abc.Sequence.register(state), captures=None)
def a_class_registered_later():
    class Virtual:
        pass
    return lambda x: (x, isinstance(Virtual(), collections.abc.Sequence)), Virtual


@programs.add(X)
def types_as_values(x):
    hint = typing.Optional[int]
    return (x, typing.cast(int, 3), typing.get_origin(list[int]) is list, typing.get_args(dict[str, int]), hint == typing.Union[int,
            None],
            typing.get_type_hints(Sized.size), list[int].__origin__ is list, type(None) is type(None))


@programs.add(X)
def signatures(x):
    def f(a, b=2, *args, c, **kwargs): ...
    parameters = inspect.signature(Runner.run).parameters
    return (x, list(parameters), "a" in parameters, "x" in parameters, inspect.isfunction(Runner.run), inspect.isclass(Runner),
            f.__code__.co_varnames,
            f.__code__.co_argcount)


# --- the rest

@programs.add(X)
def byte_arrays_and_views(x):
    data = bytearray(b"abc")
    data.append(100)
    data[0] = 65
    data += b"!"
    view = memoryview(b"abcd")[1:3]
    return (x * len(data), bytes(data), data[0], data.decode(), data, view.tobytes(), view[0], len(view), bytes(view),
            data.find(b"c"))


@programs.make(X, change=lambda state: state.extend(b"zz"), captures=3)
def an_outside_byte_array():
    data = bytearray(b"ab")

    def program(x):
        data[0] = data[1]
        return x * len(data), bytes(data), sum(data)
    return program, data


@programs.add(X)
def paths(x):
    p = pathlib.PurePosixPath("a") / "b.txt"
    return (x, str(p), p.suffix, p.stem, p.parent.name, p.with_suffix(".md").name, os.path.join("a", "b"),
            os.path.splitext("c.d")[1], p == pathlib.PurePosixPath("a/b.txt"))


@programs.add(X)
def printing_to_text(x):
    return x, pprint.pformat({"a": [1, 2]}), repr({"k": (1, [2])}), str([1, "a"]), format(1.5, ".2f"), f"{[1, 2]}", f"{ {'a': 1} }"


@programs.make(X, change=lambda state: state.append("warned"))
def warnings_given():
    log = []

    def program(x):
        log.append("called")
        warnings.warn("careful", UserWarning)
        return x * 2
    return program, log


@programs.make(X, change=lambda state: setattr(state, "digits", 7), captures=2)
def decimals_in_a_context_of_their_own():
    state = SimpleNamespace(digits=4)

    def program(x):
        with decimal.localcontext() as context:
            context.prec = state.digits
            third = Decimal(1) / 3
            with decimal.localcontext(prec=2):
                inner = Decimal(2) / 3
            again = Decimal(2) / 3, decimal.getcontext() is context, context.prec
        own = decimal.Context(prec=3)
        return x * float(third), third, inner, again, Decimal(1) / 7, own.divide(Decimal(1), Decimal(7)), decimal.getcontext().prec
    return program, state


def test_the_context_of_decimals_at_entry_is_guarded() -> None:
    def program(x):
        before = Decimal(1) / 7
        with decimal.localcontext() as context:
            context.prec += 2
            return x, before, Decimal(1) / 7
    compiled = capture.compile(program, fullgraph=True, backend="eager")
    with decimal.localcontext() as own:
        for precision in (28, 28, 28, 5, 5, 28):
            own.prec = precision
            assert compiled(X)[1:] == program(X)[1:]
    assert capture.stats(compiled).hits > 0


def test_a_copy_of_a_context_of_decimals_says_nothing_of_that_at_entry() -> None:
    rules = decimal.Context(prec=3)

    def program(x):
        with decimal.localcontext(rules):
            return x, Decimal(1) / 7
    compiled = capture.compile(program, fullgraph=True, backend="eager")
    for precision in (3, 3, 5, 5, 3):
        rules.prec = precision
        assert compiled(X)[1:] == program(X)[1:]
    assert compiled.capture_unit.captures == 2


@programs.make(X, change=lambda state: setattr(state, "text", '{"layers": [{"type": "tanh"}], "scale": 3}'), captures=2)
def json_with_hooks():
    state = SimpleNamespace(text='{"layers": [{"type": "relu"}, {"type": "tanh", "a": {"b": 1}}], "scale": 2}')

    def program(x):
        config = json.loads(state.text, object_hook=lambda found: SimpleNamespace(**found))
        for layer in config.layers:
            x = getattr(torch, layer.type)(x)
        pairs = json.loads('{"a": 1, "a": {"b": [{"c": 2}]}}', object_pairs_hook=list)
        return x * config.scale, pairs
    return program, state


@programs.add(X, 3 + 4j)
def functions_of_complex_numbers(x, z):
    return x * cmath.phase(z), cmath.polar(z), cmath.exp(1j), cmath.isclose(z, 3 + 4j)


@programs.add(X)
def versions_and_modules(x):
    layers = importlib.import_module("torch.nn")
    functional = getattr(importlib.import_module("torch.nn.functional"), "relu")
    if torch.__version__ >= "1.8" and not torch.__version__ < "1.10":
        x = functional(x)
    return layers.Tanh()(x), importlib.import_module("torch.nn") is layers, __import__("torch.nn").__name__


@programs.add(X)
def a_module_that_is_not_there(x):
    """As accelerate asks in each step of its optimizer."""
    missing = importlib.util.find_spec("no_such_module")
    return x * 2 if missing is None else x


class Config(dict):
    __getattr__, __setattr__, __delattr__ = dict.get, dict.__setitem__, dict.__delitem__


class Sizes(list):
    pass


@programs.make(X, change=lambda config: setattr(config.model, "depth", 3), captures=2)
def copies_of_configs():
    config = Config(model=Config(depth=2), sizes=Sizes([1, 2]))

    def program(x):
        local = copy.deepcopy(config)
        local.model.depth += 1
        local.sizes.append(3)
        shallow = copy.copy(config)
        y = x * local.model.depth
        return y, type(local.model), local.sizes, type(local.sizes), shallow.model is config.model, config, config.missing
    return program, config


test_library = programs.test()
