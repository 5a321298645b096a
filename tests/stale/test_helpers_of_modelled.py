"""Functions of Python for which captured code has a model, a polyfill or a result that it knows: what they call may be replaced."""
from __future__ import annotations

import base64
import copy
import difflib
import html
import json
import posixpath
import re
import shlex
import string
import sys
import textwrap
import types
import urllib.parse
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import capture.interp.opcodes  # noqa: F401
from capture.interp.core.registry import MODELS, POLYFILLS, PURE
from capture.interp.function_models.isolated_code import globals_of
from tests.helpers import call, check

X = torch.ones(2)


class Thing:
    def __init__(self) -> None:
        self.items = [1]


THING = Thing()
CALLS: dict[Callable[..., Any], tuple[Any, ...]] = {
    re.sub: ("a", "b", "aa"), re.subn: ("a", "b", "aa"), re.match: ("a", "ab"), re.fullmatch: ("a", "a"), re.search: ("b", "ab"),
    re.split: (",", "a,b"), re.findall: ("a", "aa"), re.compile: ("a+",), re.escape: ("a.b",), re.finditer: ("a", "aa"),
    json.dumps: ({"a": [1, None]},), json.loads: ('{"a": 1}',), copy.copy: (THING,), copy.deepcopy: (THING,),
    base64.b64encode: (b"abc",), base64.b64decode: ("YWJj",), base64.urlsafe_b64encode: (b"abc",), base64.b32encode: (b"abc",),
    base64.urlsafe_b64decode: (b"YWJj",), base64.b32decode: (b"MFRGG===",), base64.b16encode: (b"a",), base64.b16decode: ("61",),
    textwrap.wrap: ("some words", 5), textwrap.fill: ("some words", 5), textwrap.shorten: ("some words", 5),
    textwrap.dedent: ("  a\n  b",), textwrap.indent: ("a", "  "), difflib.get_close_matches: ("ab", ["abc", "x"]),
    html.escape: ("<a>",), html.unescape: ("&lt;",), shlex.split: ("a 'b c'",), shlex.join: (["a", "b c"],), shlex.quote: ("b c",),
    urllib.parse.quote: ("a b",), urllib.parse.unquote: ("a%20b",), urllib.parse.quote_plus: ("a b",),
    urllib.parse.unquote_plus: ("a+b",), urllib.parse.urlencode: ({"a": 1},), string.capwords: ("a b",),
    posixpath.join: ("a", "b"), posixpath.split: ("a/b",), posixpath.splitext: ("a.b",), posixpath.basename: ("a/b",),
    posixpath.dirname: ("a/b",), posixpath.normpath: ("a/../b",), posixpath.commonpath: (["a/b", "a/c"],), posixpath.isabs: ("/a",)}
if type(posixpath.normpath) is not types.FunctionType:
    del CALLS[posixpath.normpath]       # which C does in later versions


def is_called(x: Any) -> bool:
    """Exceptions are raised: no function can stand in their place."""
    return type(x) is types.FunctionType or type(x) is type and not issubclass(x, BaseException)


HELPERS = [(function, name) for function in CALLS for name in globals_of(function.__code__)
           if is_called(function.__globals__.get(name))]


def shown(result: Any) -> Any:
    return vars(result) if type(result) is Thing else [str(item) for item in result] if hasattr(result, "__next__") else result


def world(function: Callable[..., Any]) -> Any:
    state = SimpleNamespace(log=[])

    def program(x):
        try:
            return x + 1, str(shown(function(*CALLS[function])))
        except (TypeError, ValueError, AttributeError) as error:
            return x, type(error).__name__
    return program, state


def test_all_of_them_are_called() -> None:
    known = {function for function in (*PURE, *POLYFILLS, *MODELS) if type(function) is types.FunctionType}
    assert not [function for function in CALLS if function not in known]
    names = {function.__module__ for function in CALLS}
    assert not [function for function in known & PURE if function.__module__ in names and globals_of(function.__code__)
                and function not in CALLS and function.__module__ in sys.stdlib_module_names and function not in (
                    posixpath.commonprefix, urllib.parse.parse_qs)]


def compare(function: Any, name: str, other: Callable[[Any], Any]) -> None:
    """What a function says while something else stands under a name of its module, and after. other: makes that for a state."""
    compare_with(function, sys.modules[function.__module__], name, other)


def compare_with(function: Any, owner: Any, name: str, other: Callable[[Any], Any]) -> None:
    """The same for something else under a name of any module or class, or in the place of an attribute of a function."""
    original = vars(owner)[name] if name in vars(owner) else getattr(owner, name)

    def change(state: Any) -> None:
        setattr(owner, name, other(state))

    def restore(state: Any) -> None:
        setattr(owner, name, original)
    try:
        check(lambda: world(function), call(X), call(X), change, call(X), call(X), restore, call(X), captures=None, fullgraph=False)
    finally:
        setattr(owner, name, original)


@pytest.mark.parametrize("function, name", HELPERS, ids=[f"{function.__qualname__}-{name}" for function, name in HELPERS])
def test_a_function_that_it_calls_is_replaced(function: Any, name: str) -> None:
    original = function.__globals__[name]

    def noting(state: Any) -> Callable[..., Any]:
        def other(*args: Any, **kwargs: Any) -> Any:
            state.log.append(name)
            return original(*args, **kwargs)
        return other
    compare(function, name, noting)


def called_by(function: Any) -> list[tuple[Any, str]]:
    """The modules and classes of Python's library under whose names the functions stand that run while a function is called."""
    codes: dict[types.CodeType, None] = {}
    re.purge()
    sys.setprofile(lambda frame, event, argument: codes.setdefault(frame.f_code))
    try:
        world(function)[0](X)
    finally:
        sys.setprofile(None)
    found: list[tuple[Any, str]] = []
    for module in [module for name, module in list(sys.modules.items()) if name.partition(".")[0] in sys.stdlib_module_names]:
        classes = [x for x in vars(module).values() if type(x) is type and x.__module__ == module.__name__]
        for owner in (module, *classes):
            found += [(owner, name) for name, x in vars(owner).items() if type(x) is types.FunctionType and x.__code__ in codes
                      and x is not function and x.__module__ == getattr(owner, "__module__", owner.__name__)]
    return found


@pytest.mark.parametrize("function", CALLS, ids=lambda function: function.__qualname__)
def test_whatever_runs_inside_of_it_is_replaced(function: Any) -> None:
    for owner, name in called_by(function):
        original = vars(owner)[name]

        def noting(state: Any, name: str = name, original: Any = original) -> Callable[..., Any]:
            def other(*args: Any, **kwargs: Any) -> Any:
                state.log.append(name)
                return original(*args, **kwargs)
            return other
        compare_with(function, owner, name, noting)


@pytest.mark.parametrize("function, owner, name, value", [
    (json.dumps, json.JSONEncoder, "encode", lambda self, x: "other"),
    (textwrap.fill, textwrap.TextWrapper, "wrap", lambda *_: ["b"]),
    (textwrap.dedent, re.sub, "__defaults__", (1, 0)), (json.loads, json.JSONDecoder, "raw_decode", lambda *_: (1, 8)),
    (difflib.get_close_matches, difflib.SequenceMatcher, "ratio", lambda self: 0.0)])
def test_something_two_calls_below_it_is_another_one(function: Any, owner: Any, name: str, value: Any) -> None:
    compare_with(function, owner, name, lambda state: value)


@pytest.mark.parametrize("function, name, value", [
    (json.dumps, "_default_encoder", json.JSONEncoder(indent=1)),
    (json.loads, "_default_decoder", json.JSONDecoder(parse_int=float)),
    (copy.copy, "_copy_dispatch", {Thing: lambda thing: None}), (html.unescape, "_charref", re.compile("no"))])
def test_an_object_that_it_names_is_replaced(function: Any, name: str, value: Any) -> None:
    compare(function, name, lambda state: value)


@pytest.mark.parametrize("function", CALLS.keys() - {copy.deepcopy}, ids=lambda function: function.__qualname__)
def test_its_own_code_is_replaced(function: Any) -> None:
    code = function.__code__

    def change(state: Any) -> None:
        names = code.co_varnames[:code.co_argcount]
        other = compile(f"lambda {', '.join(names)}, *args, **kwargs: 'other'", __file__, "eval")
        function.__code__ = eval(other).__code__

    def restore(state: Any) -> None:
        function.__code__ = code
    try:
        check(lambda: world(function), call(X), call(X), change, call(X), call(X), restore, call(X), captures=None, fullgraph=False)
    finally:
        function.__code__ = code
