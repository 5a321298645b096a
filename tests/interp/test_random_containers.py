"""Random straight-line programs on containers of their own and from outside, run on outside states that change."""
from __future__ import annotations

import linecache

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers import call, check

ITEMS = ["1", "2.0", "x", "b", "len(a)", "'k'", "a[0]", "(1, x)", "d.get('k')", "a", "None"]
KEYS = ["'k'", "'m'", "1", "len(b)", "True", "a[0]", "(1, 'k')"]
INDICES = ["0", "-1", "1", "len(b)", "2"]
SLICES = ["0:2", "::-1", "1:", "-2:", ":", "::2"]
# Lazy ones walk over copies: a list which is extended by an iterator over itself has no end.
ITERABLES = ["a", "b", "d", "(1, 2)", "range(3)", "d.values()", "reversed(b[:])", "(v for v in a[:])",
             "zip(a[:], b[:])", "enumerate(b[:])", "d.items()",
             "map(str, range(2))", "iter(a[:])", "'xy'", "sorted(s)"]
SETS = ["s", "{1, 'k'}", "set(d)", "t", "d.keys()"]
LISTS = ["a", "b"]
DICTS = ["d", "e"]
STATEMENTS = [
    "{l}.append({v})", "{l}.insert({i}, {v})", "r.append({l}.pop())", "r.append({l}.pop({i}))", "{l}[{i}] = {v}",
    "del {l}[{i}]", "{l}[{c}] = {m}", "del {l}[{c}]",
    "{l}.extend({m})", "{l} += {m}", "{l}.reverse()", "r.append({l}[{i}])", "r.append({l}[{c}])", "r.append({l} + b)",
    "r.append({l} * 2)", "r.append(len({l}))",
    "r.append(list({m}))", "r.append(tuple({m}))", "r.append(1 in {l})", "r.append({l}.copy())",
    "r.append([v for v in {m}])", "r.append({l}.count(2.0))",
    "r.append({l}.index(2.0))", "{l}.remove(2.0)", "{l}.clear()", "r.append(not {l})", "r.append({l} == {l})",
    "{d}[{k}] = {v}", "r.append({d}[{k}])", "del {d}[{k}]", "r.append({d}.get({k}))", "r.append({d}.pop({k}))",
    "r.append({d}.pop({k}, {v}))", "r.append({k} in {d})",
    "r.append({d}.setdefault({k}, {v}))", "{d}.update(e)", "{d}.update({k_} for k_ in ())", "{d}.update(z={v})",
    "r.append(list({d}))", "r.append([*{d}.items()])",
    "r.append({d}.popitem())", "r.append(dict({d}))", "r.append({d} | e)", "{d} |= {{'q': {v}}}", "r.append(len({d}))",
    "r.append(bool({d}))", "{d}.clear()",
    "r.append({{**{d}, 'w': {v}}})", "r.append({d}.copy())", "r.append({d} == e)", "for key in {d}: r.append(key)",
    "r.append(dict.fromkeys({d}, {v}))",
    "s.add({k})", "s.discard({k})", "s.remove({k})", "s.update([{k}])", "r.append({k} in s)", "r.append(len(s | {u}))",
    "r.append(s <= {u})", "t |= {u}", "t.add({k})",
    "r.append(sorted(map(str, t & {u})))", "r.append(len(t - {u}))", "t.clear()", "r.append({k} in t)",
    "r.append(s == {u})", "t ^= {u}",
    "it = iter({m}); r.append(next(it)); r.append(list(it))", "for i, v in enumerate({m}): r.append((i, v))",
    "for v, w in zip({m}, b): r.append((w, v))",
    "r.append(dict(enumerate({m})))", "u, *w = {m}; r.append((u, w))", "r.append({l} is b)", "r.append({l}[{i}] is x)",
    "r.append({l}[{i}] is None)",
    "r.append(isinstance({l}[{i}], int))", "r.append(str({k}))", "r.append([{l}, {d}])", "{l}.sort(key=str)",
    "x = x + 1",
]


@st.composite
def programs(draw: st.DrawFn) -> str:
    lines = ["def program(x, a, d, s):", "    b, e, t, r = [x, 1], {'k': x, 'e': 2}, {1, 'm'}, []"]
    for _ in range(draw(st.integers(1, 8))):
        pick = {"v": ITEMS, "k": KEYS, "i": INDICES, "c": SLICES, "m": ITERABLES, "l": LISTS, "d": DICTS, "u": SETS}
        chosen = {name: draw(st.sampled_from(choices)) for name, choices in pick.items()}
        statement = draw(st.sampled_from(STATEMENTS)).replace("{k_}", "k_").format(**chosen)
        lines += ["    try:", f"        {statement}",
                  "    except (IndexError, KeyError, ValueError, TypeError, StopIteration, RuntimeError):",
                  "        r.append('no')"]
    return "\n".join([*lines, "    return r, b, e, len(t), x * 2", ""])


def compiled(source: str, number: list[int] = [0]) -> object:
    number[0] += 1
    filename = f"<random {number[0]}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace: dict[str, object] = {}
    exec(compile(source, filename, "exec"), namespace)
    return namespace["program"]


STATES = [([1, 2.0, 3], {"k": 1, "m": torch.zeros(2)}, {1, "k"}),
          ([1, 2.0, 3], {"k": 1, "m": torch.zeros(2)}, {1, "k"}), ([2, 2.0, 3], {"k": 1, "m": 5}, {1}),
          ([2.0], {}, set()), ([1, 2.0, 3], {"m": 1, "k": torch.zeros(2)}, {1, "k", "m"}),
          ([None, "k", 3], {"k": 1, "m": torch.zeros(2)}, {1, "k"})]


@settings(deadline=None, max_examples=60, derandomize=True, suppress_health_check=list(HealthCheck), database=None)
@given(programs())
def test_random_programs(source: str) -> None:
    program = compiled(source)
    check(lambda: program, *(call(torch.ones(2), *state) for state in STATES), captures=None, fullgraph=False)
