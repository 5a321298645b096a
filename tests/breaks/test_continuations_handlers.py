"""Programs that are cut inside of `try` and `with`, by calls that return and by calls that raise."""
from __future__ import annotations

import contextlib
import sys
import traceback

import pytest
import torch

import capture
from tests.breaks.cuts import Cuts, X, compared, outside, raises, run
from tests.helpers import call, check

CUTS = Cuts()


# -- exceptions --------------------------------------------------------------------------------------------------------

@CUTS.add()
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


@CUTS.add()
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


@CUTS.add(2)         # what a traceback holds is read outside of the trace
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


@CUTS.add()
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


@CUTS.add()
def raised_again(x):
    try:
        try:
            raises(ValueError)
        except ValueError:
            x = x * 3
            raise
    except ValueError as error:
        return x, str(error)


@CUTS.add()
def raised_from(x):
    try:
        try:
            raises(ValueError)
        except ValueError as error:
            raise RuntimeError("outer") from error
    except RuntimeError as error:
        return x + 1, str(error), str(error.__cause__), error.__context__ is error.__cause__


@CUTS.add()
def inside_of_except(x):
    try:
        raise ValueError("own")
    except ValueError as error:
        y = outside(x * 2)
        text = str(error)
    return y, text


@CUTS.add(2)
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


@CUTS.add()
def fails_inside_of_except(x):
    try:
        try:
            raise ValueError("first")
        except ValueError:
            raises(KeyError)
    except KeyError as error:
        return x * 2, repr(error.__context__)


@CUTS.add()
def inside_of_finally(x):
    log = []
    try:
        log.append(1)
    finally:
        log.append(outside(2))
    return x + 1, log


@CUTS.add()
def inside_of_finally_that_returns(x):
    try:
        return x + 1
    finally:
        outside(None, x)


@CUTS.add()
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


@CUTS.add(2)
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


@CUTS.add()
def handler_in_a_loop_goes_on(x):
    for i in range(3):
        try:
            if i == 1:
                raises(ValueError)
            x = x + 1
        except ValueError:
            continue
    return x


class Countdown:
    """An iterator that is cut at every step, and may fail."""

    def __init__(self, n, fails_at=-1):
        self.n, self.fails_at = n, fails_at

    def __iter__(self):
        return self

    def __next__(self):
        n = outside(self.n)
        if n == self.fails_at:
            raise KeyError("failed")
        if n == 0:
            raise StopIteration
        self.n = n - 1
        return n


@CUTS.add(7, captures=6)
def in_the_steps_of_an_iterator(x):
    for n in Countdown(3):
        x = x * n
    else:
        x = x + 1
    return x, [k for k in Countdown(2)]


@CUTS.add(7, captures=5)
def in_the_steps_of_an_iterator_that_fails(x):
    seen = []
    try:
        for n in Countdown(3, fails_at=1):
            for m in Countdown(1):
                seen.append((n, m))
        seen.append("not reached")
    except KeyError as error:
        return x * 2, seen, repr(error.__context__), str(error)
    finally:
        seen.append(repr(sys.exception()))


@CUTS.add(2)
def an_iterator_that_fails_in_a_handler(x):
    try:
        raise ValueError("own")
    except ValueError:
        try:
            for n in Countdown(2, fails_at=1):
                x = x + n
        except KeyError as error:
            return x, repr(error.__context__), repr(sys.exception())


@CUTS.natively
def except_star(x):
    try:
        raises(ValueError)
    except* ValueError as group:
        return_value = len(group.exceptions)
    return x * 2, return_value


@CUTS.add()
def a_tensor_operation_that_fails(x):
    try:
        return x + torch.ones(7)
    except RuntimeError as error:
        return x * 2, "size" in str(error)


@CUTS.add()
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


@CUTS.add()
def in_a_with_block(x):
    log = []
    with Manager(log) as manager:
        y = outside(x * 2)
    return y, log, manager.suppresses


@CUTS.add()
def in_nested_with_blocks(x):
    log = []
    with Manager(log) as first, Manager(log) as second:
        y = outside(x * 2)
        log.append(first is not second)
    return y, log


@CUTS.add()
def fails_in_a_with_block(x):
    log = []
    try:
        with Manager(log):
            raises(ValueError)
    except ValueError as error:
        return x * 2, str(error), log


@CUTS.add()
def fails_in_a_with_block_that_suppresses(x):
    log = []
    with Manager(log, suppresses=True):
        raises(ValueError)
        log.append("not reached")
    return x * 2, log


@CUTS.add(2)
def entering_and_leaving_are_cut(x):
    with OutsideManager([]) as value:
        y = x * value
    return y + 1


@CUTS.add()
def in_no_grad(x):
    w = x.clone().requires_grad_()
    with torch.no_grad():
        outside(None, torch.is_grad_enabled())
        y = w * 2
    return y, w * 2, torch.is_grad_enabled()


@CUTS.add(2)
def grad_modes_nested(x):
    w = x.clone().requires_grad_()
    with torch.no_grad():
        a = outside(1) * w
        with torch.enable_grad():
            b = outside(2) * w
        c = w * 3
    return a, b, c, w * 4


@CUTS.add()
def fails_in_no_grad(x):
    w = x.clone().requires_grad_()
    try:
        with torch.no_grad():
            raises(ValueError)
    except ValueError:
        pass
    return w * 2, torch.is_grad_enabled()


@CUTS.add()
def in_autocast(x):
    with torch.autocast("cpu", torch.bfloat16):
        a = x @ x
        outside(None, torch.is_autocast_enabled("cpu"))
        b = a @ x
    return a, b, x @ x


@CUTS.add()
def decorated_with_no_grad(x):
    @torch.no_grad()
    def inner(t):
        t = t * 2
        return outside(t) + 1
    w = x.clone().requires_grad_()
    return inner(w), w * 2


@CUTS.add()
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


@CUTS.add()
def suppressed(x):
    with contextlib.suppress(ValueError):
        raises(ValueError)
    return x * 2


@pytest.mark.parametrize(("program", "options"), CUTS)
def test_each_construct(program, options) -> None:
    run(program, options)


class Kind:
    def __init__(self, cls):
        self.cls = cls


@capture.disable
def raise_kind(kind):
    raise kind.cls("text")


def test_another_exception_takes_another_handler() -> None:
    def program(x, kind):
        try:
            raise_kind(kind)
        except ValueError:
            return x * 2
        except (KeyError, TypeError) as error:
            return x * 3, str(error)
        except LookupError:
            return x * 4

    def again(x, kind):
        try:
            try:
                raise_kind(kind)
            except Exception:
                outside()
                raise
        except ValueError:
            return x * 2
        except LookupError as error:
            return x * 4, repr(error)
    for function in (program, again):
        calls = [call(X, Kind(cls)) for cls in (ValueError, KeyError, ValueError, IndexError, TypeError, KeyError)]
        compared(function, *calls, captures=None)


def test_a_call_that_raises_at_some_times_only() -> None:
    def program(x, kind):
        try:
            if kind.cls is not None:
                raise_kind(kind)
            y = outside(x * 2)
        except ValueError:
            y = x
        return y + 1
    compared(program, *(call(X, Kind(cls)) for cls in (None, ValueError, None, ValueError, KeyError, None)), captures=None)


def test_the_text_of_a_traceback() -> None:
    def program(x):
        try:
            x = (x + 1, raises(ValueError))[0]          # the call is marked, not the line
        except ValueError:
            return x * 2, traceback.format_exc()
    compared(program, call(X), call(X), call(X), captures=None)


class Expecting:
    """Passes on what it is given of an exception behind a cut, and takes one of a class."""

    def __init__(self, expected):
        self.expected = expected

    def __enter__(self):
        return self

    def __exit__(self, cls, exception, traceback):
        outside(None, cls.__name__)
        return issubclass(cls, self.expected)


@pytest.mark.parametrize("turn", [1, -1])
def test_exceptions_of_several_classes_leave_one_block(turn: int) -> None:
    """Which class `__exit__` is given decides only behind the cut."""
    expected = [(9, IndexError), ("a", TypeError), (9, IndexError), (None, TypeError)][::turn]

    def program(x):
        for dim, error in expected:
            with Expecting(error):
                x.unsqueeze(dim)
        return x + 1
    check(lambda: program, *[call(X)] * 3, captures=None, fullgraph=False)
