"""What is compiled × tools of Python and torch that take functions and modules: each does what it does with the original."""
from __future__ import annotations

import copy
import functools
import inspect
import io
import pickle
import types
import typing
import warnings
import weakref
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import capture

X = torch.linspace(-1, 1, 6).view(2, 3)
Compile = Callable[[Any], Any]


def function(x: torch.Tensor, k: int = 2) -> torch.Tensor:
    """A docstring."""
    return x.sin() * k


def scaled(k: int, x: torch.Tensor) -> torch.Tensor:
    return x * k


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lin = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.lin(x))


class Methods:
    def method(self, x: torch.Tensor) -> torch.Tensor:
        return x.cos() + 2

    @staticmethod
    def static(x: torch.Tensor) -> torch.Tensor:
        return x.cos() + 3

    @classmethod
    def of_class(cls, x: torch.Tensor) -> torch.Tensor:
        return x.cos() + 4


class Called:
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x.cos() + 1


def of_class(compile: Compile) -> Any:
    return compile(type("Made", (Called,), {"__call__": Called.__call__}))()


def caller(compile: Compile) -> Any:
    inner = compile(function)

    def use(x: torch.Tensor) -> torch.Tensor:
        return inner(x) + 1
    return use


def with_forward(compile: Compile) -> Any:
    net = Net()
    net.forward = compile(net.forward)
    return net


KINDS: dict[str, Callable[[Compile], Any]] = {
    "function": lambda compile: compile(function),
    "lambda": lambda compile: compile(lambda x: x.sin() * 2),
    "method": lambda compile: compile(Methods().method),
    "static method": lambda compile: compile(Methods.static),
    "class method": lambda compile: compile(Methods.of_class),
    "partial": lambda compile: compile(functools.partial(scaled, 3)),
    "builtin": lambda compile: compile(torch.sin),
    "class": of_class,
    "module": lambda compile: compile(Net()),
    "forward": with_forward,
    "inner module": lambda compile: nn.Sequential(compile(Net()), nn.ReLU()),
    "caller": caller,
}


def script(f):
    return torch.jit.script(f)(X)


def script_of_a_module_with_it(f):
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = f

        def forward(self, x):
            return self.f(x) + 1
    return torch.jit.script(Outer())(X)


def symbolic_trace(f):
    graph = torch.fx.symbolic_trace(f)
    return graph.code, graph(X)


def symbolic_trace_of_a_caller(f):
    graph = torch.fx.symbolic_trace(lambda x: f(x) + 1)
    return graph.code, graph(X)


def aten_graph(f):
    graph = make_fx(f)(X)
    return graph.code.count("aten"), graph(X)


def exported(f, strict=False):
    return torch.export.export(f, (X,), strict=strict).module()(X)


def torch_compiled(f):
    torch._dynamo.reset()
    return torch.compile(f, backend="eager")(X)


def torch_compiled_inside(f):
    torch._dynamo.reset()
    return torch.compile(lambda x: f(x) * 2, backend="eager", fullgraph=True)(X)


def custom_op(f):
    custom_op.count += 1
    return torch.library.custom_op(f"capture_tools_{custom_op.count}::op", f, mutates_args=())(X)


custom_op.count = 0


def saved(f):
    file = io.BytesIO()
    torch.save(f, file)
    file.seek(0)
    return torch.load(file, weights_only=False)(X)


def mocked(f):
    return str(inspect.signature(mock.create_autospec(f)))


def functional(f):
    values = dict(f.named_parameters())
    return [torch.func.functional_call(f, {name: value * i for name, value in values.items()}, (X,)) for i in range(3)]


def wrapped(f):
    wrapper = functools.wraps(f)(lambda *args: f(*args))
    return wrapper(X), wrapper.__name__


TOOLS: dict[str, Callable[[Any], Any]] = {
    "jit.script": script, "jit.script around": script_of_a_module_with_it,
    "jit.freeze": lambda f: torch.jit.freeze(torch.jit.script(f.eval()))(X),
    "jit.trace": lambda f: torch.jit.trace(f, (X,))(X * 2), "jit.ignore": lambda f: torch.jit.ignore(f)(X),
    "symbolic_trace": symbolic_trace, "symbolic_trace around": symbolic_trace_of_a_caller, "make_fx": aten_graph,
    "export": exported, "export strict": functools.partial(exported, strict=True),
    "torch.compile": torch_compiled, "torch.compile around": torch_compiled_inside, "custom_op": custom_op,
    "functional_call": functional, "vmap": lambda f: torch.vmap(f)(X), "jacrev": lambda f: torch.func.jacrev(f)(X),
    "jvp": lambda f: torch.func.jvp(f, (X,), (X,)), "state_dict": lambda f: list(f.state_dict()),
    "signature": lambda f: str(inspect.signature(f)), "getfullargspec": lambda f: str(inspect.getfullargspec(f)),
    "getsource": inspect.getsource, "getfile": inspect.getfile, "getdoc": inspect.getdoc, "getclosurevars": lambda f: str(
        inspect.getclosurevars(f)).replace("<compiled ", "").replace(">>", ">"), "isfunction": inspect.isfunction,
    "get_type_hints": typing.get_type_hints, "isinstance": lambda f: [isinstance(f, c) for c in (types.FunctionType, nn.Module)],
    "names": lambda f: [f.__name__, f.__qualname__, f.__module__, f.__doc__],
    "attributes": lambda f: [f.__defaults__, f.__kwdefaults__, f.__code__, f.__globals__ is globals()],
    "annotations": lambda f: f.__annotations__, "create_autospec": mocked,
    "pickle": lambda f: pickle.loads(pickle.dumps(f))(X), "copy": lambda f: copy.copy(f)(X),
    "deepcopy": lambda f: copy.deepcopy(f)(X), "torch.save": saved, "wraps": wrapped,
    "partial": lambda f: functools.partial(f, X)(),
    "lru_cache": lambda f: functools.lru_cache(f)(X),
    "weakref": lambda f: weakref.ref(f)() is f, "key": lambda f: {f: 1}[f],
}
# Kinds that are called by a function of capture's own, and the tools that tell code, file and names of that.
WITHOUT_CODE = {"builtin", "partial"}
OF_CODE = {"getfullargspec", "getdoc", "getclosurevars", "isfunction", "get_type_hints", "isinstance", "names", "annotations",
           "attributes", "create_autospec", "custom_op", "getfile", "jit.script around", "wraps"}


def plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return "tensor", value.shape, value.detach().numpy().round(4).tolist(), value.requires_grad
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_does_what_it_does_with_what_was_compiled(tool: str) -> None:
    problems, ran = [], 0
    for kind, make in KINDS.items():
        if kind in WITHOUT_CODE and tool in OF_CODE:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                expected = plain(TOOLS[tool](make(lambda f: f)))
            except Exception:
                continue                # what it refuses, it may refuse
            for calls in (0, 2):
                ran += 1
                compiled = make(functools.partial(capture.compile, backend="eager"))
                for _ in range(calls):
                    compiled(X)
                try:
                    found = plain(TOOLS[tool](compiled))
                except Exception as error:
                    found = error
                if not (type(found) is type(expected) and found == expected):
                    problems.append(f"{kind}, after {calls} calls: {found!r:.300} instead of {expected!r:.200}")
    assert ran and not problems, "\n".join(problems)


def test_attributes_of_the_function_can_be_set() -> None:
    def program(x, k=2):
        return x * k
    compiled = capture.compile(program, backend="eager")
    assert compiled(torch.ones(1)) == 2
    compiled.__defaults__ = (3,)
    assert compiled(torch.ones(1)) == program(torch.ones(1)) == 3
    compiled.__code__ = (lambda x, k: x + k).__code__
    assert compiled(torch.ones(1)) == 4


def test_entries_are_of_the_code_that_a_function_has() -> None:
    codes = [(lambda x: x + 1).__code__, (lambda x: x * 2).__code__, (lambda y: y - 1).__code__]
    program = types.FunctionType(codes[0], {})
    compiled = capture.compile(program, backend="eager", fullgraph=True)
    for code in codes * 4:
        program.__code__ = code
        for _ in range(2):
            assert torch.equal(compiled(X), program(X))
    stats = capture.stats(compiled)
    assert (stats.captures, stats.hits, stats.native_calls) == (3, 21, 0)
    for number in range(12):                        # each of which dies when the next one is assigned
        program.__code__ = eval(f"lambda x: x * {number}").__code__
        for _ in range(2):
            assert torch.equal(compiled(X), X * number)
    stats = capture.stats(compiled)
    assert (stats.captures, stats.hits, stats.native_calls) == (15, 33, 0)
    capture.reset()
    program.__code__ = codes[0]
    assert torch.equal(compiled(X), X + 1) and capture.stats(compiled).captures == 1


def test_what_a_compiled_function_is_can_be_asked_in_a_captured_one() -> None:
    inner = capture.compile(function, backend="eager")

    def program(x):
        known = isinstance(inner, types.FunctionType), isinstance(inner, int), type(inner) is types.FunctionType
        return inner(x), known, inner.__defaults__
    compiled = capture.compile(program, backend="eager", fullgraph=True)
    for _ in range(3):
        assert plain(compiled(X)) == plain(program(X))
    assert capture.stats(compiled).hits == 2
