"""CPython's own tests of the language, run by our interpreter: it must pass what CPython passes."""
from __future__ import annotations

import types
import unittest

import pytest

from capture.interp import calls
from capture.interp.frame import Value
from capture.interp.interpreter import Interpreter
from tests.interp.worlds import result_of

MODULES = ("asyncgen", "contextlib", "coroutines", "dictcomps", "except_star", "extcall", "generators", "genexps", "grammar",
           "keywordonlyarg", "listcomps", "named_expressions", "patma", "positional_only_arg", "property", "raise", "scope",
           "setcomps", "subclassinit", "super", "unpack", "unpack_ex", "with", "yield_from")
# What the program can see of our frames not being CPython's: that a generator resumed by our own loop does not look
# running; its code; the frames behind a traceback; and that debuggers are not told of instructions.
DIFFERENT = frozenset({
    "test_attrs", "test_broken_getattr_handling", "test_cr_await", "test_delegating_generators_claim_to_be_running",
    "test_delegator_is_visible_to_debugger", "test_generator_gi_yieldfrom", "test_origin_tracking",
    "test_origin_tracking_warning", "test_default_capture", "test_default_wildcard", "test_no_default",
    "test_only_default_capture", "test_only_default_wildcard", "test_unreachable_code"})
NOT_A_PLAIN_FUNCTION = 0x04 | 0x08 | 0x20 | 0x80 | 0x200    # flags of code: *args, **kwargs, generators of all kinds


def interpret(self: unittest.TestCase, method: types.MethodType) -> None:
    """Stands in for TestCase._callTestMethod."""
    function = getattr(method, "__func__", None)
    if not isinstance(function, types.FunctionType) or function.__code__.co_flags & NOT_A_PLAIN_FUNCTION:
        method()
        return
    interp = Interpreter(None, None)
    result_of(interp, calls.make_frame(interp, Value(function, None), [Value(method.__self__, None)], {}))


def failures(module: types.ModuleType) -> dict[str, str]:
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromModule(module).run(result)
    return {test.id().rpartition(".")[2]: text for test, text in result.failures + result.errors}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODULES)
def test_module(name, monkeypatch):
    module = pytest.importorskip(f"test.test_{name}")
    before = failures(module)
    monkeypatch.setattr(unittest.TestCase, "_callTestMethod", interpret)
    new = {test: text for test, text in failures(module).items() if test not in before and test not in DIFFERENT}
    assert not new, "\n".join(new.values())
