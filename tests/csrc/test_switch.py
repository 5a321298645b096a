"""`_C.Switch`: calls go to the target of the moment."""
from __future__ import annotations

import functools
import gc
import weakref

import pytest

from capture import _C


def show(*args, **kwargs):
    return args, kwargs


@pytest.mark.parametrize("target", [show, lambda *a, **k: show(*a, **k), type("Callable", (), {"__call__": staticmethod(show)})()])
def test_arguments_and_result_pass_through(target) -> None:
    switch = _C.Switch(target)
    assert switch() == ((), {})
    assert switch(1, 2, key=3) == ((1, 2), {"key": 3})
    assert switch(*range(20), **{"a": 1}) == (tuple(range(20)), {"a": 1})


def test_the_target_can_be_exchanged_while_it_runs() -> None:
    def first():
        switch.target = lambda: "second"
        gc.collect()
        return "first"
    switch = _C.Switch(first)
    del first
    assert [switch(), switch()] == ["first", "second"]


def test_an_exception_passes_through() -> None:
    with pytest.raises(ZeroDivisionError):
        _C.Switch(lambda: 1 // 0)()


@pytest.mark.parametrize("target", [None, 3])
def test_a_target_must_be_callable(target) -> None:
    switch = _C.Switch(show)
    with pytest.raises(TypeError, match="callable"):
        switch.target = target
    with pytest.raises(TypeError, match="callable"):
        _C.Switch(target)
    with pytest.raises(TypeError):
        del switch.target
    assert switch.target is show


def test_it_is_collected_with_its_target() -> None:
    class Owner:
        pass
    owner = Owner()
    owner.switch = _C.Switch(functools.partial(id, owner), owner)
    reference, switch = weakref.ref(owner), weakref.ref(owner.switch)
    del owner
    gc.collect()
    assert reference() is None and switch() is None
