"""Which of ATen's operators a call of torch's functions and methods, or a node of an fx graph, comes to."""
from __future__ import annotations

import builtins
import functools
import types
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

from capture.code_names import names_of

# Python's operators, by the names of their functions and special methods without underscores, where ATen has others.
_SPELLED = {"truediv": "div", "floordiv": "floor_divide", "mod": "remainder", "and": "bitwise_and", "or": "bitwise_or",
            "xor": "bitwise_xor", "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift", "invert": "bitwise_not",
            "inv": "bitwise_not", "pos": "positive", "getitem": "index", "setitem": "index_put_", "long": "item",
            "nonzero": "is_nonzero", "bool": "is_nonzero", "int": "item", "float": "item", "complex": "item", "index": "item"}
_CONVERSIONS = frozenset(
    "float double half bfloat16 bool byte char short int long cfloat cdouble cpu cuda xpu ipu mtia type".split())
# Other names of ATen's for operators that have the facts, in place or not.
_ALIASES = {
    "absolute": "abs", "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh", "arctan": "atan",
    "arctan2": "atan2", "arctanh": "atanh", "divide": "div", "fix": "trunc", "greater": "gt", "greater_equal": "ge", "less": "lt",
    "less_equal": "le", "multiply": "mul", "negative": "neg", "not_equal": "ne", "subtract": "sub", "linalg_matmul": "matmul",
    "orgqr": "linalg_householder_product", "special_gammainc": "igamma", "special_gammaincc": "igammac",
    "special_gammaln": "lgamma", "special_multigammaln": "mvlgamma", "special_psi": "digamma", "special_expit": "sigmoid",
    **{f"special_{name}": name for name in """
        digamma erf erfc erfinv exp2 expm1 i0 log1p log_softmax logit logsumexp polygamma round sinc softmax xlogy""".split()}}
# Methods and functions of C that ATen knows by another name: conversions, makers of tensors, and these.
_RENAMED = {**dict.fromkeys(_CONVERSIONS, "to"), "as_subclass": "alias", "new_tensor": "new_full", "dsmm": "mm", "hsmm": "hspmm",
            "saddmm": "sspaddmm", **_ALIASES, **{f"{alias}_": f"{name}_" for alias, name in _ALIASES.items()}}
_ARITHMETIC = frozenset("add sub mul div truediv floordiv mod pow matmul and or xor lshift rshift".split())
# What a function in Python may name without meaning the operator: methods of lists and dicts, an attribute of devices.
_AMBIGUOUS = frozenset({"index", "indices", "keys", "values"})
# Modules of torch whose functions ATen knows by names that begin with these.
_MODULES = frozenset({"linalg", "fft", "special"})


def name_of(target: Any) -> str:
    """The name of a function, a method or an fx target as the program calls it; of an operator, without its overload."""
    if isinstance(target, OpOverload):
        return target._opname
    return target if isinstance(target, str) else getattr(target, "__name__", "")


def shown_name(target: Any) -> str:
    """The same for messages: without underscores around it."""
    return name_of(target).strip("_")


def aten_name(target: Any) -> str:
    """The name by which ATen knows what a method, a function of C or one of Python's operators does."""
    name = name_of(target)
    if name.startswith("__") and name.endswith("__"):
        return _of_python(name[2:-2])
    if getattr(target, "__module__", None) == "_operator" or getattr(builtins, name, None) is target:
        return _of_python(name.strip("_"))
    return _RENAMED.get(name, name)


def _of_python(name: str) -> str:
    """The operator of ATen for one of Python's: `add`, `iadd`, `radd`."""
    if name[:1] == "i" and name[1:] in _ARITHMETIC:
        return f"{_SPELLED.get(name[1:], name[1:])}_"
    if name[:1] == "r" and name[1:] in _ARITHMETIC:
        name = name[1:]
    return _SPELLED.get(name, name)


@dataclass(frozen=True, slots=True)
class Overload:
    """One overload of an operator."""

    schema: Any         # torch._C.FunctionSchema

    @property
    def tags(self) -> frozenset[torch.Tag]:
        """What torch says of it in general."""
        return tags_of(self.schema.name, self.schema.overload_name)

    @property
    def is_view(self) -> bool:
        """Whether its result may be, or share the memory of, an argument that it does not write to."""
        return any(value.alias_info is not None and not value.alias_info.is_write for value in self.schema.returns)

    @property
    def is_in_place(self) -> bool:
        """Whether it writes to its first argument."""
        return bool(self.schema.arguments) and is_written(self.schema.arguments[0])


@functools.cache
def tags_of(name: str, overload: str) -> frozenset[torch.Tag]:
    """The tags of an overload of an operator, by its name with the namespace."""
    known = torch._C._get_operation_overload(name, overload)
    return frozenset(known[2]) if known is not None else frozenset()


@functools.cache
def overloads_named(name: str, namespace: str = "aten") -> tuple[Overload, ...]:
    """The overloads, of those that tensors have a part in, of the operator of this name."""
    schemas = torch._C._jit_get_schemas_for_operator(f"{namespace}::{name}")
    return tuple(Overload(schema) for schema in schemas if any(
        "Tensor" in str(value.type) for value in (*schema.arguments, *schema.returns)))


@functools.cache
def mentioned(function: types.FunctionType) -> frozenset[str]:
    """The operators of ATen that a function of torch's in Python may call: all that its code names, and that of other functions of
    torch's that it names."""
    found = names_in(function) - _AMBIGUOUS
    found |= {f"{module}_{name}" for module in _MODULES & found for name in found}
    return frozenset(name for name in found if overloads_named(name))


def names_in(function: types.FunctionType) -> set[str]:
    """The names in the code of a function, and of functions of torch's in Python that it names: globals, attributes of torch's
    modules, and what cells hold. A name may mean both a function in Python and an operator (`_VF.unique_consecutive`)."""
    found: set[str] = set()
    functions = [function]
    for known in functions:
        names = set(names_of(known.__code__))
        found |= names
        values = [known.__globals__[name] for name in names if name in known.__globals__]
        modules = [value for value in values if type(value) is types.ModuleType and value.__name__.startswith("torch")]
        values += [vars(module)[name] for module in modules for name in names if name in vars(module)]
        values += [cell.cell_contents for cell in known.__closure__ or () if cell != types.CellType()]
        functions += [value for value in values if is_of_torch_in_python(value) and value not in functions]
    return found


def is_of_torch_in_python(value: Any) -> bool:
    """Whether an object is a function in Python of torch's."""
    return type(value) is types.FunctionType and str(value.__module__).startswith("torch")


def is_written(argument: Any) -> bool:
    """Whether an operator writes to an argument that is no `out`."""
    return not argument.is_out and argument.alias_info is not None and argument.alias_info.is_write
