"""The two passes of an autograd function of the program's, recorded as graphs, so that they can be compiled.

What a function does whose code only computes (`computing_code.py`) follows from the form of the tensors that it is given, and from
what its code names, which is guarded. So it is called once more, on tensors with the same memory and on gradients of ones, and
ATen's operators are recorded. Functions that ask more of autograd, or of tensors than their form, are left to torch: those that
write to what they are given, return views of it, keep it without `save_for_backward`, give no gradient or have several results
with gradients.
"""
from __future__ import annotations

import contextlib
import inspect
import operator
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.autograd.function import FunctionCtx
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.utils._pytree import tree_map

from capture import _C
from capture._C import is_a
from capture.errors import Break
from capture.interp.core.frame import Value
from capture.interp.core.interpreter import Interpreter
from capture.interp.function_models.computing_code import OF_LAYOUT, ComputingCode, Unfit, code_under
from capture.interp.function_models.isolated_code import content_of
from capture.interp.function_models.read_only_methods import is_data
from capture.interp.recording.writes import Watching, written_by
from capture.operators.autograd_function import Form, Passes
from capture.operators.facts import facts_of, named
from capture.operators.linearity import are_linear
from capture.refgraph.graph import RefGraph
from capture.refgraph.identical import Classes, same
from capture.refgraph.memory import PLAIN_TENSORS, storage_id
from capture.refgraph.node import SCALARS

PASSES = ("forward", "setup_context", "backward")
OTHERS = ("vjp", "apply", "clear_saved_tensors_on_access", "boxed_grads_call")      # which decide what happens, too
DECIDING = (*PASSES, *OTHERS)
PLAIN_ARGUMENTS = Classes((*SCALARS, torch.dtype, torch.device, torch.Size))
VALUES = (torch.Tag.nondeterministic_seeded, torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)


_known: weakref.WeakKeyDictionary[RefGraph, dict[Any, Passes | None]] = weakref.WeakKeyDictionary()       # by trace


def passes_of(interp: Interpreter, cls: type, args: Sequence[Value], result: Any, called: Sequence[str]) -> Passes | None:
    """The passes of the call that has returned `result` and called these operators. None if these cannot be recorded, or nobody
    would compile them."""
    reals = [arg.real for arg in args]
    if not interp.graph.context.takes_autograd_functions() or not is_plain_call(reals) or interp.recorder.sizes.are_free(args):
        return None
    # What a call like an earlier one does is known, unless the trace has changed something since.
    known = _known.setdefault(interp.graph, {})
    forms = tuple(Form.of(real) if is_a(real, Tensor) else (type(real), repr(real)) for real in reals)
    key = cls, forms, tuple(map(type, reals)), frozenset(called), torch.is_grad_enabled(), len(interp.graph.effects)
    if key not in known:
        known[key] = found_passes(interp, cls, reals, result, called)
    return known[key]


def found_passes(interp: Interpreter, cls: type, reals: Sequence[Any], result: Any, called: Sequence[str]) -> Passes | None:
    """The same, of the first call of its kind."""
    try:
        function = _Function(cls)
        code = ComputingCode(interp.graph, function.passes)
        if not code.attributes_of(function.backward).isdisjoint(OF_LAYOUT):
            raise Unfit("it asks how gradients lie in memory")
        passes = function.recorded(reals, result, called)
        code.pin({type(arg) for arg in reals if is_a(arg, Tensor)})
    except (Unfit, Break):
        return None
    return passes


def is_plain_call(args: Sequence[Any]) -> bool:
    """Whether a call is given tensors, each by itself, and numbers, and torch does with them what it does by default."""
    tensors = [arg for arg in args if is_a(arg, Tensor)]
    plain = all(type(arg) in PLAIN_TENSORS if is_a(arg, Tensor) else type(arg) in PLAIN_ARGUMENTS for arg in args)
    if not plain or not tensors or torch._C._are_functorch_transforms_active() or torch.is_inference_mode_enabled():
        return False
    usual = all(x.layout is torch.strided and not (x.is_inference() or x.is_nested or x.is_conj() or x.is_neg()) for x in tensors)
    apart = len({storage_id(x) for x in tensors}) == len(tensors)
    return usual and apart and not any(map(torch.is_autocast_enabled, {x.device.type for x in tensors}))


class Context(FunctionCtx):
    """What the passes are given for a `ctx`. Its attributes are the program's, but for those with an underscore: what the backward
    pass finds saved, and whether it asked for that."""

    __slots__ = ("_saved", "_was_asked")

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.to_save: tuple[Any, ...] = ()
        self.non_differentiable: tuple[Any, ...] = ()
        self._saved: tuple[Any, ...] = ()
        self._was_asked = False

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        self._was_asked = True
        return self._saved

    saved_variables = saved_tensors

    def end_forward(self) -> None:
        """What was saved can be asked for from now on. Raises Unfit for attributes that are no data."""
        self._saved, self._was_asked = self.to_save, False
        if not all(map(is_data, vars(self).values())):
            raise Unfit("it keeps an object")

    def content(self) -> Any:
        """What the attributes hold, for comparisons."""
        return content_of(vars(self), set())


class _Recorder(Watching):
    """Records ATen's operators. nodes: by the id of each tensor, which is in `held`. before: an earlier recording, whose tensors
    this one takes as further arguments: `taken`. Raises Unfit for what is not to be recorded; code may catch that, and so it is
    kept."""

    def __init__(self, given: Iterable[Tensor], before: _Recorder | None = None) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self.nodes: dict[int, fx.Node] = {}
        self.held: list[Tensor] = []
        self.taken: list[Tensor] = []
        self.before = before
        self.refused: Unfit | None = None
        self.raises = False                             # some operator may raise for other values
        self.called: list[str] = []                     # the operators that code called; not those which these call
        self.last: fx.Node = self.graph._root           # of the arguments
        for tensor in given:
            self.add_argument(tensor)
        self.foreign = {storage_id(tensor) for tensor in (*self.held, *(before.held if before else ()))}

    def add_argument(self, tensor: Tensor) -> None:
        with self.graph.inserting_after(self.last):
            self.last = self.graph.placeholder(f"arg_{len(self.held)}")
        self.add(tensor, self.last)

    def add(self, tensor: Tensor, node: fx.Node) -> None:
        self.nodes[id(tensor)] = node
        self.held.append(tensor)

    def is_known(self, value: Tensor) -> bool:
        return id(value) in self.nodes or self.before is not None and id(value) in self.before.nodes

    def node(self, value: Any) -> Any:
        """What stands for a value."""
        if not is_a(value, Tensor):
            return value
        if not self.is_known(value):
            raise self.refuse("it uses a tensor from elsewhere")
        if id(value) not in self.nodes:
            self.taken.append(value)
            self.add_argument(value)
        return self.nodes[id(value)]

    def refuse(self, reason: str) -> Unfit:
        self.refused = Unfit(reason)
        return self.refused

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Calls a function, and records what it does."""
        _C.begin_listening()
        try:
            with self, torch.no_grad(), shown_warnings() as shown:
                result = function(*args)
        except Exception as error:
            raise Unfit("it raises") from error
        finally:
            self.called += _C.called_operators()
        if self.refused is not None:
            raise self.refused
        if shown:
            raise Unfit("it warns")
        if any(named(name, namespace).reads_values for namespace, _, name in (each.partition("::") for each in self.called)):
            raise Unfit("it looks at values")
        return result

    def perform(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Calls an operator, without listening."""
        self.called += _C.called_operators()
        try:
            return func(*args, **kwargs)
        finally:
            _C.begin_listening()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace not in ("aten", "prims") or torch.is_grad_enabled() or any(tag in func.tags for tag in VALUES) and not (
                func is torch.ops.aten.index.Tensor and not any(is_mask(index) for index in args[1])):
            raise self.refuse(f"it calls {func}")
        if any(storage_id(tensor) in self.foreign for tensor in written_by(func, args, kwargs)):
            raise self.refuse("it writes to what it is given")
        result = self.perform(func, args, kwargs)
        if func is torch.ops.aten.lift_fresh.default and not self.is_known(args[0]):        # of what Python code knows
            values = self.perform(Tensor.tolist, (result,), {})
            node = self.graph.call_function(torch.tensor, (values,), {"dtype": result.dtype, "device": result.device})
        else:
            self.raises |= facts_of(func).may_raise(args)
            arguments, options = tree_map(self.node, (tuple(args), dict(kwargs)))
            node = self.graph.call_function(func, arguments, options)
        if is_a(result, (tuple, list)):
            for place, item in enumerate(result):
                self.note(item, self.graph.call_function(operator.getitem, (node, place)))
        else:
            self.note(result, node)
        return result

    def note(self, value: Any, node: fx.Node) -> None:
        if not is_a(value, Tensor):
            raise self.refuse("it looks at values")
        node.meta["dtype"] = value.dtype
        if not self.is_known(value):
            self.add(value, node)

    def module(self, outputs: Sequence[fx.Node | None]) -> fx.GraphModule:
        self.graph.output(tuple(outputs))
        return _LazyGraphModule({}, self.graph)


class _Function:
    """An autograd function of the program's. Raises Unfit for one that is defined in other ways than by functions."""

    def __init__(self, cls: type) -> None:
        found = {name: (inspect.getattr_static(cls, name), inspect.getattr_static(torch.autograd.Function, name))
                 for name in DECIDING}
        own = {name: item for name, (item, inherited) in found.items() if item is not inherited}
        if not own.keys().isdisjoint(OTHERS):
            raise Unfit("it changes what autograd does")
        if not own.keys() >= {"forward", "backward"} or any(type(item) is not staticmethod for item in own.values()):
            raise Unfit("its passes are no static methods")
        functions = {name: code_under(item.__func__) for name, item in own.items()}
        self.name = cls.__name__
        (self.forward, _), (self.backward, self.once) = functions["forward"], functions["backward"]
        self.setup = functions["setup_context"][0] if "setup_context" in functions else None
        self.passes = [function for function, _ in functions.values()]

    def recorded(self, args: Sequence[Any], result: Any, called: Sequence[str]) -> Passes:
        """The passes of a call with these arguments, whose result was this, and which called these operators."""
        executable = torch.is_grad_enabled()
        args = [same_memory(arg) if is_a(arg, Tensor) else arg for arg in args]
        given = [arg for arg in args if is_a(arg, Tensor)]
        context = Context(tuple(is_a(arg, Tensor) and arg.requires_grad for arg in args))
        first = _Recorder(given)
        made = first.run(self.run_forward, context, args)
        if not set(first.called).issubset(called):
            raise Unfit("it does something else than before")
        results = list(parts(made))
        if type(made) is not type(result) or len(results) != len(parts(result)) or not all(map(is_alike, results, parts(result))):
            raise Unfit("its results are others than before")
        if len({storage_id(tensor) for tensor in results}) < len(results):
            raise Unfit("its results share memory")
        outputs = list(map(first.node, results))
        constant = tuple(place for place, tensor in enumerate(results) if not (tensor.is_floating_point() or tensor.is_complex())
                         or any(tensor is other for other in context.non_differentiable))
        takes = tuple(map(Form.of, given))
        single = type(made) is not tuple
        if not executable or not any(context.needs_input_grad) or len(constant) == len(results):
            return Passes(self.name, takes, first.module(outputs), len(results), single, (), constant, None, self.once,
                          first.raises)
        if len(results) > 1 + len(constant):
            raise Unfit("several of its results have gradients")
        context.end_forward()
        before = context.content()
        second = _Recorder([torch.ones_like(tensor) for tensor in results], first)
        tangents = list(second.nodes.values())
        grads = second.run(self.backward, context, *second.held)
        if not same(context.content(), before):
            raise Unfit("its backward pass changes what the context holds")
        grads = list(grads) if type(grads) is tuple else [grads]
        if len(grads) < len(args) or any(grad is not None for grad in grads[len(args):]):
            raise Unfit("it returns another number of gradients")
        found = [self.gradient(second, arg, grad) for arg, grad in zip(args, grads) if is_a(arg, Tensor)]
        if not are_linear(found, tangents):
            raise Unfit("its gradients are not linear in those of its results")
        saved = [tensor for tensor in context.to_save if tensor is not None] if context._was_asked else []
        if context._was_asked and not saved:
            raise Unfit("it asks for what it has not saved")
        list(map(second.node, saved))
        visible = {storage_id(tensor) for tensor in (*given, *results)}
        if any(storage_id(tensor) in visible and not any(tensor is other for other in saved) for tensor in second.taken):
            raise Unfit("it keeps what it is given without saving it")
        places = tuple(next(place for place, other in enumerate(second.taken) if other is tensor) for tensor in saved)
        forward = first.module([*outputs, *map(first.node, second.taken)])
        return Passes(self.name, takes, forward, len(results), single, places, constant, second.module(found), self.once,
                      first.raises)

    def run_forward(self, context: Context, args: Sequence[Any]) -> Any:
        if self.setup is None:
            return self.forward(context, *args)
        made = self.forward(*args)
        self.setup(context, tuple(args), made)
        return made

    def gradient(self, recorder: _Recorder, arg: Tensor, grad: Any) -> fx.Node | None:
        """The gradient of an argument, if it needs one."""
        if not arg.requires_grad:
            return None
        if not is_a(grad, Tensor) or grad.shape != arg.shape or grad.dtype is not arg.dtype:
            raise Unfit("it gives no gradient, or one of another form")
        return recorder.node(grad)


@contextlib.contextmanager
def shown_warnings() -> Iterator[list[Any]]:
    """Collects the warnings that would be shown. (To change filters would have all others be shown once more.)"""
    shown: list[Any] = []
    before = warnings.showwarning
    warnings.showwarning = lambda *args, **kwargs: shown.append(args)
    try:
        yield shown
    finally:
        warnings.showwarning = before


def is_mask(index: Tensor | None) -> bool:
    """Whether it depends on values how many elements a subscript selects."""
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def same_memory(tensor: Tensor) -> Tensor:
    """Another tensor, of the same class, on the memory of one."""
    return Tensor._make_subclass(type(tensor), tensor.detach(), tensor.requires_grad)


def parts(result: Any) -> Sequence[Any]:
    """The results of a function, of which there may be one."""
    return result if type(result) is tuple else (result,)


def is_alike(made: Any, result: Any) -> bool:
    """Whether a result is like that of the call before."""
    return type(made) is Tensor and is_a(result, Tensor) and (made.shape, made.stride(), made.dtype, made.device) == (
        result.shape, result.stride(), result.dtype, result.device)
