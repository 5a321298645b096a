"""What is said of torch's operators is what they do: every overload and every function has facts, and what they do to samples is
compared with these."""
from __future__ import annotations

import contextlib
import itertools
import operator
import os
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import DeterministicGuard
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from capture import _C
from capture.backends.aot.aten import aten, draws, random_operators
from capture.interp.core.frame import Value
from capture.interp.recording import tensors
from capture.interp.recording.writes import uncounted
from capture.operators import beyond_schemas
from capture.operators.facts import OpFacts, facts_of
from capture.operators.properties import PROPERTIES, READERS, Property
from capture.operators.schemas import aten_name, overloads_named
from tests.samples import samples_of

FACTS = ("is_known", "relays", "always_has_dynamic_shape", "has_dynamic_shape", "is_shaped_like_first", "lists_elements",
         "drops_dimensions", "rearranges", "is_random", "computes", "writes", "statistics", "is_pointwise", "raises",
         "is_free_view", "is_fusible")
# Methods and functions of C that neither schemas nor the table know: the trace ends there, or takes them to do anything.
UNKNOWN = frozenset("""
    __delitem__ _fix_weakref _from_blob _rev_view_func_unsafe _use_count _view_func _view_func_unsafe apply_ const_data_ptr map2_
    map_ untyped_storage nested_tensor _parse_to _is_view can_cast promote_types""".split())


def all_names() -> set[str]:
    names = (name.partition("::") for name in torch._C._dispatch_get_all_op_names())
    return {name.partition(".")[0] for namespace, _, name in names if namespace == "aten"}


def test_every_overload_has_facts() -> None:
    for name in all_names():
        packet = getattr(torch.ops.aten, name)
        for target in (packet, *(getattr(packet, overload) for overload in packet.overloads())):
            for fact in FACTS:
                getattr(facts_of(target), fact)


def recorded() -> Iterator[Any]:
    """Every function and method that may be a node of a graph."""
    yield from (function for function in tensors.overridable() if type(function) is types.FunctionType)
    yield from (function for function in tensors.VARIABLE_FUNCTIONS if not function.__name__.startswith("__"))
    for module in tensors.OPERATION_MODULES:
        yield from (function for function in vars(getattr(torch._C, module.rpartition(".")[2])).values()
                    if isinstance(function, types.BuiltinFunctionType))
    yield from (method for method in vars(torch._C.TensorBase).values() if type(method) is types.MethodDescriptorType)


def test_every_recorded_function_has_facts() -> None:
    unknown = set()
    for function in recorded():
        facts = facts_of(function)
        for fact in FACTS:
            getattr(facts, fact)
        if not facts.is_known and function not in tensors.MODE_GETTERS and function not in tensors.MODE_SETTERS:
            unknown.add(function.__name__)
    of_modes = {name for name in unknown if name.startswith((
        "_cufft", "_nnpack", "_use_cudnn", "is_vulkan", "sym_", "_print", "_assert"))}
    assert unknown - of_modes - PROPERTIES.keys() - READERS <= UNKNOWN


def test_an_operation_in_place_is_found_under_each_of_its_names() -> None:
    x = torch.ones(2)
    for name in ("transpose_", "resize_", "set_"):
        overload = getattr(getattr(torch.ops.aten, name), getattr(torch.ops.aten, name).overloads()[0])
        targets = name, getattr(torch.Tensor, name), getattr(torch.ops.aten, name), overload
        assert all(facts_of(target).relays for target in targets)
    assert facts_of(type(x).__iadd__).name == "add_" and aten_name("__rsub__") == "sub" and overloads_named("add_")


def test_the_tables_miss_no_operator_of_a_family() -> None:
    """By what their names have in common, where soundness would rest on a row."""
    overloads = [getattr(packet, overload) for name in all_names() if (packet := getattr(torch.ops.aten, name))
                 for overload in packet.overloads() if not overload.endswith("out")]
    unwritten = {op for op in overloads if facts_of(op).is_unwritten}
    assert unwritten == {op for op in overloads if "empty" in op._opname}
    assert {op for op in overloads if facts_of(op).names_places} == {op for op in overloads if op._opname.startswith(
        "as_strided") or op._opname in ("set", "set_") and "storage_offset" in op._overloadname}


def test_numbers_are_the_same_for_all_names_of_an_operation() -> None:
    names = ("add", "__add__", "__radd__", "__iadd__", "sub", "__rsub__", "mul_", "__rpow__", "__floordiv__", "__imod__")
    assert all(facts_of(getattr(torch.Tensor, name)).calculates_with_numbers for name in names)
    assert facts_of(operator.iadd).converts_numbers and not facts_of(operator.pow).converts_numbers


def test_random_numbers_are_counted_where_they_are_drawn() -> None:
    """Of an operator that ATen composes of others, these are."""
    counted = random_operators()
    assert {aten.bernoulli.p, aten.native_dropout.default, aten.normal_functional.default, aten.randperm.default} <= counted
    assert not {aten.dropout.default, aten.bernoulli_.float, aten.relu.default} & counted
    attention, operands = aten._scaled_dot_product_flash_attention_for_cpu.default, [torch.ones(1, 1, 2, 2)] * 3
    assert not draws(attention, operands, {}) and draws(attention, [*operands, 0.5], {})


def test_what_is_not_known_may_do_anything() -> None:
    for target in (lambda x: x, map, torch.Tensor.map_):
        facts = facts_of(target)
        assert facts.relays and facts.has_dynamic_shape and facts.raises and facts.is_random and not facts.computes


# -- what operators do -------------------------------------------------------------------------------------------------

SAMPLES, VARIANTS = int(os.environ.get("FACTS_SAMPLES", "1")), 4       # more, for a longer search
FLOATS = (0.0, -1.5, 2.5, torch.inf, torch.nan)
INTEGERS = (0, 1, -1, 10**6, -10**6)


def variants(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Tensors like one, that hold something else."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return
    inexact = tensor.is_floating_point() or tensor.is_complex()
    values = (False, True) if tensor.dtype is torch.bool else FLOATS if inexact else INTEGERS
    for value in values:
        other = tensor.detach().clone(memory_format=torch.contiguous_format)
        if not tensor.dtype.is_signed and tensor.dtype is not torch.bool:
            value = abs(value) % 256
        other.view(-1)[:1] = value
        yield other
        yield torch.full_like(tensor, value)


def samples(op: Any) -> Iterator[tuple[list[Any], Any]]:
    """Arguments of an operator, as leaves and what they are the leaves of."""
    for dtype in (torch.float32, torch.int64):
        if dtype in op.supported_dtypes("cpu"):
            for sample in itertools.islice(samples_of(op, dtype), SAMPLES):
                yield tree_flatten(((sample.input, *sample.args), sample.kwargs))


def layout(tensor: torch.Tensor) -> Any:
    sparse = tensor.layout is not torch.strided
    return tensor.shape, None if sparse else (tensor.stride(), tensor.storage_offset(), tensor.untyped_storage()._cdata), \
        tensor.requires_grad, tensor.grad_fn


def shapes(result: Any) -> list[Any]:
    return [(item.shape, item.dtype) if isinstance(item, torch.Tensor) else type(item) for item in tree_leaves(result)]


def same(first: Any, second: Any) -> bool:
    return all(not isinstance(a, torch.Tensor) or a.layout is not torch.strided or torch.equal(a.nan_to_num(), b.nan_to_num())
               for a, b in zip(tree_leaves(first), tree_leaves(second), strict=True))


def copied(leaves: list[Any], spec: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return tree_unflatten([leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], spec)


def examine(function: Callable[..., Any], facts: OpFacts, leaves: list[Any], spec: Any) -> list[str]:
    """What a call does that its facts do not say."""
    args, kwargs = copied(leaves, spec)
    values = [*args, *kwargs.values()]
    operands = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    before = [(layout(x), x._version, x.clone()) for x in operands]
    drawn = _C.get_random_state()
    result = function(*args, **kwargs)
    draws = not torch.equal(drawn, _C.get_random_state())
    found = []
    counted = uncounted(facts, [Value(arg, None) for arg in args], {name: Value(value, None) for name, value in kwargs.items()})
    for operand, (was, version, held) in zip(operands, before):
        if layout(operand) != was and not facts.relays:
            found.append("relays")
        if operand.shape == held.shape and not same(operand, held) and operand._version == version and not any(
                x is operand for x in counted):
            found.append("writes and counts no version")
    if draws and (not facts.is_random or facts.computes):
        found.append("is random")
    if facts.computes:
        args, kwargs = copied(leaves, spec)
        found += [] if same(function(*args, **kwargs), result) else ["does not compute"]
    if facts.may_raise(values) or facts.divides(kwargs.get("rounding_mode")):
        return found                # some operators crash on what they ought to refuse
    dynamic = facts.is_dynamic(values)
    for place, leaf in enumerate(leaves):
        for other in itertools.islice(variants(leaf), VARIANTS) if isinstance(leaf, torch.Tensor) else ():
            args, kwargs = copied([*leaves[:place], other, *leaves[place + 1:]], spec)
            try:
                changed = shapes(function(*args, **kwargs))
            except Exception as error:
                found.append(f"raises {type(error).__name__}: {str(error)[:80]}")
            else:
                found += [] if dynamic or changed == shapes(result) else ["has a dynamic shape"]
    return found


def targets(op: Any) -> Iterator[tuple[Callable[..., Any], OpFacts]]:
    """The function, and the method that does the same in place."""
    if tensors.is_operation(op.op):
        yield op.op, facts_of(op.op)
    if op.inplace_variant is not None:
        yield op.inplace_variant, facts_of(op.inplace_variant)


@pytest.mark.parametrize("op", op_db, ids=lambda op: op.formatted_name)
def test_facts_are_what_operators_do(op: Any) -> None:
    torch.manual_seed(0)
    found = set()
    for leaves, spec in samples(op):
        for function, facts in targets(op):
            try:
                function(*copied(leaves, spec)[0], **copied(leaves, spec)[1])
            except Exception:
                continue            # not in place, or on no numbers
            found.update(examine(function, facts, leaves, spec))
    assert not found


def test_what_rearranges_makes_no_other_elements() -> None:
    """Of every sample with one tensor and without a dtype."""
    tried = {"detach"}          # of which torch has no samples
    for op in op_db:
        facts = facts_of(op.name)
        for sample in itertools.islice(samples_of(op, torch.int64), 20) if facts.rearranges else ():
            given = tree_leaves((sample.input, sample.args, sample.kwargs))
            operands = [leaf for leaf in given if isinstance(leaf, torch.Tensor)]
            if len(operands) == 1 and not any(isinstance(leaf, torch.dtype) for leaf in given):
                made = op.op(sample.input, *sample.args, **sample.kwargs)
                assert made.dtype == torch.int64 and set(made.flatten().tolist()) <= set(operands[0].flatten().tolist())
                tried.add(facts.name)
    assert tried == beyond_schemas.REARRANGING


class Noted(TorchDispatchMode):
    """Notes calls of ATen's operators that autocast lets pass, and that make the same of the same arguments each time."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        facts, kwargs = facts_of(func), kwargs or {}
        varies = facts.is_unwritten or func._schema.is_mutable or draws(func, args, kwargs)
        if not varies and not torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "AutocastCPU"):
            self.calls.append((func, copied(*tree_flatten((args, kwargs)))))
        return func(*args, **kwargs)


def test_autocast_acts_within_no_kernels_but_those_of_the_table() -> None:
    found = set()
    for op in op_db:
        for sample in itertools.islice(samples_of(op, torch.float32), 4) if torch.float32 in op.dtypes else ():
            with contextlib.suppress(Exception), Noted() as noted:          # with some samples torch has an error to test
                op.op(sample.input, *sample.args, **sample.kwargs)
            for func, (args, kwargs) in noted.calls:
                with DeterministicGuard(True, warn_only=True):      # which fills memory that nothing is written to
                    try:
                        plain = func(*args, **kwargs)
                    except RuntimeError:        # a view of more memory than its operand has been copied with
                        continue
                    with torch.autocast("cpu", torch.bfloat16):
                        cast = func(*args, **kwargs)
                values = (tree_map_only(torch.Tensor, lambda made: made.to(torch.complex128), result) for result in (plain, cast))
                if shapes(plain) != shapes(cast) or not same(*values):
                    found.add(facts_of(func).name)
    assert {"linalg_pinv", "_trilinear"} <= found <= beyond_schemas.CASTING_WITHIN


def test_properties_follow_from_what_is_guarded() -> None:
    """Tensors that no guard tells apart answer alike, but for properties that are known to be unguarded."""
    x = torch.arange(24.0).view(4, 6)
    universe = [x, x.clone(), x[1:3], x[2:4], x[:, 1:3], x[:, 3:5], x.t(), x.clone().t(), x[0], x[1], x.detach(), x.int(),
                x.clone().int(), x.requires_grad_(False), x.clone().requires_grad_(), x.clone().share_memory_(), x.conj(),
                x[1:3].clone(), x.bool(), torch.nn.Parameter(x.clone()), torch.nn.Parameter(x.clone()),
                x.to_sparse(), x.clone().to_sparse()]
    asked = [name for name, kind in PROPERTIES.items() if Property.UNGUARDED not in kind and hasattr(torch.Tensor, name)]
    for a, b in itertools.combinations(universe, 2):
        if type(a) is type(b) and _C.tensor_properties(a) == _C.tensor_properties(b):
            for name in asked:
                assert answer(a, name) == answer(b, name), name


def answer(tensor: torch.Tensor, name: str) -> Any:
    try:
        found = getattr(tensor, name)
        return found() if callable(found) else found
    except Exception as error:
        return type(error)


def test_properties_follow_from_no_values() -> None:
    """They can be asked of tensors without data."""
    x, empty = torch.ones(2, 3), torch.empty(2, 3, device="meta")
    of_device = {"device", "get_device", "is_cpu", "is_meta", "type", "is_pinned", "is_shared"}
    for name in PROPERTIES.keys() - of_device:
        if hasattr(torch.Tensor, name):
            assert answer(x, name) == answer(empty, name), name


