"""Programs that are cut in the midst of every construct of the language, and go on in a continuation.

`outside` is the call that no trace can hold: a cut is a call of it. It tells the state of the program as it is then.
"""
from __future__ import annotations

import contextlib
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import capture
from tests.helpers import call, check

X = torch.tensor([[1.0, -2.0], [3.0, 4.0]])
LOG: list[Any] = []


@capture.disable
def outside(value: Any = None, *seen: Any) -> Any:
    """Returns `value`; notes what else it is given, and the exception being handled."""
    LOG.append([s.detach().clone() if isinstance(s, torch.Tensor) else s for s in seen])
    LOG.append(repr(sys.exception()))
    return value


@capture.disable
def raises(error: type[BaseException] = ValueError, text: str = "from outside") -> None:
    LOG.append(repr(sys.exception()))
    raise error(text)


@capture.disable
def raises_if(x: torch.Tensor) -> int:
    if x.sum() < 0:
        raise KeyError("negative")
    return 3


CASES: list[Any] = []


def cut(cuts: int = 1, captures: int | None = None, ends: int = 1, **options: Any):
    """Registers a program of one tensor. Each call is cut `cuts` times; its `captures` traces, one more than there are cuts unless
    something is repeated, end `ends` times with the program."""
    def register(program):
        CASES.append(pytest.param(program, cuts, cuts + 1 if captures is None else captures, ends, options, id=program.__name__))
        return program
    return register


def runs_natively(program):
    """Registers a program that goes on natively behind its cut."""
    CASES.append(pytest.param(program, 0, None, 0, {}, id=program.__name__))
    return program


def compared(program, *steps: Any, **expected: Any) -> Any:
    """`check` of a program with the calls that it made outside."""
    def make():
        LOG.clear()
        return program, LOG
    return check(make, *steps, fullgraph=False, **expected)




# -- where a break stands ----------------------------------------------------------------------------------------------

@cut()
def at_the_top(x):
    y = x * 2
    k = outside(3, y)
    return y * k, y, x


@cut()
def one_call_deep(x):
    def inner(t):
        t = t + 1
        k = outside(2, t)
        return t * k
    return inner(x * 2) - 1


@cut()
def three_calls_deep(x):
    def first(t, scale):
        u = second(t * scale)
        return u, scale

    def second(t):
        before = t + 1
        return before, third(t, key=before)

    def third(t, *, key):
        return outside(t * 2, key) + key
    return first(x, 3.0)


@cut(2)
def twice_in_one_expression(x):
    return [x, outside(2), x + 1, {"k": outside(3), "x": x}]


@cut(2)
def in_caller_and_callee(x):
    def inner(t):
        return outside(t + 1)
    y = inner(x)
    z = outside(y * 2)
    return y, z


@cut()
def the_result_is_thrown_away(x):
    y = x.exp()
    outside(None, y)
    return y


@cut()
def as_the_last_thing(x):
    return outside(x * 2)


# -- loops -------------------------------------------------------------------------------------------------------------

@cut(3, captures=3)
def for_over_a_list(x):
    for item in [1, 2, 3]:
        x = x * outside(2, item)
    return x


@cut(4, captures=4)         # `total` is a number first
def for_over_a_tuple_of_tensors(x):
    total = 0
    for item in (x, x + 1, x * 2, x - 1):
        total = total + outside(item, 1)
    return total


@cut(5, captures=3)
def for_over_a_range(x):
    for i in range(5):
        x = x + outside(1.0, i)
    return x


@cut(3, captures=3)
def for_over_a_dict(x):
    seen = []
    for key in {"a": 1, "b": 2, "c": 3}:
        seen.append(outside(key))
    return x * 2, seen


@cut(3, captures=3)
def for_over_items(x):
    state = {"a": x, "b": x + 1, "c": x * 2}
    total = []
    for key, value in state.items():
        total.append((key, outside(value) * 2))
    return total


@cut(3, captures=3)
def for_over_values(x):
    total = []
    for value in {"a": x, "b": x + 1, "c": x * 2}.values():
        total.append(outside(value) * 2)
    return total


@cut(3, captures=3)
def for_over_enumerate(x):
    total = []
    for i, value in enumerate([x, x + 1, x * 2], start=5):
        total.append((i, outside(value) + 1))
    return total


@cut(3, captures=3)
def for_over_zip(x):
    total = []
    for a, b, c in zip([x, x + 1, x * 2], (1, 2, 3), "abc"):
        total.append((outside(a), b, c))
    return total


@cut(3, captures=3)
def for_over_reversed(x):
    total = []
    for a in reversed([x, x + 1, x * 2]):
        total.append(outside(a) + 1)
    return total


@cut(3, captures=3)
def for_over_a_string(x):
    text = ""
    for letter in "abc":
        text += outside(letter)
    return x * 2, text


@cut(1, captures=2)
def for_over_a_set(x):
    for member in {7}:
        x = x * outside(2, member)
    return x


@cut(3, captures=4)
def for_over_rows(x):
    total = 0
    for row in torch.cat([x, x[:1]]):
        total = total + outside(row * 2)
    return total


@cut(4, captures=3)
def while_loop(x):
    n = 0
    while n < 4:
        x = x + outside(1.0, n)
        n += 1
    return x, n


@cut(6, captures=5)
def nested_loops_with_two_breaks(x):
    for i in range(2):
        x = outside(x + 1, i)
        for j in range(2):
            x = outside(x * 2, j)
    return x


@cut(3)
def loop_with_else_continue_and_break(x):
    for i in range(10):
        if i == 1:
            continue
        x = outside(x + 1, i)
        if i == 3:
            break
    else:
        x = x * 100
    return x


@cut(3)
def loop_else_is_reached(x):
    for i in range(3):
        x = outside(x + i)
    else:
        x = x * 100
    return x


@cut(2)
def the_iterable_is_broken(x):
    return [t * 2 for t in outside([x, x + 1])], [*outside((x,))]


@cut(3, captures=3)
def in_a_list_comprehension(x):
    k = 2
    return [outside(t) * k for t in (x, x + 1, x + 2)], k


@cut(2)
def in_a_dict_comprehension(x):
    return {name: outside(x + i) for i, name in enumerate("ab")}


@cut(2)
def in_the_condition_of_a_comprehension(x):
    return [t for t in (x, x * 2) if outside(True)]


@cut(4)
def in_a_nested_comprehension(x):
    return [[outside(x + i + j) for j in range(2)] for i in range(2)]


# -- exceptions --------------------------------------------------------------------------------------------------------

@cut()
def in_try_that_succeeds(x):
    log = []
    try:
        y = outside(x * 2)
    except ValueError:
        log.append("except")
    else:
        log.append("else")
    finally:
        log.append("finally")
    return y + 1, log


@cut()
def in_try_that_fails(x):
    log = []
    y = x + 1
    try:
        raises(ValueError)
    except ValueError as error:
        log.append(str(error))
        y = y * 2
    else:
        log.append("else")
    finally:
        log.append("finally")
    return y, log


@cut(2)         # what a traceback holds is read outside of the trace
def fails_through_calls(x):
    def inner(t):
        try:
            return deeper(t + 1)
        finally:
            log.append("inner")

    def deeper(t):
        raises(LookupError, "deep")
        return t
    log = []
    try:
        inner(x)
    except LookupError as error:
        tb, lines = error.__traceback__, []
        while tb is not None:
            lines.append(tb.tb_lineno - tb.tb_frame.f_code.co_firstlineno)
            tb = tb.tb_next
        return x * 2, log, error.args, lines
    return None


@cut()
def the_wrong_handler_first(x):
    try:
        try:
            raises(KeyError)
        except ValueError:
            return x
        finally:
            x = x + 1
    except KeyError:
        return x * 2


@cut()
def raised_again(x):
    try:
        try:
            raises(ValueError)
        except ValueError:
            x = x * 3
            raise
    except ValueError as error:
        return x, str(error)


@cut()
def raised_from(x):
    try:
        try:
            raises(ValueError)
        except ValueError as error:
            raise RuntimeError("outer") from error
    except RuntimeError as error:
        return x + 1, str(error), str(error.__cause__), error.__context__ is error.__cause__


@cut()
def inside_of_except(x):
    try:
        raise ValueError("own")
    except ValueError as error:
        y = outside(x * 2)
        text = str(error)
    return y, text


@cut(2)
def nested_handlers(x):
    try:
        raise ValueError("first")
    except ValueError:
        try:
            outside()
            raise KeyError("second")
        except KeyError as error:
            outside()
            context = repr(error.__context__)
        y = x * 2
    return y, context, repr(sys.exception())


@cut()
def fails_inside_of_except(x):
    try:
        try:
            raise ValueError("first")
        except ValueError:
            raises(KeyError)
    except KeyError as error:
        return x * 2, repr(error.__context__)


@cut()
def inside_of_finally(x):
    log = []
    try:
        log.append(1)
    finally:
        log.append(outside(2))
    return x + 1, log


@cut()
def inside_of_finally_that_returns(x):
    try:
        return x + 1
    finally:
        outside(None, x)


@cut()
def inside_of_finally_while_raising(x):
    def inner(t):
        try:
            raise ValueError("own")
        finally:
            outside(None, t)
    try:
        inner(x)
    except ValueError as error:
        return x * 2, str(error)


@cut(2)
def loop_in_try_in_loop(x):
    log = []
    for i in range(2):
        try:
            if i == 0:
                raises(ValueError)
            x = outside(x * 2)
        except ValueError as error:
            log.append(str(error))
    return x, log


@cut()
def handler_in_a_loop_goes_on(x):
    for i in range(3):
        try:
            if i == 1:
                raises(ValueError)
            x = x + 1
        except ValueError:
            continue
    return x


@runs_natively
def except_star(x):
    try:
        raises(ValueError)
    except* ValueError as group:
        return_value = len(group.exceptions)
    return x * 2, return_value


@cut()
def a_tensor_operation_that_fails(x):
    try:
        return x + torch.ones(7)
    except RuntimeError as error:
        return x * 2, "size" in str(error)


@cut()
def a_reading_that_fails(x):
    try:
        return x.item()
    except RuntimeError:
        return x * 2


# -- with --------------------------------------------------------------------------------------------------------------

class Manager:
    def __init__(self, log, suppresses=False):
        self.log, self.suppresses = log, suppresses

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, cls, error, traceback):
        self.log.append(("exit", cls and cls.__name__, str(error), traceback is not None))
        return self.suppresses


class OutsideManager(Manager):
    def __enter__(self):
        return outside(5)

    def __exit__(self, *details):
        outside(None, len(details))


@cut()
def in_a_with_block(x):
    log = []
    with Manager(log) as manager:
        y = outside(x * 2)
    return y, log, manager.suppresses


@cut()
def in_nested_with_blocks(x):
    log = []
    with Manager(log) as first, Manager(log) as second:
        y = outside(x * 2)
        log.append(first is not second)
    return y, log


@cut()
def fails_in_a_with_block(x):
    log = []
    try:
        with Manager(log):
            raises(ValueError)
    except ValueError as error:
        return x * 2, str(error), log


@cut()
def fails_in_a_with_block_that_suppresses(x):
    log = []
    with Manager(log, suppresses=True):
        raises(ValueError)
        log.append("not reached")
    return x * 2, log


@cut(2)
def entering_and_leaving_are_cut(x):
    with OutsideManager([]) as value:
        y = x * value
    return y + 1


@cut()
def in_no_grad(x):
    w = x.clone().requires_grad_()
    with torch.no_grad():
        outside(None, torch.is_grad_enabled())
        y = w * 2
    return y, w * 2, torch.is_grad_enabled()


@cut(2)
def grad_modes_nested(x):
    w = x.clone().requires_grad_()
    with torch.no_grad():
        a = outside(1) * w
        with torch.enable_grad():
            b = outside(2) * w
        c = w * 3
    return a, b, c, w * 4


@cut()
def fails_in_no_grad(x):
    w = x.clone().requires_grad_()
    try:
        with torch.no_grad():
            raises(ValueError)
    except ValueError:
        pass
    return w * 2, torch.is_grad_enabled()


@cut()
def in_autocast(x):
    with torch.autocast("cpu", torch.bfloat16):
        a = x @ x
        outside(None, torch.is_autocast_enabled("cpu"))
        b = a @ x
    return a, b, x @ x


@runs_natively
def in_inference_mode(x):
    with torch.inference_mode():
        a = x * 2
        outside(None, torch.is_inference_mode_enabled())
        b = a + 1
    return b.is_inference(), a + 0


@cut()
def decorated_with_no_grad(x):
    @torch.no_grad()
    def inner(t):
        t = t * 2
        return outside(t) + 1
    w = x.clone().requires_grad_()
    return inner(w), w * 2


@runs_natively
def a_generator_of_contextlib(x):
    @contextlib.contextmanager
    def manager():
        log.append("enter")
        yield 3
        log.append("exit")
    log = []
    with manager() as k:
        y = outside(x) * k
    return y, log


@cut()
def suppressed(x):
    with contextlib.suppress(ValueError):
        raises(ValueError)
    return x * 2


@pytest.mark.parametrize(("program", "cuts", "captures", "ends", "options"), CASES)
def test_each_construct(program, cuts: int, captures: int, ends: int, options: dict[str, Any]) -> None:
    calls = call(X), call(X), call(X.T.contiguous())
    if captures is None:
        compared(program, *calls, captures=None)
        return
    hits = len(calls) * (cuts + 1) - captures
    stats = compared(program, *calls, captures=captures, hits=hits, breaks=captures - ends, **options)
    assert stats.native_calls == 0, stats
