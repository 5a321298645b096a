"""Programs: the environment."""
from __future__ import annotations

import functools
import sys
import traceback
import types
import warnings

from tests.interp.programs.base import Point, program


@program
def builtins_that_see_frames(log):
    a = 1

    class C:
        def who(self):
            return super().__repr__().startswith("<")

        def capturing(self):
            return lambda me: (self, super().__class__)
    log.append((sorted(locals()), dir() == sorted(vars()), eval("a"), eval("a + b", {"b": 1}, {"a": 5})))
    exec("log.append(a)")
    log.append((eval("a", None, None), eval("len(log)", None)))
    frame = sys._getframe()
    log.append((frame.f_code.co_name, sys._getframe().f_lineno, frame.f_globals is globals(), frame.f_code.co_filename == __file__))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")

        def warn(level):
            warnings.warn("a warning", stacklevel=level)
        warn(1)
        warn(2)
        log.append([(w.lineno, w.filename == __file__) for w in caught])
    try:
        eval("1 / 0")
    except ZeroDivisionError as error:
        log.append([(entry.name, entry.lineno) for entry in traceback.extract_tb(error.__traceback__)])

    def keywords(self, function, interp, **others):
        return self, function, interp, others
    log.append(functools.partial(keywords, self=1)(function=2, interp=3, model=4))
    log.append(dict(self=1, function=2, interp=3, model=4, args=5))
    log.append(globals() is sys.modules[__name__].__dict__)
    log.append((C().who(), C().capturing()(C())[1].__name__))
    return a, callable(C), isinstance(C(), C), type(C()).__name__, vars(Point(1, 2)), dir(Point(1, 2))[-2:]


@program
def long_jumps(log):
    total = 0
    for i in range(3):
        if i == 1:
            total += i; total += i; total += i; total += i; total += i; total += i; total += i; total += i; total += i; total += i
            total += i; total += i; total += i; total += i; total += i; total += i; total += i; total += i; total += i; total += i
            total += i; total += i; total += i; total += i; total += i; total += i; total += i; total += i; total += i; total += i
            total += i; total += i; total += i; total += i; total += i; total += i; total += i; total += i; total += i; total += i
            total += i; total += i; total += i; total += i; total += i; total += i; total += i; total += i; total += i; total += i
            total += i; total += i; total += i; total += i; total += i; total += i; total += i; total += i; total += i; total += i
            total += i; total += i; total += i; total += i; total += i; total += i; total += i; total += i; total += i; total += i
        else:
            try:
                total += log.nothing
            except AttributeError:
                total -= 1
    return total


@program
def code_of_modules(log):
    names = {"log": log, "value": 3}
    hook, sys.displayhook = sys.displayhook, log.append
    try:
        for source, mode in (("value + 1", "single"), ("for i in range(2): i; None", "single"), ("x: int = 1", "exec"),
                             ("from operator import *\nlog.append(add(value, 2))", "exec"), ("from enum import *", "exec"),
                             ("from nowhere import *", "exec")):
            try:
                types.FunctionType(compile(source, "<code>", mode), names)()
            except ModuleNotFoundError as error:
                log.append(str(error))
    finally:
        sys.displayhook = hook
    log.append([name for name in ("i", "x", "__annotations__", "mul", "_compare_digest", "Flag", "EnumType") if name in names])


exec("def many_constants(log):\n    return [" + ", ".join(f"'c{i}'" for i in range(300)) + "]\n" +
     "def many_names(log):\n" + "".join(f"    v{i} = {i + 1000}\n" for i in range(300)) + "    return v0, v150, v299\n")
program(many_constants)
program(many_names)


@program
def a_module_that_warns_of_itself(log):
    sys.modules.pop("sre_compile", None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        __import__("sre_compile")
    log.append([(str(warning.message), warning.filename) for warning in caught])
