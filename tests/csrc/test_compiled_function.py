"""`_C.CompiledFunction`: calls go through the guard tree, and are the function's own otherwise."""
import functools
import gc
import inspect
import sys
import types
import weakref

import pytest
import torch

from capture import _C
from capture.guards.guard import Guard, Kind
from capture.guards.tree import GuardTree
from capture.refgraph.source import Local
from tests.threads import in_threads, switching_often


def native(function, args, tree):
    return _C.RUN_NATIVELY


def compiled(function, on_miss=native):
    tree = GuardTree(function.__code__)
    return _C.CompiledFunction(function, tree, on_miss)


def value_guard(index, name, value):
    return Guard(Local(name, index), Kind.VALUE, value)


def add(a, b=2, *rest, c=3, **more):
    return "native", a, b, rest, c, more


def test_a_miss_hands_over_all_argument_locals():
    seen = []
    f = compiled(add, lambda function, args, tree: seen.append((function, args, tree)) or "result")
    assert f(1) == "result"
    assert f(1, 5, 6, 7, c=8, d=9) == "result"
    assert seen == [(add, [1, 2, 3, (), {}], f.tree), (add, [1, 5, 8, (6, 7), {"d": 9}], f.tree)]


def test_a_native_run_is_the_function_itself():
    f = compiled(add)
    assert f(1, c=0) == add(1, c=0)
    assert f(1, 2, 3, x=4) == add(1, 2, 3, x=4)


def test_a_hit_calls_the_mock_with_the_locals_and_the_lifted_values():
    f = compiled(add)
    plain = f.tree.insert([value_guard(0, "a", 1)], [], lambda *args: ("mock", args), None)
    sources = [Local("b", 1), Local("a", 0)]
    lifting = f.tree.insert([value_guard(0, "a", 2)], sources, lambda *args: ("mock", args), None)
    assert f(1, d=1) == ("mock", (1, 2, 3, (), {"d": 1}))
    assert f(2, "b") == ("mock", (2, "b", 3, (), {}, ("b", 2)))
    assert f(3) == add(3)
    assert (plain.hits, lifting.hits) == (1, 1)


WAYS_TO_CALL = [lambda f: f(1), lambda f: f(1, 2), lambda f: f(1, b=2), lambda f: f(b=2, a=1), lambda f: f(*(1, 2), **{})]


@pytest.mark.parametrize("way", ["hit", "miss", "native entry", "native miss", "native after an error", "error"])
def test_every_way_to_give_arguments_leads_there(way):
    def function(a, b=2):
        return "native", a, b

    def fails(a, b):
        raise KeyError("mock")

    mock = {"hit": lambda a, b: ("mock", a, b), "native after an error": fails, "error": fails}.get(way)
    answer = {"native after an error": _C.RUN_NATIVELY}.get(way)
    seen = []
    on_miss = native if way == "native miss" else lambda function, args, tree: seen.append(args) or ("miss", *args)
    f = _C.CompiledFunction(function, GuardTree(function.__code__), on_miss, lambda entry, error: seen.append(error) or answer)
    entry = None if "miss" in way else f.tree.insert([value_guard(0, "a", 1)], [], mock, None)
    for number, run in enumerate(WAYS_TO_CALL, 1):
        if way == "error":
            with pytest.raises(KeyError):
                run(f)
        else:
            assert run(f) == (way.split()[0] if way != "hit" else "mock", 1, 2)
        assert entry is None or entry.hits == number
    assert len(seen) == (0 if way in ("hit", "native entry", "native miss") else len(WAYS_TO_CALL))


def test_many_arguments_and_lifted_values():
    names = [f"a{i}" for i in range(40)]
    space = {}
    exec(f"def many({', '.join(names)}): return None", space)
    f = compiled(space["many"])
    f.tree.insert([], [Local(name, i) for i, name in enumerate(names)], lambda *args: args, None)
    result = f(*range(40))
    assert result[:40] == tuple(range(40)) and result[40] == tuple(range(40))


def test_a_native_entry_counts_and_runs_the_frame():
    f = compiled(add)
    entry = f.tree.insert([value_guard(0, "a", 1)], [], None, "why")
    assert f(1) == add(1)
    assert entry.hits == 1 and entry.payload == "why"


def test_reasons_name_entry_guard_and_values():
    seen = []
    f = compiled(add, lambda function, args, tree: seen.extend(tree.explain(function, args)) or 0)
    guard = value_guard(0, "a", 1)
    entry = f.tree.insert([guard], [], lambda *args: 1, None)
    f(2.5)
    mismatch, = seen
    assert (mismatch.entry, mismatch.guard, str(mismatch)) == (entry, guard, "a: expected 1, got 2.5")


def test_wrong_arguments_raise_what_the_function_raises():
    f = compiled(add)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'a'"):
        f()
    with pytest.raises(TypeError, match="multiple values"):
        f(1, a=2)
    assert f(1) == add(1)       # and nothing stays armed
    assert add(5) == ("native", 5, 2, (), 3, {})


def test_it_behaves_as_a_function():
    f = functools.update_wrapper(compiled(add), add)
    assert f.__name__ == "add" and f.__wrapped__ is add and f.__doc__ is None and callable(f)
    assert inspect.signature(f) == inspect.signature(add)
    f.attribute = 1
    assert f.__dict__["attribute"] == 1
    assert weakref.ref(f)() is f
    assert "add" in repr(f)


def test_it_binds_as_a_method():
    class Thing:
        def __init__(self, x):
            self.x = x

        def get(self, y=1):
            return self.x, y

        get = compiled(get)
        fixed = staticmethod(compiled(add))

        @classmethod
        def make(cls):
            return cls

    thing = Thing(4)
    assert thing.get() == (4, 1) and thing.get(y=3) == (4, 3) and Thing.get(thing, 2) == (4, 2)
    assert thing.get.__self__ is thing and isinstance(Thing.get, _C.CompiledFunction)
    assert thing.fixed(1) == add(1)


def test_only_the_first_frame_is_taken():
    calls = []

    def inner(x):
        return x + 1

    def outer(x):
        return inner(x) + outer.__wrapped__(x - 1) if x else 0

    outer = compiled(outer, lambda function, args, tree: calls.append(args) or _C.RUN_NATIVELY)
    assert outer(3) == 2 + 3 + 4
    assert calls == [[3]]


def test_recursion_goes_through_the_tree_each_time():
    calls = []

    def factorial(n):
        return n * compiled_factorial(n - 1) if n else 1

    def on_miss(function, args, tree):
        calls.append(args[0])
        return _C.RUN_NATIVELY

    compiled_factorial = compiled(factorial, on_miss)
    compiled_factorial.tree.insert([value_guard(0, "n", 2)], [], lambda n: 2, None)
    assert compiled_factorial(5) == 120
    assert calls == [5, 4, 3]


def test_unbounded_recursion_is_a_recursion_error():
    def forever(n):
        return endless(n + 1)

    endless = compiled(forever)
    with pytest.raises(RecursionError):
        endless(0)
    assert endless.tree.entries == []


def test_misses_may_call_compiled_functions():
    f = compiled(add, lambda function, args, tree: ("f", g(1)))
    g = compiled(add, lambda function, args, tree: ("g", add(2)))
    assert f(1) == ("f", ("g", add(2)))


def test_exceptions_pass_through():
    def fail(kind):
        raise kind("from the function")

    f = compiled(fail)
    with pytest.raises(ValueError, match="from the function") as info:
        f(ValueError)
    assert info.traceback[-1].name == "fail"

    def bad_mock(kind):
        raise kind("from the mock")

    f.tree.insert([value_guard(0, "kind", 1)], [], lambda kind: 1 / 0, None)
    with pytest.raises(ZeroDivisionError):
        f(1)

    def bad_miss(function, args, tree):
        raise LookupError("from on_miss")

    with pytest.raises(LookupError, match="from on_miss"):
        compiled(fail, bad_miss)(1)


def test_an_exception_in_a_mock_restores_the_modes():
    def f(x):
        return x

    def cut_short(x):
        torch.set_grad_enabled(False)
        torch.autocast("cpu", dtype=torch.float16, cache_enabled=False).__enter__()
        raise RuntimeError("inside of the graph")

    f = compiled(f)
    f.tree.insert([], [], cut_short, None)
    before = _C.modes()
    with pytest.raises(RuntimeError, match="inside of the graph"):
        f(1)
    assert _C.modes() == before
    assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
    assert torch.autocast_increment_nesting() == 1
    assert torch.autocast_decrement_nesting() == 0


def test_generators_are_frames_like_others():
    def numbers(n):
        yield from range(n)

    f = compiled(numbers)
    assert list(f(3)) == [0, 1, 2]
    f.tree.insert([value_guard(0, "n", 3)], [], lambda n: "mock", None)
    assert f(3) == "mock" and list(f(2)) == [0, 1]


def test_closures_keep_their_cells():
    box = [1]

    def f(x):
        return lambda: (x, box)

    assert compiled(f)(5)() == (5, box)


def test_assigning_code_changes_the_tree():
    def f(x):
        return "old", x

    def g(x):
        return "new", x

    c = compiled(f)
    old_code = f.__code__
    c.tree.insert([], [], lambda x: "old mock", None)
    old_tree = c.tree
    assert c(1) == "old mock" and _C.trees(old_code) == [old_tree]
    f.__code__ = g.__code__
    assert c(1) == ("new", 1)
    assert c.tree is not old_tree and c.tree.entries == [] and _C.trees(g.__code__) == [c.tree]
    f.__code__ = old_code
    assert c(1) == "old mock"


def test_rows_of_a_code_object_live_as_long_as_their_owner():
    def f(x):
        return x

    first, second = compiled(f), compiled(f)
    assert _C.trees(f.__code__) == [first.tree, second.tree]
    del first
    gc.collect()
    assert _C.trees(f.__code__) == [second.tree]
    assert second(1) == 1


def test_cycles_through_a_compiled_function_are_collected():
    class Owner:
        pass

    def make():
        owner = Owner()

        def f(x):
            return owner, x

        owner.compiled = compiled(f, lambda *args: (owner, _C.RUN_NATIVELY)[1])
        owner.compiled.tree.insert([], [], lambda x: owner, owner)
        assert owner.compiled(1) is owner
        return weakref.ref(owner)

    gone = make()
    gc.collect()
    assert gone() is None


def test_threads_do_not_disturb_each_other():
    def f(x, n):
        return sum(range(n)) + x

    c = compiled(f)
    c.tree.insert([value_guard(0, "x", 1)], [], lambda x, n: -1, None)

    def work(number):
        x = (0, 1, 1, 2)[number]
        for i in range(3000):
            assert c(x, 5) == (-1 if x == 1 else 10 + x)
            assert f(x, 5) == 10 + x, "unhooked"
    with switching_often(1e-6):
        in_threads(work, 4)


@pytest.mark.parametrize("hook", [sys.settrace, sys.setprofile])
def test_tracing_and_profiling(hook):
    events = []

    def trace(frame, event, arg):
        events.append((frame.f_code.co_name, event))
        return trace

    def f(x):
        return x

    c = compiled(f)
    c.tree.insert([value_guard(0, "x", 1)], [], lambda x: "mock", None)
    hook(trace)
    try:
        results = c(1), c(2)
    finally:
        hook(None)
    lines = hook is sys.settrace        # a tracer of lines is shown the program's own
    assert results == ((1, 2) if lines else ("mock", 2))
    assert (c.traced, ("f", "call") in events, ("<lambda>", "call") in events) == ((2, True, False) if lines else (0, True, True))


def test_the_hook_is_gone_after_a_call():
    def f(x):
        return torch._C._dynamo.eval_frame.get_eval_frame_callback()

    before = f(1)
    assert compiled(f)(1) is before


def test_torch_compile_inside_and_around():
    def inner(x):
        return x.sin() + 1

    def outer(x):
        return c(x) * 2

    seen = []
    c = compiled(inner, lambda function, args, tree: seen.append(1) or _C.RUN_NATIVELY)
    x = torch.ones(3)
    torch._dynamo.reset()
    dynamo_inner = torch.compile(inner, backend="eager")
    d = compiled(lambda x: dynamo_inner(x))
    assert torch.equal(d(x), inner(x))
    assert torch.equal(torch.compile(outer, backend="eager")(x), inner(x) * 2)
    assert torch.equal(c(x), inner(x)) and seen
    torch._dynamo.reset()


def tracing_states():
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Function(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    class Dispatch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    def under(mode):
        def run(f, x):
            with mode():
                return f(x)
        return run

    x = torch.ones(2)
    return {"function mode": under(Function), "dispatch mode": under(Dispatch), "vmap": lambda f, x: torch.vmap(f)(x),
            "grad": lambda f, x: torch.func.grad(lambda x: f(x).sum())(x),
            "make_fx": lambda f, x: make_fx(f)(x)(x),
            "jit.trace": lambda f, x: torch.jit.trace(lambda x: f(x), x, check_trace=False),
            "fx": lambda f, x: torch.fx.symbolic_trace(lambda x: f(x))(x)}


@pytest.mark.parametrize("state", ["function mode", "dispatch mode", "vmap", "grad", "make_fx", "jit.trace", "fx"])
def test_under_tracers_the_original_runs(state):
    def f(x):
        return x * 3

    def on_miss(function, args, tree):
        raise AssertionError("looked up under a tracer")

    tracing_states()[state](compiled(f, on_miss), torch.ones(2))


def test_under_a_default_device_it_still_is_looked_up():
    c = compiled(add)
    entry = c.tree.insert([Guard(None, Kind.MODES, _C.modes())], [], lambda *args: "mock", None)
    assert c(1) == "mock"
    with torch.device("cpu"):
        assert c(1) == add(1)
        assert _C.modes().has_default_device and _C.modes() != entry.guards[0].expected
    assert c(1) == "mock"


def references():
    while gc.collect():         # what other tests have left may take several
        pass
    return sys.gettotalrefcount() if hasattr(sys, "gettotalrefcount") else len(gc.get_objects())


@pytest.mark.parametrize("case", ["hit", "lifted", "native", "miss", "exception", "signature"])
def test_nothing_leaks(case):
    def f(a, b):
        if case == "exception":
            raise ValueError
        return a

    token = object()
    c = compiled(f, native)
    if case in ("hit", "lifted", "native"):
        mock = None if case == "native" else (lambda a, b, lifted=None: a)
        c.tree.insert([], [Local("b", 1)] if case == "lifted" else [], mock, None)

    def run(count):
        for _ in range(count):
            try:
                c(token) if case == "signature" else c(token, [])
            except (ValueError, TypeError):
                pass

    count = 100_000 if case in ("hit", "lifted", "native") else 20_000
    run(100)
    before = references(), sys.getrefcount(token), sys.getrefcount(f), sys.getrefcount(c)
    run(count)
    after = references(), sys.getrefcount(token), sys.getrefcount(f), sys.getrefcount(c)
    assert after[1:] == before[1:] and abs(after[0] - before[0]) < 50


@pytest.mark.parametrize("args", [(len, None, native), (add, object(), native), ()])
def test_constructor_arguments_are_checked(args):
    with pytest.raises(TypeError):
        _C.CompiledFunction(*args)


def test_run_natively_is_recognisable():
    assert repr(_C.RUN_NATIVELY) == "RUN_NATIVELY"
    assert isinstance(add, types.FunctionType)
