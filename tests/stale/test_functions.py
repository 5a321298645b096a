"""Functions, globals, builtins and modules that change between calls: code, closures, names that appear."""
from __future__ import annotations

import builtins
import functools
import operator
import sys
import types

import pytest
import torch

from tests.stale.cases import Table, edits, exchange, run, user_module

CHANGES = Table()


@pytest.mark.parametrize(("make", "captures", "fullgraph"), CHANGES)
def test_a_function_or_name_changes(make, captures, fullgraph) -> None:
    run(make, captures, fullgraph)


def scaler(factor):
    def scale(x):
        return x * factor
    return scale


# --- code, defaults and closures

@CHANGES.add()
def code_of_a_helper():
    def helper(x):
        return x + 1
    return (lambda x: helper(x)), *exchange(helper, "__code__", (lambda x: x * 5).__code__)


@CHANGES.add(captures=None)
def code_of_the_program():
    def program(x):
        return x + 1
    return program, *exchange(program, "__code__", (lambda x: x * 5).__code__)


@CHANGES.add()
def code_of_a_generator():
    def steps():
        yield 1
        yield 2

    def fewer():
        yield 5
    return (lambda x: sum((x * i for i in steps()), x)), *exchange(steps, "__code__", fewer.__code__)


@CHANGES.add()
def code_of_a_decorated_function():
    def inner(x):
        return x + 1

    @functools.wraps(inner)
    def outer(x):
        return inner(x) * 2
    return (lambda x: outer(x)), *exchange(inner, "__code__", (lambda x: x * 5).__code__)


@CHANGES.add()
def default_appears():
    def helper(x, factor=2, *rest):
        return x * factor * (1 + len(rest))
    return (lambda x: helper(x)), *exchange(helper, "__defaults__", (3,))


@CHANGES.add()
def default_of_the_program():
    def program(x, factor=2):
        return x + 1 if factor > 2 else x
    return program, *exchange(program, "__defaults__", (3,))


@CHANGES.add()
def keyword_default_appears():
    def helper(x, *, factor=2):
        return x * factor
    return (lambda x: helper(x)), *exchange(helper, "__kwdefaults__", {"factor": 3})


@CHANGES.add()
def function_in_a_cell():
    helper = scaler(2)

    def change():
        nonlocal helper
        helper = torch.relu

    def undo():
        nonlocal helper
        helper = before
    before = helper
    return lambda x: helper(x), change, undo


@CHANGES.add()
def function_in_a_cell_with_another_closure():
    box = types.SimpleNamespace(helper=scaler(2))
    return (lambda x: x + 1 if box.helper(1) > 2 else x), *exchange(box, "helper", scaler(3))


@CHANGES.add()
def cell_is_emptied():
    factor = 2

    def program(x):
        try:
            return x * factor
        except NameError:
            return x

    def change():
        nonlocal factor
        del factor

    def undo():
        nonlocal factor
        factor = 2
    return program, change, undo


@CHANGES.add()
def contents_of_a_cell_through_the_cell():
    factor = 2

    def helper(x):
        return x + 1 if factor > 2 else x
    cell = helper.__closure__[0]
    return (lambda x: helper(x)), *exchange(cell, "cell_contents", 3)


@CHANGES.add(captures=1)
def helper_is_replaced_by_one_with_the_same_code():
    box = types.SimpleNamespace(helper=scaler(2))
    return (lambda x: (x + 1, box.helper(2))), *exchange(box, "helper", scaler(3))


@CHANGES.add()
def attribute_of_a_function_appears():
    def helper(x):
        return x + getattr(helper, "bias", 1)
    return lambda x: helper(x), lambda: setattr(helper, "bias", 2), lambda: delattr(helper, "bias")


@CHANGES.add()
def wrapped_partial():
    box = types.SimpleNamespace(helper=functools.partial(torch.sum, dim=0))
    return (lambda x: box.helper(x)), *exchange(box, "helper", functools.partial(torch.sum, dim=1))


@CHANGES.add()
def function_of_a_partial():
    box = types.SimpleNamespace(helper=functools.partial(scaler(2)))
    return (lambda x: box.helper(x)), *exchange(box, "helper", functools.partial(lambda x: x * 5))


@CHANGES.add()
def builtin_in_a_variable():
    box = types.SimpleNamespace(helper=torch.relu)
    return (lambda x: box.helper(x)), *exchange(box, "helper", torch.tanh)


@CHANGES.add()
def operator_in_a_variable():
    box = types.SimpleNamespace(helper=operator.add)
    return (lambda x: box.helper(x, 2)), *exchange(box, "helper", operator.mul)


# --- globals and builtins

@CHANGES.add()
def global_function_is_replaced():
    user = user_module("""
        def helper(x): return x + 1
        def program(x): return helper(x)
    """)
    return user.program, *exchange(user, "helper", scaler(3))


@CHANGES.add()
def global_is_deleted():
    user = user_module("""
        factor = 2
        def program(x):
            try:
                return x * factor
            except NameError:
                return x
    """)
    return user.program, lambda: delattr(user, "factor"), lambda: setattr(user, "factor", 2)


@CHANGES.add()
def global_appears():
    user = user_module("""
        def program(x):
            try:
                return x * factor
            except NameError:
                return x
    """)
    return user.program, *edits(user, "factor", 3)


@CHANGES.add()
def global_appears_in_globals():
    user = user_module("def program(x): return x + 1 if 'factor' in globals() else x")
    return user.program, *edits(user, "factor", 3)


@CHANGES.add()
def builtin_is_shadowed_by_a_global():
    user = user_module("def program(x): return x * len('abc')")
    return user.program, *edits(user, "len", lambda text: 7)


@CHANGES.add()
def builtin_of_a_loop_is_shadowed():
    user = user_module("""
        def program(x):
            for i in range(2):
                x = x * (i + 2)
            return x
    """)
    return user.program, *edits(user, "range", lambda n: [5])


@CHANGES.add()
def builtin_is_shadowed_in_a_helper():
    user = user_module("""
        def helper(x): return x * max(1, 2)
        def program(x): return [helper(y) for y in x]
    """)
    return user.program, *edits(user, "max", min)


@CHANGES.add()
def builtin_name_is_replaced():
    builtins.capture_test_helper = scaler(2)
    user = user_module("def program(x): return capture_test_helper(x)")
    return user.program, *exchange(builtins, "capture_test_helper", lambda x: x * 5)


@CHANGES.add()
def unshadowed_builtin_name_is_shadowed():
    builtins.capture_test_helper = lambda x: x * 2
    user = user_module("def program(x): return capture_test_helper(x)")
    return user.program, *edits(user, "capture_test_helper", lambda x: x * 3)


@CHANGES.add()
def class_in_a_global_is_replaced():
    user = user_module("""
        class Layer:
            def apply(self, x): return x + 1
        class Other:
            def apply(self, x): return x * 5
        def program(x): return Layer().apply(x)
    """)
    return user.program, *exchange(user, "Layer", user.Other)


@CHANGES.add(captures=1)
def unrelated_global_changes():
    user = user_module("""
        factor, other = 2, 1
        def program(x): return x * factor
    """)
    return user.program, *exchange(user, "other", 2)


@CHANGES.add()
def global_number_becomes_a_tensor():
    user = user_module("""
        factor = 2.0
        def program(x): return x * factor
    """)
    return user.program, *exchange(user, "factor", torch.ones(3))


@CHANGES.add(captures=1)
def global_tensor_is_replaced():
    user = user_module("def program(x): return x * factor", factor=torch.full((3,), 2.0))
    return user.program, *exchange(user, "factor", torch.full((3,), 3.0))


@CHANGES.add()
def global_tensor_gets_another_shape():
    user = user_module("def program(x): return x * factor", factor=torch.full((3,), 2.0))
    return user.program, *exchange(user, "factor", torch.full((1,), 3.0))


# --- modules of Python

@CHANGES.add()
def function_of_a_user_module():
    user = user_module("def helper(x): return x + 1")
    return (lambda x: user.helper(x)), *exchange(user, "helper", lambda x: x * 5)


@CHANGES.add()
def function_of_a_user_module_calls_another():
    user = user_module("""
        def inner(x): return x + 1
        def helper(x): return inner(x)
    """)
    return (lambda x: user.helper(x)), *exchange(user, "inner", lambda x: x * 5)


@CHANGES.add()
def torch_function_of_a_user_module():
    user = user_module("", activation=torch.relu)
    return (lambda x: user.activation(x)), *exchange(user, "activation", torch.tanh)


@CHANGES.add()
def functional_is_monkey_patched():
    functional = torch.nn.functional
    return (lambda x: functional.relu(x)), *exchange(functional, "relu", lambda x, inplace=False: x * 5)


@CHANGES.add()
def functional_behind_a_layer_is_monkey_patched():
    layer = torch.nn.ReLU()
    return (lambda x: layer(x)), *exchange(torch.nn.functional, "relu", lambda x, inplace=False: x * 5)


@CHANGES.add()
def torch_is_monkey_patched():
    return (lambda x: torch.relu(x)), *exchange(torch, "relu", lambda x: x * 5)


@CHANGES.add()
def tensor_method_appears():
    def change():
        torch.Tensor.capture_test_method = lambda self: self * 5

    def undo():
        del torch.Tensor.capture_test_method
    return lambda x: x.capture_test_method() if hasattr(x, "capture_test_method") else x + 1, change, undo


@CHANGES.add()
def tensor_method_is_monkey_patched():
    def undo():
        del torch.Tensor.relu
    return lambda x: x.relu(), lambda: setattr(torch.Tensor, "relu", lambda self: self * 5), undo


@CHANGES.add()
def module_attribute_appears():
    user = user_module("")
    return lambda x: x + 1 if hasattr(user, "flag") else x, *edits(user, "flag", 1)


@CHANGES.add()
def imported_module_is_replaced():
    name = "capture_test_layers"
    first = user_module("def helper(x): return x + 1", name)
    second = user_module("def helper(x): return x * 5", name)
    sys.modules[name] = first

    def program(x):
        import capture_test_layers
        return capture_test_layers.helper(x)

    def put(module):
        sys.modules[name] = module
    return program, lambda: put(second), lambda: put(first)


@CHANGES.add()
def module_class_is_replaced():
    class Lazy(types.ModuleType):
        factor = 3
    user = user_module("factor = 2")
    del user.factor
    return (lambda x: x * getattr(user, "factor", 2)), *exchange(user, "__class__", Lazy)


@CHANGES.add()
def getattr_of_a_user_module_appears():
    user = user_module("")
    return lambda x: x * getattr(user, "factor", 2), *edits(user, "__getattr__", lambda name: 3)
