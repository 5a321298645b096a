"""What logging reads of loggers, handlers and formatters may be objects of the program, asked as often as in eager mode."""
from __future__ import annotations

import io
import logging
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.helpers import call, check

X = torch.ones(2)
PARTS: dict[str, Callable[[logging.Logger], Any]] = {
    "logger": lambda logger: logger, "parent": lambda logger: logger.parent, "manager": lambda logger: logger.manager,
    "handler": lambda logger: logger.handlers[0], "formatter": lambda logger: logger.handlers[0].formatter}
LEVELS = logging.DEBUG, logging.WARNING


class Asked:
    """Answers as another object does, and counts how often it is asked."""

    def __init__(self, value: Any, log: list[str]) -> None:
        self.value, self.log = value, log

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.log.append(name)
        return getattr(self.value, name)

    def __bool__(self) -> bool:
        self.log.append("bool")
        return bool(self.value)

    def __hash__(self) -> int:
        self.log.append("hash")
        return hash(self.value)


def _answering(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any) -> Any:
        self.log.append(name)
        return getattr(type(self.value), name)(self.value, *args)
    return method


for _name in "__eq__ __lt__ __le__ __gt__ __ge__ __len__ __iter__ __getitem__ __setitem__ __contains__ __mod__ __str__".split():
    setattr(Asked, _name, _answering(_name))


def world() -> Any:
    parent = logging.Logger("parent", logging.INFO)
    logger = logging.Logger("logger")
    logger.parent, logger.manager = parent, logging.Manager(logging.RootLogger(logging.WARNING))
    handler = logging.StreamHandler(io.StringIO())
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    parent.addHandler(logging.StreamHandler(io.StringIO()))

    def program(x, level):
        try:
            logger.log(level, "text")
        except (AttributeError, TypeError, ValueError) as error:
            return x, str(error)
        return x + len(log)
    log: list[str] = []
    return program, types.SimpleNamespace(logger=logger, log=log)


VALUES: dict[str, Callable[[Any, list[str]], Any]] = {
    "asked": Asked, "none": lambda value, log: None, "text": lambda value, log: "text"}
NAMES = [(part, name) for part, find in PARTS.items() for name in vars(find(world()[1].logger)) if name != "lock"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("part, name", NAMES)
def test_what_logging_reads_is_something_else(part: str, name: str, value: str, level: int) -> None:
    calls = call(X, level), call(X, level)

    def change(state: Any) -> None:
        owner = PARTS[part](state.logger)
        vars(owner)[name] = VALUES[value](vars(owner)[name], state.log)

    def forget(state: Any) -> None:
        if type(state.logger._cache) in (dict, Asked):
            state.logger._cache.clear()
    check(world, *calls, change, *calls, forget, *calls, captures=None, fullgraph=False)
    check(world, change, *calls, forget, *calls, captures=None, fullgraph=False)


REFUSING: dict[str, Callable[[], Any]] = {
    "a number": lambda: 5, "a class of C's": lambda: int, "an object without a filter": object, "no record": lambda: len}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("filtered", ["logger", "handler", "parent"])
@pytest.mark.parametrize("name", REFUSING)
def test_a_filter_that_raises(name: str, filtered: str, level: int) -> None:
    """The program catches what a call of logging raises: on a hit, nothing would."""
    calls = call(X, level), call(X, level)

    def change(state: Any) -> None:
        owner = PARTS[filtered](state.logger)
        (owner if filtered != "parent" else owner.handlers[0]).filters.append(REFUSING[name]())
    check(world, *calls, change, *calls, captures=None, fullgraph=False)
    check(world, change, *calls, captures=None, fullgraph=False)


@pytest.mark.parametrize("lock", [5, object()])
def test_a_handler_whose_lock_is_none(lock: Any) -> None:
    calls = call(X, logging.WARNING), call(X, logging.WARNING)

    def change(state: Any) -> None:
        state.logger.handlers[0].lock = lock
    check(world, *calls, change, *calls, captures=None, fullgraph=False)


@pytest.mark.parametrize("level", [torch.tensor(40), 40.5, "text", True], ids=lambda level: type(level).__name__)
def test_a_level_that_is_no_level(level: Any) -> None:
    """What logging refuses is not asked for: the logger would keep the answer."""
    check(world, call(X, 10), call(X, level), call(X, level), call(X, 10), captures=None, fullgraph=False)
