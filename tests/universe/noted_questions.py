"""The questions of `tests.universe.noting`: of builtins, operators, methods and statements, with objects and containers."""
from __future__ import annotations

import collections
import functools
import random
import re

from tests.universe.programs import ONE, is_expression


def words(text: str) -> list[str]:
    """The parts of a table."""
    return [part for line in text.strip().splitlines() for part in line.split("|")]


ATOMS = words("""
a|b|a|b|0|1|-1|None|'x'|2.5|len|(a, 1)
""")
CONTAINERS = words("""
[a, b]|[a, b, a]|(a, b)|((a, 1), (b, 2))|[(a, 1), (b, 2)]|[(a, 1), (b,)]|[[a, 1], (b, 2), (a, 3)]|{a, b}|{a, b, 8}
frozenset((a, b))|{a: 1, b: 2}|{a: b}|{1: a, 2: b}|dict.fromkeys((a, b))|Counter([a, b])|OrderedDict([(a, 1), (b, 2)])
deque([a, b])|defaultdict(int, {a: 1})|(n for n in (a, b))|iter([a, b])|{a: 1}.keys()|{a: 1, b: 2}.items()|{1: a}.values()
zip((a, b), (1, 2))|outer_list|outer_set|outer_dict|outer_ordered|outer_counter|outer_deque|outer_tuple|outer_frozen|outer_default
outer_dict.keys()|outer_dict.items()|outer_list|outer_set|outer_dict
""")
SEQUENCES = words("""
[1, 2, 3]|(1, 2, 3)|'abc'|b'abc'|range(9)|outer_list|outer_tuple|deque([1, 2])|bytearray(b'abc')|[a, b]|torch.arange(4)
""")
FUNCTIONS = words("""
list|tuple|set|frozenset|dict|sorted|Counter|OrderedDict|deque|iter|next|len|min|max|sum|any|all|hash|str|repr|ascii|bool|int
float|complex|bytes|bytearray|abs|divmod|pow|round|range|slice|format|isinstance|callable|enumerate|zip|reversed|operator.not_|copy.copy
copy.deepcopy|json.dumps|pprint.pformat|heapq.heapify|heapq.nsmallest|bisect.bisect|bisect.insort|cached|operator.index
operator.length_hint|operator.countOf|operator.indexOf|operator.contains|operator.concat|operator.truth|itertools.chain
itertools.islice|itertools.repeat|itertools.groupby|itertools.accumulate|itertools.product|itertools.count|functools.reduce
functools.partial|math.prod|math.fsum|math.floor|math.gcd|math.isclose|map|filter|dict.fromkeys|chr|hex|collections.ChainMap
collections.UserDict|collections.UserList|type|vars|dir|getattr|hasattr|Colour|str.join|'{}'.format|'%s'.__mod__|print
torch.tensor|torch.Size|torch.zeros|setattr|Counter.fromkeys|OrderedDict.fromkeys
""")
SIGNS = "+ - * / // % ** @ << >> & | ^ == != < <= > >= in".split()
METHODS = {"list": list, "set": set, "frozenset": frozenset, "dict": dict, "tuple": tuple, "str": str, "int": int,
           **{name: getattr(collections, name) for name in "Counter deque OrderedDict defaultdict".split()}}
OWNERS = {"list": ("[a, b]", "outer_list"), "set": ("{a, b}", "outer_set", "{a, 8}"), "int": ("7",), "str": ("'abc'",),
          "frozenset": ("frozenset((a, b))", "outer_frozen"),
          "dict": ("{a: 1, b: 2}", "outer_dict", "{1: a}"), "Counter": ("Counter([a, b])", "outer_counter"),
          "tuple": ("(a, b)", "outer_tuple"), "deque": ("deque([a, b])", "outer_deque"),
          "OrderedDict": ("OrderedDict([(a, 1)])", "outer_ordered"), "defaultdict": ("defaultdict(list, {a: 1})", "outer_default")}
ITERATORS = "iter enumerate zip reversed map filter itertools.chain itertools.accumulate itertools.product itertools.islice".split()
LEFT_OUT = frozenset("__class__ __class_getitem__ __init_subclass__ __subclasshook__ __new__ __reduce__ __reduce_ex__ __getstate__ "
                     "__sizeof__ __doc__ __dir__ __getattribute__ __setattr__ __delattr__ __dict__ __module__ __weakref__".split())
STATEMENTS = """
r = C; r |= D
r = C; r &= D
r = C; r -= D
r = C; r ^= D
r = C; r += D
r = C; r *= A
r = C; r[A] = B
r = C; del r[A]
r = S[A:]
r = S[:A]
r = S[A:B]
r = S[::A]
r = S[A]
r = C[A]
r = A[B]
r = [*C, *D]
r = {*C, *D}
r = {**C, **D}
r = (lambda *x: x)(*C)
r = (lambda **x: x)(**C)
r = [n for n in C if n]
r = {n: 1 for n in C}
r = {n for n in C}
r = [n == m for n in C for m in D]
r = [n in D for n in C]
c = C; r = f"{A}{B!r}{c}"
r = '%s %r' % (A, C)
r = (A, 1) in C
r = (A, B) in {(a, b): 1}
r = {(A, B), (B, A)}
r = {A: {B: 1}} == {A: {B: 1}}
p, q = C; r = p, q
p, *q = C; r = q
r = 1 if A else 2
r = A and B
r = not C
r = A < B < A
r = {}; r[A] = 1; r[B] = 2; r[A] = r.get(B)
r = set(); r.add(A); r.add(B); r.discard(A)
r = defaultdict(list); r[A].append(B); r[B].append(A)
r = Counter(C); r.update(D)
r = Counter(C) - Counter(D)
r = Counter(C).most_common(1)
r = Counter(C); r.subtract(D)
r = C; r.sort()
r = sorted(C, key=lambda n: n)
r = max(C, key=lambda n: n)
r = list(zip(C, D))
r = list(map(str, C))
r = list(enumerate(C, A))
r = list(filter(None, C))
r = [k for k, g in itertools.groupby(C)]
r = list(itertools.islice(C, A))
r = C == D, C != D
r = C is D
r = next(iter(C))
r = C.pop()
r = C.copy()
r = list(reversed(C))
with torch.no_grad(): r = C == D
match A:
  case 1: r = "one"
  case [x, y]: r = "two"
  case {"k": v}: r = "map"
  case _: r = "none"
""".strip("\n")


def statements() -> list[str]:
    found: list[str] = []
    for line in STATEMENTS.splitlines():
        if line.startswith(" "):
            found[-1] += "\n" + line
        else:
            found.append(line)
    return found


def question(rng: random.Random) -> str:
    def operand() -> str:
        return rng.choice(ATOMS if rng.random() < 0.4 else CONTAINERS)

    kind = rng.randrange(5)
    if kind == 0:
        name = rng.choice([*OWNERS])
        method = rng.choice([name for name in dir(METHODS[name]) if name not in LEFT_OUT])
        called = ", ".join(operand() for _ in range(rng.choice((0, 1, 1, 1, 2))))
        return f"o = {rng.choice(OWNERS[name])}; r = o.{method}({called}), o"
    if kind == 1:
        function = rng.choice(FUNCTIONS)
        called = ", ".join(operand() for _ in range(rng.choice((1, 1, 1, 2))))
        walk = function in ITERATORS
        return f"r = list({function}({called}))" if walk and rng.random() < 0.7 else f"r = {function}({called})"
    if kind == 2:
        return f"r = {operand()} {rng.choice(SIGNS)} {operand()}"
    if kind == 3:
        text = rng.choice(ONE)
        return f"r = {text}" if is_expression(text) else text
    text = rng.choice(statements())
    for letter, choices in (("A", ATOMS[:4]), ("B", ATOMS), ("C", CONTAINERS), ("D", CONTAINERS), ("S", SEQUENCES)):
        text = re.sub(rf"\b{letter}\b", functools.partial(drawn, rng, choices), text)
    return text


def drawn(rng: random.Random, choices: list[str], place: re.Match[str]) -> str:
    return rng.choice(choices)
