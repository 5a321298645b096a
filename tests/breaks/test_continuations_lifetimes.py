"""What is freed behind a cut, and when: continuations, their entries, and objects of the program."""
from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import capture
from tests.breaks.cuts import LOG, Cuts, X, compared, outside, run
from tests.helpers import call

CUTS = Cuts()


# -- what is freed -----------------------------------------------------------------------------------------------------

def test_a_compiled_function_is_freed_with_its_continuations() -> None:
    def make():
        def program(x):
            for _ in range(2):
                x = outside(x) + 1
            return x
        compiled = capture.compile(program)
        compiled(X), compiled(X)
        units = [weakref.ref(unit) for unit in capture.api.unit_of(compiled).family]
        return [weakref.ref(program), weakref.ref(compiled), *units]
    references = make()
    gc.collect()
    assert [r() for r in references if r() is not None] == []


def test_entries_of_continuations_die_with_the_objects_of_the_program() -> None:
    class Owner:
        pass

    @capture.compile
    def program(x, owner):
        outside()
        return x * owner.scale
    owner = Owner()
    owner.scale = 2
    program(X, owner), program(X, owner)
    reference = weakref.ref(owner)
    del owner
    LOG.clear()
    gc.collect()
    assert reference() is None


ALIVE: list[bool] = []


class Owner:
    n = 2


OWNER = Owner()
PROXY = weakref.proxy(OWNER)


@CUTS.add()
def dead_with_a_proxy(x):
    """A proxy, asked for its callback, asks what it stands for."""
    box = SimpleNamespace(owner=OWNER)
    y = x * box.owner.n
    outside(None, x)
    return y


class Node:
    pass


@CUTS.add()
def weakly_referred_to(x):
    """Dead, but bound: in CPython the object lives on."""
    node = Node()
    node.part = Node()
    references = weakref.ref(node), weakref.ref(node.part)
    y = x * 2
    outside(None, *(reference() is None for reference in references))
    return y


@CUTS.add()
def a_tensor_weakly_referred_to(x):
    doubled = x * 2
    reference = weakref.ref(doubled)
    outside()
    return x + 1, reference() is None


@CUTS.add()
def parts_weakly_referred_to(x):
    module = torch.nn.Linear(2, 2)
    references = [weakref.ref(parameter) for parameter in module.parameters()]
    outside()
    return x + 1, [reference() is None for reference in references]


@CUTS.natively
def a_module_whose_hook_refers_to_it(x):
    module, leaf = torch.nn.Sigmoid(), x.clone().requires_grad_()
    module.register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 2,))
    module(leaf).backward(torch.ones_like(x))
    return leaf.grad + 1


@CUTS.natively
def an_old_hook_that_refers_to_its_module(x):
    module, leaf = torch.nn.Sigmoid(), x.clone().requires_grad_()
    module.register_backward_hook(lambda module, inputs, outputs: (inputs[0] * 2,))
    module(leaf).backward(torch.ones_like(x))
    return leaf.grad + 1


@pytest.mark.parametrize(("program", "options"), CUTS)
def test_each_program(program, options) -> None:
    run(program, options)


WATCHED: list[weakref.ref] = []


@capture.disable
def watch(t):
    WATCHED.append(weakref.ref(t))


@capture.disable
def look():
    ALIVE.append([r() is not None for r in WATCHED])


def dead_locals(x):
    a = x * 2
    watch(a)
    b = a + 1
    a = None
    look()
    return b


def dead_arguments(x):
    def inner(t):
        watch(t)
        u = t + 1
        del t
        look()
        return u
    return inner(x * 2)


def dead_in_a_caller(x):
    def inner(t):
        look()
        return t + 1
    a = x * 2
    watch(a)
    b = a + 1
    del a
    return inner(b)


def dead_in_a_loop(x):
    for i in range(3):
        a = x * i
        watch(a)
        x = a + 1
        del a
        look()
    return x


def dead_after_its_last_use_outside(x):
    watch(x + 1)
    look()
    return x


@pytest.mark.parametrize("program",
                         [dead_locals, dead_arguments, dead_in_a_caller, dead_in_a_loop, dead_after_its_last_use_outside],
                         ids=lambda program: program.__name__)
def test_what_is_dead_is_freed_as_early_as_in_eager(program) -> None:
    def run_once(function):
        ALIVE.clear(), WATCHED.clear()
        gc.disable()
        try:
            function(X)
        finally:
            gc.enable()
        return list(ALIVE)
    compiled = capture.compile(program, backend="eager")
    eager = run_once(program)
    run_once(compiled)                              # a capture may hold more, for as long as it lasts
    for _ in range(2):
        ours = run_once(compiled)
        # CPython itself frees arguments later where a frame hook is installed, as other tests may have left one.
        assert [len(look) for look in ours] == [len(look) for look in eager]
        assert all(mine <= its for look, theirs in zip(ours, eager) for mine, its in zip(look, theirs)), (ours, eager)
    assert capture.stats(compiled).native_calls == 0


class Guard:
    """Something happens when it dies: in `__del__`, or in a finalizer."""

    def __init__(self, log, finalizer):
        if finalizer:
            weakref.finalize(self, log.append, "finalized")
        else:
            self.log = log

    def __del__(self):
        if hasattr(self, "log"):
            self.log.append("deleted")


@pytest.mark.parametrize("finalizer", [False, True])
@pytest.mark.parametrize("wrapped", [False, True])
def test_what_does_something_when_it_dies_lives_on(finalizer, wrapped) -> None:
    def program(x):
        log = []
        guard = [Guard(log, finalizer)] if wrapped else Guard(log, finalizer)
        outside(None, len(log))
        log.append("used")
        outside(None, *log)
        log.append("left")
        return log
    compared(program, call(X), call(X), call(X), captures=None)


class Plain:
    """An object of the trace to which the program has no weak reference before it breaks."""

    def refer(self):
        outside()
        return weakref.ref(self)


def referred_to_in_a_call(x):
    plain = Plain()
    reference = plain.refer()
    return reference() is not None, x + 1


def referred_to_in_a_call_of_a_part(x):
    parts = [Plain()]
    reference = parts[0].refer()
    return reference() is not None, x + 1


def referred_to_from_the_stack(x):
    plain = Plain()
    reference = (lambda one, two: weakref.ref(one))(plain, outside())
    return reference() is not None, x + 1


@capture.disable
def refer_outside(one):
    return weakref.ref(one[0] if isinstance(one, list) else one)


def referred_to_outside(x):
    plain, part = Plain(), [Plain()]
    references = [refer_outside(plain), refer_outside(part)]
    return [reference() is not None for reference in references], x + 1


def pointed_into_by_a_saved_tensor(x):
    y = torch.ones(2, requires_grad=True) * x
    saved = y.grad_fn._raw_saved_other
    saved.register_hooks(lambda one: one + 1, lambda one: one - 1)
    return saved is None


def pointed_into_by_one_whose_hook_raises(x):
    y = torch.ones(2, requires_grad=True) * x
    error = None
    try:
        y.grad_fn._raw_saved_other.register_hooks(lambda one, two: one, lambda one: one)
    except TypeError as raised:
        error = str(raised)
    return error


def referred_to_by_a_closure(x):
    plain, kept = Plain(), []

    def refer():
        kept.append(plain)
        return weakref.ref(kept.pop())
    outside()
    reference, refer = refer(), None
    return reference() is not None, x + len(kept)


def referred_to_by_a_hook(x):
    layer = nn.Linear(2, 2, bias=False)
    layer.register_full_backward_hook(lambda module, *gradients: outside())
    layer.register_forward_hook(lambda module, *given: outside())
    y = x.detach().clone().requires_grad_()
    layer(y).sum().backward()
    return y.grad


def referred_to_by_a_hook_of_all_modules(x):
    def double(module, gradients, _):
        return tuple(gradient * 2 for gradient in gradients)
    module = nn.Sigmoid()
    y = torch.ones(2, requires_grad=True)
    hook = nn.modules.module.register_module_backward_hook(double)
    try:
        module(y).backward(torch.ones(2))
    finally:
        hook.remove()
    return y.grad


@pytest.mark.filterwarnings("ignore:Using a non-full backward hook")
@pytest.mark.parametrize("program", [
    referred_to_in_a_call, referred_to_in_a_call_of_a_part, referred_to_from_the_stack, referred_to_outside,
    referred_to_by_a_closure, referred_to_by_a_hook, referred_to_by_a_hook_of_all_modules, pointed_into_by_a_saved_tensor,
    pointed_into_by_one_whose_hook_raises], ids=lambda program: program.__name__)
def test_what_is_referred_to_weakly_behind_a_break_lives_on(program, monkeypatch) -> None:
    monkeypatch.setattr(nn.modules.module, "_global_is_full_backward_hook", None)      # the first hook decides for all
    compared(program, call(X), call(X), call(X), captures=None)


@pytest.mark.parametrize("container", [{1, 2}, {1: 1, 2: 2}], ids=["set", "dict"])
def test_an_iterator_over_an_outside_container_that_grew_in_the_same_trace(container) -> None:
    def program(x, items):
        if isinstance(items, set):
            items.add(3)
        else:
            items[3] = 4
        total = 0
        for key in items:
            total += outside(key)
        return x * total
    compared(program, call(X, container), call(X, container), call(X, container), captures=None)
