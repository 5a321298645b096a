"""Programs run by CPython and by the interpreter: nothing that can be observed differs."""

from __future__ import annotations

import dis
import gc
import operator
import sys
import types
import weakref

import pytest

from capture.interp import opcodes
from capture.interp.breaks.idle_loops import stack_depths
from capture.interp.core import instructions
from capture.interp.core.instructions import Does
from capture.interp.dispatch.execution import is_of_functions
from tests.interp.programs import PROGRAMS
from tests.interp.worlds import checked_stack, functions_in, interpreted, natively, observe, tracked


def test_every_opcode_has_a_handler():
    assert opcodes.missing() == []


def numbers(does):
    """The opcodes of which any of this is known."""
    return {dis.opmap[name] for name, facts in instructions.FACTS.items() if facts & does}


def test_what_is_known_of_opcodes_is_what_dis_says():
    handled = set(map(dis.opmap.get, instructions.HANDLERS))
    assert numbers(Does.JUMPS | Does.BRANCHES) == handled & {*dis.hasjrel, *dis.hasjabs}
    of_locals = numbers(Does.READS_LOCAL | Does.WRITES_LOCAL)
    assert handled & set(dis.haslocal) <= of_locals <= {*dis.haslocal, *dis.hasfree}
    assert handled & set(dis.hasname) <= numbers(
        Does.LOADS_ANY_NAME | Does.LOADS_GLOBAL | Does.LOADS_ATTRIBUTE | Does.STORES_NAME | Does.STORES_ATTRIBUTE
        | Does.DELETES_ATTRIBUTE | Does.IMPORTS)
    assert {name for name in dis.opmap if name.startswith(("STORE_", "DELETE_")) and name in instructions.FACTS} == {
        dis.opname[number] for number in numbers(
            Does.STORES_NAME | Does.STORES_CELL | Does.STORES_ITEM | Does.STORES_ATTRIBUTE | Does.DELETES_ATTRIBUTE
            | Does.WRITES_LOCAL | Does.READS_LOCAL)
        if dis.opname[number].startswith(("STORE_", "DELETE_"))}


@pytest.mark.parametrize("name, said", [("POP_TOPP", "is no opcode"), ("POP_TOP", "has a handler")])
def test_an_opcode_is_registered_once_by_its_name(name, said):
    with pytest.raises(ImportError, match=said):
        instructions.opcode(name, does=Does.OPERATES)(lambda *args: None)
    assert "POP_TOPP" not in instructions.FACTS


def test_changes_in_place_are_told():
    def program(x):
        y = x + 1
        y += 1
        return y

    changing = [i.value for i in instructions.decode(program.__code__) if Does.CHANGES_OPERAND in instructions.does(i)]
    assert changing == [operator.iadd]


@pytest.mark.parametrize("source, mode, known", [
    ("1", "single", Does.PRINTS), ("from os import *", "exec", Does.STORES_ANY_NAME)])
def test_what_functions_cannot_do_is_told(source, mode, known):
    """By the opcode, or, since 3.12, by its argument."""
    code = compile(source, "<string>", mode)
    assert sum(known in instructions.does(i) for i in instructions.decode(code)) == 1
    assert not is_of_functions(code)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_stack_effects_agree_where_branches_meet(program):
    for code in functions_in(program.__code__):
        steps, depths = instructions.decode(code), stack_depths(code)
        for at, depth in depths.items():
            for target in instructions.successors(steps[at], at):
                assert depths[target] == depth + instructions.stack_effect(steps[at], target != at + 1)


def test_absent_opcodes_are_absent():
    """What is listed as never seen in code is not there: the programs do not contain it."""
    for program in PROGRAMS:
        for code in functions_in(program.__code__):
            assert not {i.opname for i in dis.get_instructions(code)} & opcodes.NOT_IN_CODE


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_program(program):
    with checked_stack():
        assert observe(interpreted, program) == observe(natively, program)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_program_with_shadows(program):
    """Strict mode raises what the bookkeeping gets wrong; giving up the trace changes nothing."""
    with checked_stack():
        assert observe(tracked, program) == observe(natively, program)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_program_while_an_exception_is_handled(program):
    def handling(run):
        try:
            raise MemoryError("of the caller")
        except MemoryError:
            return observe(run, program)

    ours, theirs = handling(interpreted), handling(natively)
    assert repr(ours.pop("handled")) == repr(theirs.pop("handled"))
    assert ours == theirs


def test_opcodes_are_exercised():
    """The programs contain every opcode that a function can contain."""
    seen = {
        i.opname for program in PROGRAMS for code in functions_in(program.__code__) for i in dis.get_instructions(code)
    }
    helpers = sys.modules[PROGRAMS[0].__module__]
    for value in vars(helpers).values():
        if isinstance(value, types.FunctionType) and value.__module__ == helpers.__name__:
            seen |= {i.opname for code in functions_in(value.__code__) for i in dis.get_instructions(code)}
    rare = {
        "CLEANUP_THROW",
        "LOAD_FROM_DICT_OR_GLOBALS",
        "LOAD_LOCALS",
        "GET_YIELD_FROM_ITER",
        "UNARY_POSITIVE",
        "POP_JUMP_BACKWARD_IF_NONE",
        "POP_JUMP_BACKWARD_IF_NOT_NONE",
        "CALL_INTRINSIC_2",
        "LOAD_FAST_CHECK",
        "PRINT_EXPR",
        "IMPORT_STAR",
    }
    assert set(instructions.HANDLERS) - seen <= rare


def test_decoding_is_kept_no_longer_than_the_code():
    code = (lambda: 1).__code__.replace(co_name="other")
    assert instructions.decode(code) is instructions.decode(code)
    equal = code.replace()
    assert equal == code and instructions.decode(equal) is not instructions.decode(code)
    key, alive = id(code), weakref.ref(code)
    del code
    assert alive() is None and key not in instructions._cache


def test_frames_leave_no_garbage():
    """Arguments, generators and exceptions die when CPython would let them die."""

    class Thing:
        pass

    def program(log):
        def gen(thing):
            yield thing

        def use(thing):
            next(gen(thing))
            for _ in gen(thing):
                break
            unstarted = gen(thing)
            del unstarted
            try:
                raise ValueError(thing)
            except ValueError:
                pass
            return weakref.ref(thing)

        return use(Thing())()

    gc.disable()
    try:
        assert observe(natively, program)["result"] is None
        assert observe(interpreted, program)["result"] is None
    finally:
        gc.enable()


def test_deep_recursion_does_not_use_our_stack():
    def program(log):
        def down(n):
            return 0 if n == 0 else 1 + down(n - 1)

        return down(700)

    assert observe(interpreted, program) == observe(natively, program)


def test_keyword_given_twice():
    """Not among the programs: while an exception is handled, CPython 3.11 raises its internal KeyError."""

    def program(log):
        def f(**kwargs):
            return kwargs

        for call in (
            lambda: f(a=1, **{"a": 2}),
            lambda: dict(**{"x": 1}, **{"x": 2}),
            lambda: [].sort(key=1, **{"key": 2}),
        ):
            try:
                call()
            except TypeError as error:
                log.append(str(error).replace(__name__, ""))

    assert observe(interpreted, program) == observe(natively, program)
