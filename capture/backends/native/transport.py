"""Jobs as bytes: how a graph reaches the compiling process, and the key of its compiled code on disk.

An fx graph would be pickled as its source code, which is parsed and traced again; here it is a list of nodes. Functions are named
by the path at which torch keeps them. Only objects that torch or Python's operators define can be named: the code behind such a
path is the same in every process of these versions, so that equal bytes mean equal programs. Names of nodes, and their places in
the user's program, are left out: they do not change what is computed.
"""
from __future__ import annotations

import dataclasses
import functools
import json
import operator
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import fx

from capture.backends.native.job import Job, Modes, TensorSpec
from capture.operators.autograd_function import Form, Passes, Recorded

PACKAGES = frozenset({"torch", "_operator", "math", "builtins", "functools"})
OWN = frozenset({"capture.operators.backward_pass", "capture.operators.paused_autocast"})      # modules with operations of ours
HOMES = ("torch", "torch.nn.functional", "torch._C._nn")        # where functions are found whose own path does not lead to them
OPS = frozenset({"aten", "prim", "prims", "mkldnn", "higher_order"})       # operators that torch registers when it is imported
RECORDS = (Passes, Form)
NAMED_CONSTANTS = {torch.dtype: "dtype", torch.layout: "layout", torch.memory_format: "memory_format"}


class NotPortable(Exception):
    """A graph holds something that has no meaning outside of this process."""


def encode(job: Job) -> bytes:
    """The job as bytes: the same for jobs that compile to the same code, in every process of the same version of torch.

    Raises NotPortable.
    """
    return json.dumps([torch.__version__, _graph(job.graph), [_record(spec) for spec in job.inputs], _record(job.modes),
                       sorted(job.options.items())], separators=(",", ":")).encode()


def decode(data: bytes) -> Job:
    """The job that `encode` made bytes of; its nodes know their places in the graph. Raises ValueError when that was under another
    version of torch."""
    version, graph, inputs, modes, options = json.loads(data)
    if version != torch.__version__:
        raise ValueError(f"this job is for torch {version}, and this is torch {torch.__version__}")
    gm = _parsed_graph(graph)
    for place, node in enumerate(gm.graph.nodes):
        node.meta["place"] = place
    return Job(gm, tuple(_parsed_record(TensorSpec, spec) for spec in inputs), _parsed_record(Modes, modes),
               dict(options))


def is_portable(node: fx.Node) -> bool:
    """Whether a node means the same in other processes, as far as its function and arguments show."""
    try:
        _, args, kwargs = _call(node)
        fx.node.map_aggregate((args, kwargs), lambda value: isinstance(value, fx.Node) or _value({}, value))
    except NotPortable:
        return False
    return True


def encode_graph(gm: fx.GraphModule) -> bytes:
    """A graph alone, as bytes. Raises NotPortable."""
    return json.dumps(_graph(gm), separators=(",", ":")).encode()


def decode_graph(data: bytes) -> fx.GraphModule:
    return _parsed_graph(json.loads(data))


# --- graphs

def _graph(gm: torch.nn.Module) -> list[Any]:
    """[nodes, sub-graphs by name]; a node is [op, target, args, kwargs, writes, orders, dtypes, number], see
    `interp.writes.note_writes` and `sampling.trace`."""
    if not isinstance(gm, fx.GraphModule):
        raise NotPortable(f"a {type(gm).__name__} is part of the graph")
    numbers: dict[fx.Node, int] = {}
    nodes = []
    children: dict[str, Any] = {}
    for node in gm.graph.nodes:
        if node.op not in ("call_function", "call_method", "get_attr", "placeholder", "output"):
            raise NotPortable(f"a node {node.op} is part of the graph")
        target, args, kwargs = _call(node)
        if node.op == "get_attr":
            children[target] = _graph(_attribute(gm, target))
        encode_value = functools.partial(_value, numbers)
        nodes.append([node.op, target, [encode_value(arg) for arg in args],
                      [[key, encode_value(arg)] for key, arg in kwargs.items()], node.meta.get("writes", ()),
                      node.meta.get("orders", ()), node.meta.get("dtypes", ()), getattr(node.meta.get("number"), "__name__", None)])
        numbers[node] = len(numbers)
    return [nodes, children]


def _call(node: fx.Node) -> tuple[Any, tuple[Any, ...], Mapping[str, Any]]:
    """What a node calls, as plain data, and with what: for an autograd function of the program's, its passes."""
    if node.op != "call_function":
        return None if node.op in ("placeholder", "output") else node.target, node.args, node.kwargs
    passes = getattr(node.target, "passes", None)
    if passes is None:
        return path_of(node.target), node.args, node.kwargs
    return _value({}, passes), tuple(node.all_input_nodes), {}


def _parsed_graph(data: list[Any]) -> fx.GraphModule:
    encoded, children = data
    root = torch.nn.Module()
    for name, child in children.items():
        setattr(root, name, _parsed_graph(child))
    graph = fx.Graph()
    nodes: list[fx.Node] = []
    for op, target, args, kwargs, writes, orders, dtypes, number in encoded:
        if op == "call_function":
            target = resolve(target) if isinstance(target, str) else Recorded(_parsed_value([], target))
        elif op == "placeholder":
            target = f"input_{len(nodes)}"
        elif op == "output":
            target = "output"
        nodes.append(graph.create_node(op, target, tuple(_parsed_value(nodes, arg) for arg in args),
                                       {key: _parsed_value(nodes, arg) for key, arg in kwargs}))
        nodes[-1].meta |= {"writes": writes, "orders": orders, "dtypes": dtypes}
        if number is not None:
            nodes[-1].meta["number"] = {"int": int, "float": float}[number]
    return fx.GraphModule(root, graph, "CapturedGraph")


def _attribute(gm: fx.GraphModule, name: str) -> torch.nn.Module:
    if not name.isidentifier():
        raise NotPortable(f"the attribute {name} is part of the graph")
    return getattr(gm, name)


# --- arguments: numbers, strings and None stand for themselves, all else is a list that begins with what it is

def _value(numbers: Mapping[fx.Node, int], value: Any) -> Any:
    cls = type(value)
    if value is None or cls in (bool, int, str):
        return value
    inner = functools.partial(_value, numbers)
    if cls is fx.Node:
        return ["node", numbers[value]]
    if cls is float:
        return ["float", value.hex()]
    if cls is complex:
        return ["complex", value.real.hex(), value.imag.hex()]
    if cls is slice:
        return ["slice", inner(value.start), inner(value.stop), inner(value.step)]
    if cls is torch.Size:
        return ["Size", *value]
    if cls is tuple:
        return ["tuple", *map(inner, value)]
    if cls in (list, fx.immutable_collections.immutable_list):
        return ["list", *map(inner, value)]
    if cls in (dict, fx.immutable_collections.immutable_dict):
        return ["dict", *([inner(key), inner(item)] for key, item in value.items())]
    if cls is torch.device:
        return ["device", str(value)]
    if cls in NAMED_CONSTANTS:
        return [NAMED_CONSTANTS[cls], str(value).removeprefix("torch.")]
    if cls in RECORDS:
        return [cls.__name__, *_record(value)]
    if isinstance(value, fx.GraphModule):
        return ["graph", _graph(value)]
    if value is Ellipsis:
        return ["ellipsis"]
    if cls is range:
        return ["range", value.start, value.stop, value.step]
    if cls is bytes:
        return ["bytes", value.hex()]
    if cls in (torch.SymInt, torch.SymFloat):
        raise NotPortable("a size that changes from call to call is part of the graph")
    if cls.__hash__ is None:
        raise NotPortable(f"a {cls.__name__} is part of the graph")
    return ["path", path_of(value)]


PARSERS: dict[str, Callable[..., Any]] = {
    "float": float.fromhex,
    "complex": lambda real, imag: complex(float.fromhex(real), float.fromhex(imag)),
    "Size": lambda *sizes: torch.Size(sizes),
    "device": torch.device,
    **dict.fromkeys(NAMED_CONSTANTS.values(), functools.partial(getattr, torch)),
    "ellipsis": lambda: Ellipsis,
    "range": range,
    "bytes": bytes.fromhex,
    "path": lambda path: resolve(path),
}


def _parsed_value(nodes: list[fx.Node], data: Any) -> Any:
    if not isinstance(data, list):
        return data
    inner = functools.partial(_parsed_value, nodes)
    tag, *parts = data
    match tag:
        case "node":
            return nodes[parts[0]]
        case "slice":
            return slice(*map(inner, parts))
        case "tuple":
            return tuple(map(inner, parts))
        case "list":
            return list(map(inner, parts))
        case "dict":
            return {inner(key): inner(item) for key, item in parts}
        case "graph":
            return _parsed_graph(parts[0])
        case "Passes":
            return _parsed_record(Passes, parts)
        case "Form":
            return _parsed_record(Form, parts)
    return PARSERS[tag](*parts)


# --- records of fields

def _record(record: Any) -> list[Any]:
    return [_value({}, getattr(record, field.name)) for field in dataclasses.fields(record)]


def _parsed_record(cls: type, data: Iterable[Any]) -> Any:
    return cls(*(_parsed_value([], item) for item in data))


# --- functions, classes and other objects of torch

@functools.lru_cache(maxsize=4096, typed=True)
def path_of(target: Any) -> str:
    """`module:name` at which any process finds this very object, or `ops:name` for an operator of torch.

    Raises NotPortable for everything that does not belong to torch, its operators' registry or Python's operators.
    """
    if isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch._ops.HigherOrderOperator)):
        return _op_path(target)
    name = getattr(target, "__name__", None)
    module = getattr(target, "__module__", None) or getattr(getattr(target, "__objclass__", None), "__module__", None)
    if type(target) is types.FunctionType:
        module = module if _is_shipped(target.__globals__.get("__name__")) else None        # `functools.wraps` copies names
    if isinstance(name, str) and _is_shipped(module):
        owner = getattr(target, "__objclass__", None)
        names = dict.fromkeys((getattr(target, "__qualname__", name), name, *([f"{owner.__qualname__}.{name}"] if owner else ())))
        for path in (f"{home}:{each}" for home in dict.fromkeys((module, *HOMES)) for each in names):
            try:
                found = resolve(path)
            except (ImportError, AttributeError):
                continue
            if found is target:
                return path
    told = f"{name}, {target!r:.200}," if isinstance(target, functools.partial) and name else f"{target!r:.200}"
    raise NotPortable(f"{told} is not part of torch")


def resolve(path: str) -> Any:
    """The object at a path made by `path_of`. Raises ImportError or AttributeError when there is none."""
    module, _, name = path.partition(":")
    if module == "ops":
        return operator.attrgetter(name)(torch.ops)
    return operator.attrgetter(name)(_module(module))


@functools.lru_cache(maxsize=256)
def _module(name: str) -> types.ModuleType:
    package = __import__(name)
    for part in name.split(".")[1:]:
        package = getattr(package, part)
    return package


def _op_path(target: Any) -> str:
    namespace = "higher_order" if isinstance(target, torch._ops.HigherOrderOperator) else str(target).partition(".")[0]
    name = target.name() if isinstance(target, torch._ops.HigherOrderOperator) else str(target).partition(".")[2]
    path = f"ops:{namespace}.{name}"
    if namespace not in OPS or resolve(path) is not target:
        raise NotPortable(f"the operator {target} is not part of torch")
    return path


def _is_shipped(module: Any) -> bool:
    return isinstance(module, str) and (module.partition(".")[0] in PACKAGES or module in OWN)
