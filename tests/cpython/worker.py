"""Runs one module of CPython's own tests in this process, and prints the outcome of each test as a line of JSON.

    python -m tests.cpython.worker MODULE native|interpreted|tracked [--without ID …] [--only ID …]

`interpreted`: every test, with its set-up and tear-down, and every example of a doctest, runs in frames of ours, on real
values alone. `tracked`: with shadows beside them, as when a call is captured, for as long as a trace would hold.
"""
from __future__ import annotations

import argparse
import doctest
import gc
import inspect
import json
import os
import random
import sys
import traceback
import types
import unittest
import warnings
from collections.abc import Callable
from typing import Any

from test import support

import capture
from tests import forkserver

Call = Callable[..., Any]
LONGEST = 4000      # characters kept of a failure's text


class Report(unittest.TestResult):
    """Prints what became of each test as soon as it is known: the next one may take the process down."""

    def __init__(self, out: Any) -> None:
        super().__init__()
        self.out, self.outcome, self.text = out, "", ""

    def tell(self, **fields: str) -> None:
        print(json.dumps(fields), file=self.out, flush=True)

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.outcome, self.text = "passed", ""
        self.tell(id=test.id(), outcome="started")

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        self.tell(id=test.id(), outcome=self.outcome, text=self.text)

    def note(self, outcome: str, text: str = "") -> None:
        if self.outcome in ("passed", "skipped"):
            self.outcome, self.text = outcome, text[-LONGEST:]

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self.failed(test, err)

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self.failed(test, err)

    def failed(self, test: Any, err: Any) -> None:
        if self.outcome:        # noted first: what a test has left behind may let the rest fail
            self.note("failed")
        text = "".join(traceback.format_exception(*err))
        if self.outcome:
            self.text = self.text or text[-LONGEST:]
        else:       # of a class or module: no test has been started
            self.tell(id=test.id(), outcome="failed", text=text[-LONGEST:])

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None:
            self.failed(test, err)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        if self.outcome:
            self.note("skipped", reason)

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self.note("failed", "unexpected success")


def interpreter(tracked: bool) -> tuple[Call, Call]:
    """`(run, execute)`, which call a function, and execute the code of a module in a namespace, in frames of ours."""
    from capture.interp.core.frame import Value
    from capture.interp.core.interpreter import Interpreter
    from capture.interp.dispatch import calls
    from capture.refgraph.source import Function, Local
    from tests.interp.worlds import result_of, tracking_interpreter

    def run(function: types.FunctionType, /, *args: Any) -> Any:
        if not tracked:
            interp = Interpreter(None, None)
            return result_of(interp, calls.make_root_frame(interp, Value(function, None), [Value(arg, None) for arg in args]))
        interp = tracking_interpreter()
        graph = interp.graph
        values = [Value(arg, graph.external(arg, Local(f"arg{i}", i))) for i, arg in enumerate(args)]
        return result_of(interp, calls.make_root_frame(interp, Value(function, graph.external(function, Function())), values))

    def execute(code: types.CodeType, namespace: dict[str, Any]) -> None:
        run(types.FunctionType(code, namespace))
    return run, execute


def call(method: Call) -> Any:
    return method()


def install(mode: str) -> None:
    """Makes unittest and doctest run tests as `mode` says."""
    run, execute = (call, exec) if mode == "native" else interpreter(mode == "tracked")

    def stands_in(self: unittest.TestCase, method: Call) -> None:
        run(call, method) if mode != "native" else call(method)
    for name in ("_callTestMethod", "_callTearDown", "_callSetUp"):
        own = getattr(unittest.TestCase, name)
        setattr(unittest.TestCase, name, stands_in if name == "_callTestMethod" else
                lambda self, own=own: stands_in(self, types.MethodType(own, self)))
    # The global name shadows the builtin in doctest's own code. The interpreter does not interpret itself: what stands in for
    # objects of C deceives all code that it runs.
    doctest.exec = execute if mode == "native" else capture.disable(execute)


def know_files() -> None:
    """Tells `inspect` the modules of all files on the stack. For a file that it does not know it goes through all modules, of which
    torch has thousands: in frames of ours that takes seconds."""
    inspect.stack()
    inspect.modulesbyfile["<frozen runpy>"] = "runpy"
    inspect.modulesbyfile[forkserver.__file__] = forkserver.__name__


def chosen(suite: unittest.TestSuite, wanted: Callable[[str], bool]) -> unittest.TestSuite:
    """The suite, in its order and grouping, with the tests whose ids are wanted."""
    kept = unittest.TestSuite()
    for part in suite:
        if isinstance(part, unittest.TestSuite):
            kept.addTest(chosen(part, wanted))
        elif wanted(part.id()):
            kept.addTest(part)
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module")
    parser.add_argument("mode", choices=("native", "interpreted", "tracked"))
    parser.add_argument("--without", nargs="*", default=(), metavar="ID")
    parser.add_argument("--only", nargs="*", metavar="ID")
    arguments = parser.parse_args()
    report = Report(os.fdopen(os.dup(1), "w"))     # which no process that a test starts inherits
    os.dup2(2, 1)
    sys.stdout = sys.stderr     # what tests print
    warnings.simplefilter("ignore")
    random.seed(0)
    support.use_resources = []          # as CPython's own runner: nothing that takes long, or needs the network
    install(arguments.mode)
    gc.freeze()                         # what is imported by now is not looked through again by every test that collects garbage
    suite = unittest.defaultTestLoader.loadTestsFromName(f"test.{arguments.module}")    # whose own objects are
    chosen(suite, lambda test: test not in arguments.without and (arguments.only is None or test in arguments.only)).run(report)
    report.tell(id="", outcome="finished", text="")


if __name__ == "__main__":
    main()
