"""Programs: exceptions."""
from __future__ import annotations

import contextlib
import sys
import types

from tests.interp.programs.base import Manager, program


@program
def try_forms(log):
    def run(kind):
        try:
            log.append("try")
            if kind:
                raise kind("x")
        except (KeyError, IndexError) as error:
            log.append(("lookup", type(error).__name__, repr(sys.exception())))
        except ValueError:
            log.append("value")
            raise
        else:
            log.append("else")
            return "else"
        finally:
            log.append(("finally", repr(sys.exception())))
        return "end"
    for kind in (None, KeyError, IndexError):
        log.append(run(kind))
    for kind in (ValueError, TypeError):
        try:
            run(kind)
        except Exception as error:
            log.append(type(error).__name__)
    log.append(repr(sys.exception()))

    def overriding():
        for i in range(3):
            try:
                if i == 1:
                    return "returned"
                continue
            finally:
                log.append(i)
                if i == 1:
                    break
        return "after"
    return overriding()


@program
def uncaught(log):
    def f(n):
        if n == 0:
            return 1 / n
        return f(n - 1)
    f(3)


@program
def uncaught_multiline(log):
    def f(a,
          b):
        return (a
                + b)
    value = f(
        1,
        "2",
    )
    return value


@program
def raising(log):
    def attempt(f):
        try:
            f()
        except BaseException as error:
            log.append((type(error).__name__, error.args, repr(error.__cause__), repr(error.__context__),
                        error.__suppress_context__))

    def chain():
        try:
            raise KeyError("k")
        except KeyError as error:
            raise ValueError("v") from error

    def implicit():
        try:
            raise KeyError("k")
        except KeyError:
            raise ValueError("v")

    def from_none():
        try:
            {}["k"]
        except KeyError:
            raise ValueError from None

    def from_class():
        raise ValueError("v") from KeyError

    def in_finally():
        try:
            raise KeyError("k")
        finally:
            raise ValueError("v")

    def nothing():
        raise

    def not_exception():
        raise 5

    def bad_cause():
        raise ValueError from 5

    def odd_class():
        class Odd(Exception):
            def __new__(cls):
                return 5
        raise Odd

    def called():
        def g():
            return 1 / 0
        try:
            g()
        except ZeroDivisionError:
            g()

    def nested():
        try:
            try:
                raise KeyError(1)
            except KeyError:
                try:
                    raise IndexError(2)
                except IndexError:
                    log.append(repr(sys.exception()))
                log.append(repr(sys.exception()))
                raise
        except KeyError as e:
            log.append(repr(e.__context__))
            raise RuntimeError from e

    def custom():
        class Mine(Exception):
            def __init__(self, a, *, b=2):
                super().__init__(a)
                self.b = b
        raise Mine(1, b=3)

    def bad_clause():
        try:
            raise KeyError
        except 5:
            pass

    def bad_clauses():
        try:
            raise KeyError
        except (ValueError, 5):
            pass

    def exits():
        raise SystemExit(3)
    for f in (chain, implicit, from_none, from_class, in_finally, nothing, not_exception, bad_cause, odd_class, called, nested,
              custom, bad_clause, bad_clauses, exits):
        attempt(f)


@program
def chained_uncaught(log):
    def g():
        raise KeyError("inner")
    try:
        g()
    except KeyError as error:
        try:
            raise ValueError("middle")
        except ValueError:
            raise RuntimeError("outer") from error


@program
def reraised_uncaught(log):
    def g():
        try:
            return [][0]
        except KeyError:
            log.append("no")
        finally:
            log.append("finally")
    try:
        g()
    except IndexError:
        log.append("once")
        raise


@program
def raised_by_helper(log):
    def reraise():
        raise
    try:
        1 / 0
    except ZeroDivisionError:
        reraise()


@program
def stored_exception(log):
    saved = None
    try:
        raise ValueError("a")
    except ValueError as error:
        saved = error
    try:
        error
    except NameError as e:
        log.append(str(e))
    try:
        raise saved
    except ValueError as again:
        log.append(again is saved)
    try:
        raise KeyError
    except KeyError:
        raise saved


@program
def with_forms(log):
    with Manager(log) as m, Manager(log):
        log.append(m is not None)
    with Manager(log, swallows=True):
        raise ValueError("swallowed")

    def returning():
        with Manager(log):
            return "value"
    log.append(returning())
    for _ in range(2):
        with Manager(log):
            break
    for fails_on in ("enter", "exit"):
        try:
            with Manager(log, fails_on=fails_on):
                raise KeyError("body")
        except Exception as error:
            log.append((type(error).__name__, repr(error.__context__)))
    for manager in (5, types.SimpleNamespace(__enter__=1)):
        try:
            with manager:
                pass
        except TypeError as error:
            log.append(str(error))

    class Half:
        def __enter__(self):
            pass
    try:
        with Half():
            pass
    except TypeError as error:
        log.append(str(error))
    with contextlib.suppress(KeyError), contextlib.ExitStack() as stack:
        stack.callback(log.append, "callback")
        {}["missing"]

    @contextlib.contextmanager
    def generated():
        log.append("before")
        try:
            yield 5
        except KeyError as error:
            log.append(("inside", repr(error), repr(error.__context__)))
        finally:
            log.append("after")
    with generated() as five:
        raise KeyError(five)
    log.append(repr(sys.exception()))
    with Manager(log):
        raise ValueError("leaves")


@program
def except_star(log):
    def run(exception, inner=None):
        try:
            try:
                raise exception
            except* ValueError as group:
                log.append(("value", type(group).__name__, [repr(e) for e in group.exceptions], repr(sys.exception())))
                if inner == "raise":
                    raise KeyError("new")
                if inner == "reraise":
                    raise
            except* (TypeError, OSError) as group:
                log.append(("type", [repr(e) for e in group.exceptions]))
            else:
                log.append("else")
            finally:
                log.append(repr(sys.exception()))
        except BaseException as error:
            log.append((type(error).__name__, str(error), [repr(e) for e in getattr(error, "exceptions", ())],
                        repr(error.__context__)))
    run(ExceptionGroup("g", [ValueError(1), TypeError(2)]))
    run(ExceptionGroup("g", [ValueError(1), KeyError(2), ExceptionGroup("h", [ValueError(3), IndexError(4)])]))
    run(ValueError("naked"))
    run(KeyError("unmatched"))
    run(ExceptionGroup("g", [ValueError(1), TypeError(2)]), "raise")
    run(ExceptionGroup("g", [ValueError(1), KeyError(2)]), "raise")
    run(ExceptionGroup("g", [ValueError(1), TypeError(2), KeyError(3)]), "reraise")
    run(ValueError("naked"), "reraise")
    run(ValueError("naked"), "raise")
    try:
        try:
            raise ValueError
        except* ExceptionGroup:
            pass
    except TypeError as error:
        log.append(str(error))
    try:
        pass
    except* ValueError:
        pass
    log.append(repr(sys.exception()))
    try:
        raise ExceptionGroup("last", [ValueError(1), KeyError(2)])
    except* ValueError:
        pass
