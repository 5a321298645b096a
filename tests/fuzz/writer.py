"""Writes the random statements of a world's functions, and of the program itself."""
from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from contextlib import contextmanager

from tests.fuzz.pieces import Places

DEEPEST = 3
NUMBERS = ["0", "1", "2", "-1", "0.5", "1.0", "True", "-0.0", "3", "2.5"]
POINTWISE = ["torch.tanh({})", "{}.relu()", "({} * 2)", "({} + 1)", "(-{})", "({} / 2)", "torch.sigmoid({})", "{}.abs()",
             "F.gelu({})", "{}.clone()", "{}.clamp(-1, 1)", "torch.where({} > 0, 1.0, 2.0)", "{}.float()", "{}.detach()",
             "{}.square()", "{}.softmax(-1)", "{}.flip(-1)", "{}.roll(1, -1)", "{}.cumsum(-1)", "{}.contiguous()",
             "F.dropout({}, 0.5)", "torch.rand_like({})"]
REDUCED = ["{}.sum()", "{}.mean(-1, keepdim=True)", "{}.amax(-1, True)", "{}[..., 0]", "{}[..., :1]", "{}.unsqueeze(0)", "{}.t()"]
VIEWS = ["{}.view_as({})", "{}[...]", "{}[..., :]", "{}.expand_as({})", "{}.detach()", "{}.t().t()", "{}.unsqueeze(0)[0]",
         "{}.data"]
IN_PLACE = ["{}.add_({n})", "{}.mul_({n})", "{}.zero_()", "{}.neg_()", "{}[..., 0] = {n}", "{}[0] = {n}", "{} += {n}",
            "{}[..., 1:] *= {n}", "{}.copy_({t})", "{}.sub_({t})", "{}.fill_({n})", "torch.add({}, {n}, out={})", "{}.uniform_()",
            "{}.relu_()", "{}.requires_grad_()"]
LIST_STATEMENTS = ["{l}.append({v})", "{l}.insert(0, {v})", "{l}.pop()", "log.append({l}.pop(0))", "{l}[0] = {v}", "del {l}[0]",
                   "{l}[1:] = [{v}]", "{l}.extend([{v}, {v}])", "{l} += [{v}]", "{l}.reverse()", "{l}.remove({n})",
                   "log.append(list({l}))", "log.append(len({l}))", "log.append({n} in {l})", "n = {l}[-1]",
                   "log.append({l} == [1.0, 2.0])", "{l}.sort(key=str)", "log.append({l}.index(1.0))", "log.append({l} is items)",
                   "log.append([*{l}, {v}])", "{l} = [{v}]", "{l}.clear()", "first, *rest = {l}; log.append(rest)",
                   "log.append(sorted({l}, key=str))", "log.append({l}[::-1])", "del {l}[::2]", "log.append({l} * 2)",
                   "log.append({l}.count(2.0))", "log.append({l}.copy())", "log.append(not {l})", "{l}[0:1] = ({v}, {v})",
                   "log.append(dict(enumerate({l})))", "log.append({l}[0] is {v})", "log.append(list(reversed({l})))",
                   "log.append([*zip({l}, items)])"]
DICT_STATEMENTS = ["{d}[{k}] = {v}", "n = {d}[{k}]", "del {d}[{k}]", "log.append({d}.get({k}))", "log.append({d}.pop({k}, {v}))",
                   "log.append({k} in {d})", "{d}.setdefault({k}, {v})", "{d}.update(a={v})", "log.append(list({d}))",
                   "log.append(len({d}))", "log.append(dict({d}))", "{d} |= {{'q': {v}}}", "log.append([*{d}.items()][:3])",
                   "{d}.popitem()", "log.append({d} == {{'a': 5.0}})", "log.append({{**{d}, 'z': {v}}}.keys())", "{d}[{k}] += 1",
                   "log.append({d} | {{'a': {v}}})", "log.append(dict.fromkeys({d}, {v}))", "{d}.clear()", "log.append({d}.copy())",
                   "{d}.update({{{k}: {v}}})", "log.append({d}.keys() & {{'a', 'b'}})", "log.append(bool({d}))",
                   "log.append(list({d}.values())[:3])", "log.append(list(reversed({d})))"]
SET_STATEMENTS = ["{s}.add({k})", "{s}.discard({k})", "log.append({k} in {s})", "log.append(len({s}))", "{s} ^= {{{k}}}",
                  "log.append({s} <= {{'on', 1}})", "log.append(sorted(map(str, {s})))", "{s}.update([{k}])", "{s} |= {{{k}, 2}}",
                  "log.append(len({s} & {{'on', 1}}))", "{s}.remove({k})", "log.append(sorted(map(str, {s} - {{'on'}})))",
                  "log.append({s} == {{'on'}})", "{s}.clear()", "log.append(len({s} | {{{k}}}))"]
KEYS = ["'a'", "'b'", "'c'", "name", "1", "True", "'value'", "n"]
ERRORS = ["KeyError", "ValueError", "LookupError", "RuntimeError", "(TypeError, AttributeError)", "Exception"]


class Writer:
    """Writes blocks of statements, as lists of lines, over the places of a world."""

    def __init__(self, rng: random.Random, places: Places) -> None:
        self.rng, self.places = rng, places
        self.tensors: list[str] = []        # locals that hold tensors
        self.functions: list[str] = []      # local functions of a tensor
        self.loops = self.names = 0
        self.depth = 0
        self.looping = False                # whether `break` may be written
        self.caution = rng.choice([0.2, 0.5, 0.9])      # how often exceptions are caught
        self.keys = KEYS + ["key", "Key('a')", "Key('d', 2)"] * ("keyed" in places.dicts)
        self.rich = False                   # whether all of the world may be used: not in what other functions call

    def fill(self, text: str) -> str:
        """The text of a piece, its bodies written."""
        lines = []
        for line in text.splitlines():
            words = line.split()
            if words[:1] == ["BODY"]:
                indent = line[:len(line) - len(line.lstrip())]
                lines += [indent + each for each in self.body(words[1:], self.rng.choice([0, 0, 1, 2]))]
            else:
                lines.append(line)
        return "\n".join(lines)

    def body(self, tensors: list[str], count: int, rich: bool = False) -> list[str]:
        """`count` statements that use and assign the given local tensors and the local `n`."""
        self.tensors, self.functions, self.rich, self.depth, self.looping = tensors, [], rich, 0, False
        return [line for _ in range(count) for line in self.statement()]

    def program(self) -> str:
        """The function `program` of one or two tensors and a number."""
        lines = ["a, b = x, y if y is not None else x * 2", *self.body(["a", "b", "x"], self.rng.randint(2, 8), rich=True)]
        return "\n".join(["def program(x, y=None, n=1):", *indented([*lines, f"return {self.result()}"])])

    def result(self) -> str:
        return self.rng.choice(["a", "a, b", "a, n", "[a, b, n]", "{'a': a, 'n': n}", "a, x", f"a, {self.number()}",
                                f"a, {self.thing()}", "a + b", f"{self.function()}(a)", f"a, [{self.thing()}, {self.thing()}]",
                                "(v for v in [a, n])", "n"])

    # -- expressions ------------------------------------------------------------------------------------------------

    def number(self, depth: int = 0) -> str:
        roll = self.rng.random()
        if roll < 0.2:
            return self.rng.choice(NUMBERS)
        if roll < 0.35:
            return "n"
        if roll < 0.65 or depth > 1:
            return self.rng.choice(self.places.numbers)
        if roll < 0.8:
            return self.rng.choice(self.places.readers)
        one, other = self.number(depth + 1), self.number(depth + 1)
        return self.rng.choice([f"({one} + {other})", f"{one} * {other}", f"max({one}, {other})", f"({one} if {other} else 1)",
                                f"abs({one})", f"int({one})", f"({one} or {other})", f"round({one}, 1)", f"-{one}",
                                f"({one} - {other}) % 3", f"min([{one}, {other}])", f"{one} // 1", f"float({one})", f"bool({one})",
                                f"math.floor({one})", f"sum(v for v in [{one}, {other}])", f"(lambda v=1: v + {one})({other})"])

    def tensor(self, depth: int = 0) -> str:
        roll = self.rng.random()
        if roll < 0.4 or depth > 2:
            return self.rng.choice(self.tensors)
        if roll < 0.55:
            return self.rng.choice(self.places.tensors)
        inner = self.tensor(depth + 1)
        if roll < 0.7:
            return self.rng.choice(POINTWISE).format(inner)
        if roll < 0.8:
            return f"({inner} {self.rng.choice('+-*')} {self.rng.choice([self.number(1), self.tensor(depth + 1)])})"
        if roll < 0.84:
            return self.rng.choice(REDUCED).format(inner)
        if roll < 0.9:
            return self.rng.choice(VIEWS).format(inner, inner)
        return f"{self.function()}({inner})"

    def function(self) -> str:
        if self.functions and self.rng.random() < 0.3:
            return self.rng.choice(self.functions)
        return self.rng.choice(self.places.functions if self.rich else ["torch.tanh", "Base.moved", "outside", "(lambda v: v * G)"])

    def thing(self) -> str:
        return self.rng.choice(self.places.objects_of_all_kinds)

    def value(self) -> str:
        return self.rng.choice([self.number(), self.number(), self.tensor(), self.rng.choice(self.keys), "None", self.thing(),
                                f"({self.number()}, 'v')"])

    def condition(self) -> str:
        number = self.number()
        return self.rng.choice([
            f"{number} > 1", f"{number} > 1", f"{number}", f"not {number}", f"{number} == {self.number()}", "flag",
            f"{self.rng.choice(self.keys)} in table", f"isinstance({self.thing()}, ({', '.join(self.places.classes[:3])}))",
            f"{self.thing()} is {self.thing()}", f"hasattr({self.object()}, 'extra')", f"{self.tensor()}.sum().item() > {number}",
            f"bool({self.tensor()}.any())", f"(n := {number}) and n != 2", f"0 <= {number} < 3", "torch.is_grad_enabled()",
            f"{self.tensor()}.ndim > 1", f"{self.tensor()}.dtype == torch.float32", f"{self.tensor()}.requires_grad",
            f"{self.rng.choice(self.places.names)} == 'tanh'", f"callable({self.thing()})", "nothing is None",
            f"type({self.thing()}) is {self.places.classes[1]}", f"{self.tensor()}.sum() > 0", f"outside({number}) > 0",
            f"outside({number}) % 2", "not outside(log)", f"len({self.rng.choice(self.places.lists)}) > 2"])

    def object(self) -> str:
        return self.rng.choice(self.places.objects + self.places.modules)

    # -- statements -------------------------------------------------------------------------------------------------

    def statement(self) -> list[str]:
        simple = [self.assign] * 4 + [self.write] * 3 + [self.in_place] * 3 + [self.container] * 4 + [self.keep] * 2 + [
            self.attribute, self.attribute, self.note, self.note, self.show, self.cut, self.draw, self.fail, self.leave]
        if self.rich and self.places.statements:
            simple += [self.of_piece] * 4
        twice = [self.loop, self.handlers, self.block, self.define, self.generator]
        compound = [self.branch] * 3 + [kind for kind in twice for _ in range(2)] + [
            self.comprehension, self.match, self.closure, self.coroutine, self.make_class]
        if self.depth >= DEEPEST or self.rng.random() < 0.7:
            lines = self.rng.choice(simple)()
            while not parses(lines):            # what denotes a place may still be no target of an assignment
                lines = self.rng.choice(simple)()
            return ["try:", *indented(lines), "except Exception as error:", "    log.append(type(error).__name__)"] \
                if self.rng.random() < self.caution else lines
        with self.deeper():
            return self.rng.choice(compound)()

    @contextmanager
    def deeper(self) -> Iterator[None]:
        self.depth += 1
        yield
        self.depth -= 1

    def suite(self) -> list[str]:
        return indented([line for _ in range(self.rng.choice([1, 1, 2])) for line in self.statement()])

    @contextmanager
    def inner(self, *tensors: str) -> Iterator[None]:
        """Of a function, with parameters that hold tensors."""
        saved, looping = self.tensors, self.looping
        self.tensors, self.looping = [*tensors, *saved], False
        yield
        self.tensors, self.looping = saved, looping

    def new(self, stem: str) -> str:
        self.names += 1
        return f"{stem}{self.names}"

    def assign(self) -> list[str]:
        target = self.rng.choice(self.tensors)
        return [self.rng.choice([f"{target} = {self.tensor()}", f"{target} = {self.function()}({self.tensor()})",
                                 f"n = {self.number()}", "n += 1", f"a = a + {self.tensor()}", "a, b = b, a",
                                 f"{target}, n = {self.tensor()}, {self.number()}",
                                 f"{target} = {self.tensor()} if {self.condition()} else {self.tensor()}",
                                 f"*_, n = {self.rng.choice(self.places.lists)}"])]

    def write(self) -> list[str]:
        place = self.rng.choice(self.places.numbers)
        return [self.rng.choice([f"{place} = {self.number()}", f"{place} += {self.rng.choice(NUMBERS)}", f"{place} = -{place}",
                                 f"{place} = {place}", f"{place}, n = n, {place}",
                                 f"{self.rng.choice(self.places.names)} = 'relu'"])]

    def in_place(self) -> list[str]:
        target = self.rng.choice(self.tensors + self.places.tensors)
        text = self.rng.choice(IN_PLACE).replace("{}", target).format(n=self.number(), t=self.tensor())
        if self.rng.random() < 0.2:
            view = self.new("view")
            return [f"{view} = {self.rng.choice(VIEWS).format(target, target)}", f"{view}.mul_(2)"]
        if self.rng.random() < 0.3:
            return ["with torch.no_grad():", f"    {text}"]
        return [text]

    def container(self) -> list[str]:
        kind = self.rng.random()
        if kind < 0.5:
            texts, place = LIST_STATEMENTS, self.rng.choice(self.places.lists)
        elif kind < 0.85:
            texts, place = DICT_STATEMENTS, self.rng.choice(self.places.dicts)
        else:
            texts, place = SET_STATEMENTS, self.rng.choice(self.places.sets)
        text = self.rng.choice(texts)
        return text.format(l=place, d=place, s=place, n=self.number(), v=self.value(), k=self.rng.choice(self.keys)).split("; ")

    def keep(self) -> list[str]:
        """Something outlives the call."""
        name = self.rng.choice(["kept", "extra", "value", "tensor", "last"])
        return [self.rng.choice([f"{self.object()}.{name} = {self.value()}",
                                 f"{self.rng.choice(self.places.tensors)} = {self.tensor()}", f"log.append({self.tensor()})",
                                 f"table[{self.rng.choice(self.keys)}] = {self.value()}",
                                 f"{self.object()}.{name} = [{self.tensor()}, {self.value()}]",
                                 f"{self.object()}.kept = lambda v: v + {self.number()}", f"{self.object()}.kept = {self.object()}",
                                 f"{self.rng.choice(self.places.classes)}.extra = {self.number()}"])]

    def of_piece(self) -> list[str]:
        return self.rng.choice(self.places.statements).split("\n")

    def attribute(self) -> list[str]:
        name, thing = self.rng.choice(["extra", "value", "kept", "scale", "factor", "tensor", "__class__"]), self.object()
        return [self.rng.choice([f"log.append(getattr({thing}, {name!r}, None))", f"del {thing}.{name}",
                                 f"log.append(hasattr({thing}, {name!r}))", f"setattr({thing}, {name!r}, {self.number()})",
                                 f"log.append(sorted(vars({thing}))[:4])", f"n = {thing}.{name}",
                                 f"log.append(vars({thing}).get({name!r}))", f"log.append({thing}.__class__.__name__)",
                                 f"log.append({self.rng.choice(self.places.classes)}.__dict__.get({name!r}))",
                                 f"delattr({self.rng.choice(self.places.classes)}, {name!r})"])]

    def note(self) -> list[str]:
        return [self.rng.choice([f"log.append({self.value()})", f"print('n', {self.number()})", f"log.append(str({self.number()}))",
                                 f"log.append({self.thing()} is {self.thing()})", f"log.append(({self.number()}, {self.number()}))",
                                 f'print(f"{{{self.number()}!r:>8}}")', f"log.append(tuple({self.tensor()}.shape))",
                                 f"log.append({self.condition()})", "log.append(repr(sys.exception()))"])]

    def show(self) -> list[str]:
        """What a tensor holds is shown."""
        tensor = self.tensor()
        return [self.rng.choice([f"print({tensor})", f"print(f'{{{tensor}.sum():.3f}}')", f"log.append(str({tensor}.sum()))",
                                 f"log.append(f'{{{tensor}}}')", f"print(n, {tensor}.shape, sep='|')", f"n = {tensor}.sum().item()",
                                 f"log.append({tensor}.max().item() * 2)"])]

    def leave(self) -> list[str]:
        """The function, or a loop, is left."""
        left = self.rng.choice(["break", "continue"]) if self.looping and self.rng.random() < 0.7 else f"return {self.result()}"
        return [f"if {self.condition()}:", f"    {left}"]

    def cut(self) -> list[str]:
        return [self.rng.choice([f"outside({self.number()})", f"n = int({self.tensor()}.sum() > 1)",
                                 f"n = outside({self.number()})", f"n = float({self.tensor()}.flatten()[0])",
                                 f"a = outside({self.tensor()})", f"n = {self.tensor()}.sum().item()",
                                 f"log.append({self.tensor()}.tolist())", f"a = outside(a, {self.thing()})"])]

    def draw(self) -> list[str]:
        return [self.rng.choice(["n = random.random()", f"a = {self.tensor()} + torch.rand(3)",
                                 f"a = F.dropout({self.tensor()}, 0.5)", "n = random.choice([1, 2, 3])", "a = torch.randn(3) * a",
                                 "torch.manual_seed(3)", "random.seed(n)"])]

    def fail(self) -> list[str]:
        error = self.rng.choice(["KeyError", "ValueError", "RuntimeError", "IndexError"])
        return self.rng.choice([[f"if {self.condition()}:", f"    raise {error}({self.number()})"],
                                [f"fails({error}({self.number()}))"], [f"if {self.condition()}:", f"    fails({error}('outside'))"],
                                [f"assert {self.condition()}, n"]])

    def branch(self) -> list[str]:
        lines = [f"if {self.condition()}:", *self.suite()]
        if self.rng.random() < 0.5:
            lines += ["else:", *self.suite()]
        return lines

    def loop(self) -> list[str]:
        self.loops += 1
        i = f"i{self.loops}"
        over = self.rng.choice(["range(2)", f"list({self.rng.choice(self.places.lists)})[:3]",
                                f"enumerate(list({self.rng.choice(self.places.lists)})[:2])",
                                f"list({self.rng.choice(self.places.dicts)}.items())[:3]", "zip([1, 2], (a, b))", "[a, b]",
                                f"[{self.number()}, {self.number()}]", f"reversed({self.rng.choice(self.places.lists)}[:2])",
                                f"itertools.islice({self.rng.choice(self.places.lists)}, 2)", f"map(float, [{self.number()}])",
                                f"{self.function()}(a)[:2]", f"itertools.islice({self.rng.choice(self.places.generators)}, 3)",
                                f"zip({self.rng.choice(self.places.generators)}, range(2))", "outside([1, 2])"])
        looping, self.looping = self.looping, True
        body = self.suite()
        self.looping = looping
        if self.rng.random() < 0.4:
            body += [f"    log.append({i})"]
        if self.rng.random() < 0.2:
            body += [f"    if {self.condition()}:", f"        {self.rng.choice(['break', 'continue'])}"]
        lines = [f"for {i} in {over}:", *body]
        if self.rng.random() < 0.15:
            lines += ["else:", *self.suite()]
        if self.rng.random() < 0.15:
            lines = [f"{i} = 0", f"while {self.rng.choice([i, f'outside({i})'])} < 2:", f"    {i} += 1", *body]
        return lines

    def handlers(self) -> list[str]:
        lines = ["try:", *self.suite()]
        caught = self.rng.choice(ERRORS) if self.rng.random() < 0.8 else None
        if caught:
            lines += [f"except {caught} as error:", "    log.append((type(error).__name__, error.__context__ is None))",
                      *self.rng.choice([self.suite(), ["    raise"], ["    raise KeyError(n) from error"], ["    n = 2"]])]
            if self.rng.random() < 0.3:
                lines += ["else:", *self.suite()]
        if not caught or self.rng.random() < 0.3:
            lines += ["finally:", *self.suite()]
        return lines

    def block(self) -> list[str]:
        manager = self.rng.choice(self.places.managers)
        lines = [f"with {manager}:", *self.suite()]
        if manager.endswith("as stack"):
            call = self.rng.choice([f"stack.enter_context({self.manager()})", f"stack.callback(log.append, {self.number()})",
                                    "stack.pop_all()"])
            lines[1:1] = [f"    {call}"]
        return lines

    def manager(self) -> str:
        """An expression for one manager."""
        statement = ast.parse(f"with {self.rng.choice(self.places.managers)}: pass").body[0]
        return ast.unparse(statement.items[0].context_expr)

    def define(self) -> list[str]:
        name = self.new("f")
        with self.inner("v"):
            body = self.suite()
        extra = self.rng.choice(["", "", f", by={self.number()}", ", *rest"])
        head = [f"def {name}(v{extra}, n=n, a=a, b=b{self.rng.choice(['', '', ', **more'])}):"]
        if self.rng.random() < 0.3:
            head = [f"def {name}(v, a=a, b=b):", "    nonlocal n"]
        lines = [*head, *body,
                 f"    return {self.rng.choice(['v', 'v + 1', 'a', 'v * n'])}"]
        self.functions.append(name)
        return [*lines, f"a = {name}({self.tensor()})"]

    def comprehension(self) -> list[str]:
        places = self.rng.choice(self.places.lists)
        return [self.rng.choice([
            f"log.append([v for v in {places} if v != {self.number()}])", f"log.append({{k: v for k, v in enumerate({places})}})",
            f"a = sum([v * 2 for v in [a, {self.tensor()}]])", f"log.append(sum(v for v in [n, {self.number()}]))",
            f"log.append([{self.function()}(v) for v in (a, b)])", f"n = max(({self.number()} for _ in range(2)), default=0)",
            f"log.append([(i, v) for i, v in zip(range(3), {places})])",
            f"a = functools.reduce(operator.add, [a, {self.tensor()}])", f"log.append(list(map(lambda v: v, {places})))",
            f"log.append(any(v is a for v in {places}))"])]

    def match(self) -> list[str]:
        return [f"match {self.rng.choice([self.number(), self.thing(), 'pair', 'table', 'items'])}:",
                "    case 1 | 2.0:", *indented(self.suite()),
                "    case [first, *_]:", "        n = first",
                "    case {'a': value}:", "        n = value",
                f"    case {self.places.classes[0]}(value=value):", "        n = value",
                "    case _:", *indented(self.suite())]

    def generator(self) -> list[str]:
        name = self.new("g")
        with self.inner("v"):
            body = [f"    got = yield {self.value()}", *self.suite(), "    yield v if got is None else got"]
            kind = self.rng.random()
            if kind < 0.25:
                body = ["    try:", *indented(body),
                        f"    except {self.rng.choice(['GeneratorExit', 'ValueError', 'Exception'])} as error:",
                        "        log.append(type(error).__name__)",
                        f"        {self.rng.choice(['raise', 'n = 2', 'yield n', 'return n'])}", "    finally:",
                        *indented(self.suite())]
            elif kind < 0.4:
                body = [f"    with {self.manager()}:", *indented(body)]
            elif kind < 0.55:
                body = ["    for k in range(2):", *indented(body)]
            elif kind < 0.7:
                body = [*body, f"    n = yield from {self.rng.choice(self.places.generators)}", "    log.append(n)"]
        lines = [f"def {name}(v, n=n, a=a, b=b):", *body, f"    return {self.number()}", f"{name} = {name}({self.tensor()})"]
        uses = [f"log.append(next({name}))", f"log.append({name}.send({self.number()}))", f"log.append(list({name}))",
                f"{name}.close()", f"box.kept = {name}", f"log.append({name}.throw(ValueError({self.number()})))", f"del {name}",
                f"a, *_ = {name}", f"log.append(next(box.kept, {self.number()}))",
                f"for v in {name}:\n    log.append(v)\n    break", f"log.append([*zip({name}, range(2))])",
                f"log.append({name} is {name}.__iter__())"]
        return [*lines, f"log.append(next({name}))", *"\n".join(self.rng.sample(uses, self.rng.choice([1, 1, 2, 3]))).split("\n")]

    def closure(self) -> list[str]:
        """Functions that share a variable, and assign it."""
        make, step = self.new("make"), self.new("step")
        with self.inner("v"):
            body = self.suite()
        lines = [f"def {make}(count={self.number()}, n=n, a=a, b=b):", "    def step(v, n=n, a=a, b=b):", "        nonlocal count",
                 "        count += 1", *indented(body), f"        return {self.rng.choice(['v * count', 'v', 'a'])}",
                 "    return step, lambda: count", f"{step}, total = {make}()"]
        uses = [f"a = {step}(a)", f"a = {step}({step}(a))", "log.append(total())", f"box.kept = {step}", "box.extra = total",
                f"b = {step}(b)", f"log.append([cell.cell_contents for cell in {step}.__closure__])",
                f"{step}.__closure__[0].cell_contents = {self.number()}", "a = box.kept(a)"]
        return [*lines, *self.rng.sample(uses, 3)]

    def coroutine(self) -> list[str]:
        """Driven by hand."""
        name = self.new("co")
        with self.inner("v"):
            body = self.suite()
        return [f"async def {name}(v, n=n, a=a, b=b):", *body, f"    return {self.rng.choice(['v', 'a', 'n'])}", "try:",
                f"    {name}(a).send(None)", "except StopIteration as stop:",
                f"    {self.rng.choice(['log.append(stop.value)', 'a = stop.value', 'n = stop.value'])}"]

    def make_class(self) -> list[str]:
        name, base = self.new("C"), self.rng.choice(["Base", "Derived", "Other", *self.places.classes])
        with self.inner("x"):
            body = self.suite()
        lines = [f"class {name}({base}):", f"    scale = {self.number()}", "    def apply(self, x, n=n, a=a, b=b):",
                 *indented(body), f"        return {self.rng.choice(['super().apply(x) * self.scale', 'x', 'x * n'])}",
                 f"made = {name}()"]
        uses = ["a = made.apply(a)", f"made.value = {self.value()}", "log.append(made.scale)", "box.kept = made",
                f"log.append(isinstance(made, {base}))", f"log.append({name}.__mro__[1] is {base})", f"{name}.scale = 5.0",
                "a = made(a)", "log.append(made.doubled)"]
        return [*lines, *self.rng.sample(uses, 2)]


def parses(lines: list[str]) -> bool:
    try:
        ast.parse("\n".join(lines))
    except SyntaxError:
        return False
    return True


def indented(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines]
