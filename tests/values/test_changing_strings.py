"""Strings that change from call to call: formatted, stored and used as keys they cost two captures; what decides stays guarded."""
from __future__ import annotations

import logging
from collections import OrderedDict, defaultdict
from types import SimpleNamespace

import pytest
import torch

import capture
from tests.helpers import call, check

X = torch.tensor([[1.0, -2.0], [3.0, 4.0]])
TAGS = [f"tag{n}/x" for n in range(20)]
NAMES = {"tag1/x": "one", "tag3/x": "three"}
LOGGER = logging.getLogger("tests.changing_strings")
str(X)                                              # torch imports, and warns, at the first use only


def sweep(program, values=TAGS, captures=2, **options):
    """Calls `program(tensor, value)` for each of the values."""
    return check(lambda: program, *(call(X, value) for value in values), captures=captures, **options)


# --- text made of text

def formats(x, tag):
    old = "%s: %d %s" % (tag, len(tag), [tag, 1]), "{} {t!r:>12}".format(tag, t=tag)
    return x * 2, f"{tag}!", old, tag + "?", "/".join([tag, "a"]), "-".join((tag, tag))


def calls_methods(x, tag):
    changed = tag.upper().replace("TAG", "T").ljust(12), tag.zfill(9).strip("0")
    return x * 2, changed, tag.startswith("tag1"), tag[3:5], tag.count("x")


def formats_numbers(x, step):
    return x * 2, str(step).zfill(5), f"{step:05d}", "%03d" % step, hex(step), f"{step / 7:.3f}".rjust(9), divmod(step, 6)


def prints(x, tag):
    print(tag, f"[{tag}]", x.sum(), end=f" {tag}\n")
    LOGGER.info("%s %s", tag.title(), {"tag": tag})
    return x + 1


def compares(x, tag):
    return x * 2, tag == "tag3/x", tag in ("tag1/x", "tag2/x"), "1" in tag, tag < "tag2"


@pytest.mark.parametrize("program", [formats, calls_methods, prints, compares], ids=lambda program: program.__name__)
def test_text_of_changing_strings(program) -> None:
    check(lambda: program, *(call(X, tag) for tag in TAGS), captures=None)
    compiled = capture.compile(program, backend="eager", fullgraph=True)
    for tag in TAGS:
        compiled(X, tag)
    assert capture.stats(compiled).captures <= 2


def test_text_of_changing_numbers() -> None:
    sweep(formats_numbers, range(20))


def test_a_constant_string_is_a_constant() -> None:
    compiled = capture.compile(calls_methods, backend="eager")
    for _ in range(3):
        compiled(X, "tag1/x")
    assert "tag: str; is 'tag1/x'" in capture.explain(compiled) and capture.stats(compiled).captures == 1


def test_text_of_a_container_that_changes_later() -> None:
    def make():
        state = SimpleNamespace(parts=["a", "b"], table={"k": [1]}, last=None)

        def program(x, tag):
            shown = str([x, state.parts]), "%s %s" % (tag, state.parts), f"{tag}".join(state.parts), str((tag, state.table))
            state.parts.append(tag)
            state.table["k"].append(tag)
            state.last = tag
            return x * 2, shown
        return program, state
    check(make, *(call(X, tag) for tag in TAGS[:5]), captures=None)


# --- what decides

def test_a_branch_on_text_guards_the_condition_alone() -> None:
    def program(x, tag):
        if tag.upper().startswith("TAG1"):
            return x * 2, tag.lower()
        return x + 1, tag
    sweep(program, captures=None)
    compiled = capture.compile(program, backend="eager", fullgraph=True)
    for tag in TAGS:
        compiled(X, tag)
    assert capture.stats(compiled).captures <= 3


def test_names_of_attributes_and_keys_that_are_looked_up_are_guarded() -> None:
    def make():
        state = SimpleNamespace(layer0=1.0, layer1=2.0, layer2=3.0, table={"l0": 4, "l1": 5, "l2": 6})

        def program(x, step):
            return x * getattr(state, "layer%d" % (step % 3)) + state.table["l" + str(step % 3)]
        return program, state
    stats = check(make, *(call(X, n) for n in range(12)), captures=None)
    assert stats.captures <= 6 and not stats.breaks and not stats.native_calls


# --- keys

def stores_under_new_keys(make_log):
    def make():
        state = SimpleNamespace(log=make_log(), steps=0)

        def program(x, tag):
            state.steps += 1
            state.log[f"{tag}/loss"] = x.sum().item()
            state.log["last"] = tag
            state.log[tag] = x * 2
            return {tag: 1, "step": state.steps, f"{tag}+": x}, {f"{tag}{n}": n for n in range(3)}
        return program, state
    return make


@pytest.mark.parametrize("make_log", [
    dict, OrderedDict, lambda: defaultdict(list), lambda: {"last": 0, "tag3/x": 1, "tag4/x/loss": 2}],
                         ids=["dict", "OrderedDict", "defaultdict", "filled"])
def test_keys_of_what_is_stored(make_log) -> None:
    check(stores_under_new_keys(make_log), *(call(X, tag) for tag in TAGS), captures=2)


def test_keys_that_follow_from_tensors() -> None:
    def make():
        log = {}

        def program(x):
            log[f"sum {x.sum().item():.0f}"] = x
            return {int(x.max()): 1, "a": 2}
        return program, log
    check(make, *(call(X * n) for n in range(5)), graphs=1)


def test_a_changing_key_among_assignments_keeps_their_order() -> None:
    def make():
        log = {}

        def program(x, key):
            log["a"] = 1
            log[key] = 2
            log["a"] = 3
            log[key + ""] = 4
            return {"a": 1, key: 2, "b": 3, key * 2: 4}
        return program, log
    check(make, *(call(X, key) for key in ["c", "d", "a", "b", "a", "aa", "", "bb"]), captures=None)


@pytest.mark.parametrize("read", [
    lambda log, key: log["a"], lambda log, key: len(log), lambda log, key: list(log), lambda log, key: key in log,
    lambda log, key: log.get("b"), lambda log, key: str(log), lambda log, key: print(log), lambda log, key: log.pop("a", 0),
    lambda log, key: {**log}, lambda log, key: dict(log) == {}, lambda log, key: sorted(log.items()), lambda log, key: log.clear(),
    lambda log, key: log.update(b=2), lambda log, key: log.setdefault(key, 5)],
    ids=lambda f: None)
@pytest.mark.parametrize("outside", [False, True], ids=["new", "outside"])
def test_a_dict_that_is_read_after_a_changing_key(read, outside) -> None:
    def make():
        state = SimpleNamespace(log={"a": 0})

        def program(x, key):
            log = state.log if outside else {"a": 0}
            log[key] = len(key)
            return x * 2, read(log, key), log
        return program, state
    stats = check(make, *(call(X, key) for key in ["c", "d", "a", "b", "a", "e"]), captures=None, fullgraph=False)
    assert not stats.native_calls and not stats.bailouts, stats


def test_a_key_that_is_stored_in_what_may_be_the_same_dict() -> None:
    def make():
        state = SimpleNamespace(one={"a": 1}, other={"a": 2})

        def program(x, key):
            before = state.other["a"]
            state.one[key] = 7
            return x * 2, before, state.other["a"]
        return program, state
    check(make, *(call(X, key) for key in "cdef"), lambda state: setattr(state, "other", state.one),
          *(call(X, key) for key in "gah"), captures=None, fullgraph=False)


def test_a_miss_names_the_string_its_line_and_a_remedy() -> None:
    def program(x, tag):
        return x * 2, tag.upper()
    compiled = capture.compile(program, backend="eager")
    for tag in TAGS[:3]:
        compiled(X, tag)
    (miss,) = capture.stats(compiled).misses
    assert miss == "tag: expected 'tag0/x', got 'tag1/x'"
    text, line = str(capture.explain(compiled)), program.__code__.co_firstlineno + 1
    assert "'tag0/x'" in text and f"{__file__}" in text and str(line) in text
