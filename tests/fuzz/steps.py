"""What happens to a world between its program's calls, and how that is called: statements, as text."""
from __future__ import annotations

import random

from tests.fuzz.pieces import Places
from tests.fuzz.writer import parses

NUMBERS = [*["0", "1", "True", "1.0", "2", "2.5", "-0.0", "0.0", "-1", "0.5", "7", "1", "2", "3.0"] * 3, "float('nan')", "2 ** 70",
           "1e30", "None", "'text'", "[1.0]", "torch.tensor(2.0)", "numpy.float64(1.5)"]
TENSORS = [
    "torch.ones(3)", "torch.ones(1)", "torch.ones(3, dtype=torch.float64)", "torch.arange(3)", "torch.ones(2, 3)",
    "torch.ones(6)[::2]", "torch.ones(3, requires_grad=True)", "nn.Parameter(torch.ones(3))", "torch.ones(3, 2).t()[0]",
    "torch.tensor([0.0, -0.0, float('nan')])", "torch.ones(3).bfloat16()", "torch.tensor(2.0)", "torch.ones(3).expand(2, 3)",
    "torch.ones(3) * leafy", "None", "torch.ones(3, dtype=torch.complex64)", "Labelled(torch.ones(3))", "torch.ones(3).to_sparse()"]
FUNCTIONS = [
    "torch.tanh", "lambda x, *rest, **more: x * 3", "lambda x, by=H: x + by", "functools.partial(torch.add, other=2)", "nn.Tanh()",
    "outside", "len", "None", "type('Made', (Derived,), {'value': 2.0})()"]
METHODS = [
    "lambda self, x=0: x + self.scale", "lambda self, *args: args[0] * 2 if args else 2", "property(lambda self: lambda x: x - 1)",
    "staticmethod(lambda *args: args[-1])", "classmethod(lambda cls, *args: args[-1] * cls.scale)", "5.0"]
TENSOR_CHANGES = [
    "{t}.add_(1)", "{t}.zero_()", "{t}.requires_grad_()", "{t}.requires_grad_(False)", "{t}.data = torch.zeros(3)",
    "{t}.grad = None", "{t}.data.mul_(2)", "{t}.grad = torch.ones_like({t})", "{t}[0] = float('nan')", "{t} = {t}.clone()",
    "{t} = {t}.detach()", "{t} = {t}.t()", "{t} = {other}", "{t} = {other}[...]", "{t}.resize_(3)", "{t}.kept = 2", "{t}.t_()",
    "{t}.set_({other})", "{t} = x", "{t} = result if isinstance(result, torch.Tensor) else {t}", "{t} = nn.Parameter({t}.detach())",
    "{t}.unsqueeze_(0)", "{t}.transpose_(0, -1)", "{t} = {t}.double()", "{t}.detach_()", "{t}.register_hook(lambda g: g * 3)",
    "{t} = {t}.as_strided((3,), (0,))", "{t} = {t}.to('meta')", "{t}.data = {other}", "{t}[...] = -0.0",
    "{t} = {t}.T", "{t}.retain_grad()",
    "{t}.data = {t}.data.double()"]
LIST_CHANGES = [
    "{l}.append({v})", "{l}.pop()", "{l}[0] = {v}", "{l}.clear()", "{l}.reverse()", "{l}.insert(0, {v})", "{l} = list({l})",
    "{l} = {other}", "{l}.extend({other}[:2])", "del {l}[1:]", "{l} = tuple({l})", "{l}.sort(key=str)"]
DICT_CHANGES = [
    "{d}['a'] = {v}", "{d}.pop('a', None)", "{d}['b'] = {v}", "{d}.pop('b', None)", "{d}['a'] = {d}.pop('a', 1)", "{d}.clear()",
    "{d} = dict({d})", "{d} = {other}", "{d}.update({other})", "{d}[1] = {v}", "{d}[True] = {v}", "{d}['value'] = {v}",
    "{d} = collections.OrderedDict({d})"]
SET_CHANGES = [
    "{s}.add('off')", "{s}.discard('on')", "{s}.add('on')", "{s} = {{'on'}}", "{s}.add(1)", "{s}.clear()", "{s} = frozenset({s})"]
CLASS_CHANGES = [
    "{c}.apply = {m}", "{c}.scale = {v}", "del {c}.scale", "{c}.extra = {v}", "{c}.value = {v}", "del {c}.value", "del {c}.apply",
    "{c}.doubled = property(lambda self: 7.0)",
    "{c}.__getattr__ = lambda self, name: 6.0 if name == 'extra' else object.__getattribute__(self, name)", "del {c}.__getattr__",
    "{c}.__call__ = {m}", "{c}.__bases__ = (Other,)", "{c}.__bases__ = (Base,)", "{c}.__len__ = lambda self: 0",
    "{c}.__bool__ = lambda self: False", "{c}.__eq__ = lambda self, other: True",
    "{c}.__setattr__ = lambda self, name, value: None",
    "{c}.__getattribute__ = lambda self, name: object.__getattribute__(self, name)", "del {c}.__setattr__", "{c}.forward = {m}",
    "{c}.__init__ = lambda self, *args: self.__dict__.update(value=9.0)", "{c}.made = classmethod(lambda cls, v: cls())",
    "del {c}.__getattribute__", "{c}.__add__ = lambda self, other: 3", "{c}.__hash__ = None", "{c}.__name__ = 'Renamed'",
    "{c}.__get__ = lambda *args: 4.0", "{c}.apply = compiled({c}.apply)"]
OBJECT_CHANGES = [
    "{o}.value = {v}", "del {o}.value", "{o}.extra = {v}", "del {o}.extra", "{o}.apply = {f}", "{o}.__dict__.pop('apply', 0)",
    "{o}.__class__ = {c}", "{o}.scale = {v}", "{o}.tensor = {t}", "{o}.__dict__ = dict({o}.__dict__)", "{o}.kept = {v}",
    "{o}.items = items", "{o}.__call__ = {f}", "{o} = {o2}", "{o} = copy.copy({o})", "{o} = copy.deepcopy({o})", "{o}.child = {o2}",
    "vars({o}).clear()", "{o}.kept = {o2}", "{o}.extra = {t}", "{o}.doubled = 3", "{o}.__dict__['scale'] = {v}",
    "{o}.apply = compiled({o}.apply)"]
FUNCTION_CHANGES = [
    "{g}.__defaults__ = (2.5,)", "{g}.__kwdefaults__ = {{'power': 3}}", "{g}.__code__ = (lambda a, by=1.0, *, power=1: a).__code__",
    "{g} = {f}", "{g}.level = {v}", "{g}.calls = 5", "{g}.__defaults__ = None",
    "{g}.__code__ = {g}.__code__.replace(co_name='other')", "del {g}.level", "{g}.__wrapped__ = len", "{g} = copy.copy({g})",
    "{g}.__dict__.clear()", "rebind({v})", "rebind({v})", "{g}.__name__ = 'named'",
    "{g} = types.FunctionType({g}.__code__, dict(globals()), closure={g}.__closure__)", "{g}.__globals__['H'] = {v}",
    "cell.cell_contents = lambda *rest: 3", "del cell.cell_contents", "{g}.__doc__ = 'text'"]
MODULE_CHANGES = [
    "{m}.eval()", "{m}.train()", "handles.append({m}.register_forward_hook(hook))",
    "handles.append({m}.register_forward_pre_hook(pre_hook))", "handles.append({m}.register_full_backward_hook(gradient_hook))",
    "handles.append({m}.register_full_backward_pre_hook(lambda m, g: None))", "handles.pop().remove()",
    "handles.append(nn.modules.module.register_module_forward_hook(hook))", "{m}.requires_grad_(False)",
    "handles.append(nn.modules.module.register_module_forward_pre_hook(lambda m, a: None))", "{m}.requires_grad_()", "{m}.double()",
    "{m}.float()", "{m}.lin = nn.Linear(3, 3)", "{m}.lin.weight = net.head[0].weight", "{m}.__dict__['lin'] = nn.Tanh()",
    "del {m}.lin", "{m}.drop.p = 0.5", "{m}.lin.bias = None", "{m}.lin.weight = nn.Parameter(torch.ones(3, 3))",
    "{m}.blocks.append(Block())", "{m}.kind = 'b'", "{m}.forward = {f}", "{m}.kinds['a'] = nn.ReLU()",
    "{m}.register_buffer('steps', torch.ones(3))", "{m}.steps = torch.ones(1)", "{m}.training = {v}", "del {m}.steps",
    "{m}.register_forward_hook(lambda m, a, o: o + 1, prepend=True)",
    "{m}.register_forward_hook(lambda m, a, k, o: o * 1, with_kwargs=True)", "{m}.norm = nn.BatchNorm1d(3)",
    "{m}.load_state_dict({{k: v + 1 for k, v in {m}.state_dict().items()}})", "{m}.zero_grad()", "{m}.__class__ = nn.Tanh",
    "{m}.lin = {m2}", "{m}.head[1] = nn.Tanh()", "{m}.to(torch.float64)", "nn.utils.parametrizations.weight_norm({m}.lin)",
    "{m}.share_memory()", "handles.append(block.lin.weight.register_hook(lambda g: g * 2))",
    "for p in {m}.parameters(): p.data.add_(1)", "{m}.apply(lambda m: m.eval())", "block.steps.register_hook(print)",
    "{m}.scale = nn.Parameter(torch.zeros(3))", "{m} = copy.deepcopy({m})", "{m}._modules.clear()", "{m}._forward_hooks.clear()",
    "{m}._parameters['scale'] = None", "{m}._buffers.pop('steps')", "{m}.add_module('drop', nn.Tanh())",
    "{m}._modules = dict(reversed({m}._modules.items()))", "{m}.lin.weight.data = torch.zeros(3, 3)", "{m}.lin.weight = None",
    "{m}.norm.eps = 0.5", "{m}.lin.weight.requires_grad_(False)", "{m}.drop = None", "{m}.bfloat16()", "{m}.half()",
    "handles.append(nn.modules.module.register_module_full_backward_hook(gradient_hook))",
    "{m}.lin.register_parameter('bias', None)", "{m}.register_state_dict_pre_hook(print)",
    "nn.utils.parametrize.register_parametrization({m}.lin, 'weight', nn.Tanh())", "nn.utils.spectral_norm({m}.lin)",
    "del {m}.training", "{m}.blocks[0], {m}.blocks[1] = {m}.blocks[1], {m}.blocks[0]", "del {m}.blocks[0]",
    "{m}.lin.weight.data.transpose_(0, 1)", "{m}.lin.forward = lambda a: a + 1", "{m}.forward = compiled({m}.forward)"]
WORLD_CHANGES = [
    "torch.set_default_dtype(torch.float64)", "torch.set_default_dtype(torch.float32)", "torch.set_grad_enabled(False)",
    "torch.set_grad_enabled(True)", "torch.manual_seed(5)", "random.seed(5)", "len = lambda x: 3", "abs = lambda x: 9",
    "print = lambda *a: None", "globals().pop('len', 0)", "isinstance = lambda *a: True", "globals().pop('isinstance', 0)",
    "G += 1", "flag = not flag", "nothing = 2", "del nothing", "name = 'relu'", "name = 'exp'", "pair = (2.0, 'bb')",
    "pair = [1.0]", "F = types.SimpleNamespace(gelu=torch.tanh)", "import torch.nn.functional as F", "sum = lambda *a: 0.5",
    "torch._C._set_deterministic_algorithms(True, warn_only=True)", "log.clear()", "max = min", "float = int",
    "import gc; gc.collect()", "torch.set_autocast_enabled('cpu', True)", "torch.set_autocast_enabled('cpu', False)",
    "torch.set_autocast_dtype('cpu', torch.float16)", "torch.set_printoptions(precision=2)", "torch.set_default_device('meta')",
    "torch.set_default_device('cpu')", "table = {{key: table[key] for key in reversed(table)}}", "twin = None",
    "box, twin = twin, box", "weight, shift = shift, weight", "weight = shift", "__name__ = 'renamed'", "zip = lambda *a: []",
    "globals().pop('zip', 0)", "torch = types.SimpleNamespace(**vars(torch))", "import torch", "numpy.random.seed(3)",
    "F = copy.copy(F)", "items, table = table, items", "range = lambda *a: [0]", "globals().pop('range', 0)"]
# What the library's own modules and classes hold: set back at the end of a world (`case.fresh_process`).
PATCHES = [
    "torch.tanh = torch.sigmoid", "F.gelu = torch.tanh", "F.relu = lambda v, *rest, **more: v * 2",
    "F.dropout = lambda v, *rest, **more: v + 1", "torch.Tensor.abs = lambda self: self * 2",
    "torch.Tensor.relu = torch.Tensor.neg", "nn.Linear.forward = lambda self, a: a + 1", "torch.relu = abs",
    "nn.LayerNorm.forward = lambda self, a: a * 2", "nn.Dropout.forward = lambda self, a: a",
    "nn.Dropout.extra_repr = lambda self: 'patched'", "math.floor = lambda v: 1", "copy.copy = lambda v: v",
    "random.random = lambda: 0.25", "nn.Module.train = lambda self, mode=True: self",
    "nn.Module.parameters = lambda self: iter([])", "nn.Linear.__call__ = lambda self, *args: args[0] - 1",
    "torch.Tensor.extra = 3", "torch.Tensor.scale = 2.0", "del torch.Tensor.abs", "nn.Linear.ratio = 3.0", "nn.Module.extra = {v}",
    "torch.sigmoid = {f}"]
INPUTS = [
    "torch.ones(3)", "torch.arange(6.0).reshape(2, 3)", "torch.linspace(-1, 1, 3)", "torch.ones(3, dtype=torch.float64)",
    "torch.arange(3)", "torch.arange(6.0).reshape(3, 2).t()", "torch.ones(4, 3)[::2]", "torch.ones(3, requires_grad=True)",
    "torch.tensor([float('nan'), -0.0, 0.0])", "torch.ones(1, 3)", "weight", "row", "box.tensor", "nn.Parameter(torch.ones(3))",
    "torch.ones(2, 3).bfloat16()", "torch.ones(3) * leafy", "torch.arange(12.0).reshape(2, 6)[:, ::2]", "Labelled(torch.ones(3))",
    "torch.tensor(1.5)", "torch.ones(3, dtype=torch.bool)", "2.0", "torch.ones(0, 3)", "torch.ones(3, dtype=torch.complex64)",
    "torch.ones(3, device='meta')", "torch.full((3,), float('inf'))", "source", "torch.from_numpy(array)", "leafy"]
ARGUMENTS = [
    "x", "x", "x", "x, x", "x, x[...]", "x, y", "x, y", "x, None, 2", "x, n=2", "x, y, n=True", "x, y, 1.0", "x, y=x",
    "x, n=float('nan')", "x, n=-0.0", "x, n='text'", "x, weight", "x, x.detach()", "x, x[..., :1]", "x, n=0", "x, n=3", "x, n=None",
    "x, y.t()", "y", "x, n=weight", "x, n=2 ** 40", "*()", "x[..., 1:], x[..., :-1]", "x, n=float('inf')", "x, x.view_as(x)",
    "x.detach(), x", "x, n=H", "x, n=table", "x, n=G", "x, x.mT", "x, weight[...], 2"]
MODES = [
    "torch.no_grad()", "torch.enable_grad()", "torch.inference_mode()", "torch.autocast('cpu', dtype=torch.bfloat16)",
    "torch.set_grad_enabled(False)", "torch.random.fork_rng()", "warnings.catch_warnings()",
    "torch.autograd.forward_ad.dual_level()", "torch.inference_mode(False)", "torch.autocast('cpu', enabled=False)",
    "torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t)", "torch.overrides.BaseTorchFunctionMode()",
    "torch.device('meta')", "torch.autograd.profiler.record_function('name')", "torch.autograd.set_multithreading_enabled(False)",
    "numpy.errstate(all='raise')", "torch.autograd.graph.allow_mutation_on_saved_tensors()"]
GENERATOR_CHANGES = [
    "{i} = iter([3.0, 4.0])", "next({i}, 0)", "{i}.close()", "{i}.send(None)", "{i}.throw(ValueError(1))", "{i} = {i2}", "del {i}",
    "list({i})"]
AFTER = [
    "backward(result)", "backward(result)", "backward(result)", "result.add_(1)", "results.append(result)", "x.mul_(2)",
    "weight.add_(1)", "result.grad_fn(torch.ones(3))", "del result", "results.clear()", "result[0].zero_()",
    "result = list(result)", "results.append(next(result))", "box.kept(x)", "results.append(list(box.kept))", "y.add_(1)",
    "results.append(result[0].sum().backward())", "torch.autograd.grad(result.sum(), [leafy])", "del x, y",
    "results.append(result.grad_fn.name())"]
PRELUDE = """
import contextvars, numpy, sys, warnings

class Labelled(torch.Tensor):
    pass

leafy, x, y, result, results = torch.ones(3, requires_grad=True), torch.arange(6.0).reshape(2, 3), torch.ones(3), None, []
"""


class Stepper:
    """Draws the steps of a case."""

    def __init__(self, rng: random.Random, places: Places) -> None:
        self.rng, self.places = rng, places
        self.of_pieces = places.changes or WORLD_CHANGES

    def steps(self, calls: int) -> list[str]:
        """Some calls, mostly two after each other on the same inputs, and changes between them."""
        steps = [f"x, y = {self.rng.choice(INPUTS[:3])}, {self.rng.choice(INPUTS[:3])}"]
        for _ in range(calls):
            if self.rng.random() < 0.3:
                steps.append(f"x, y = {self.rng.choice(INPUTS)}, {self.rng.choice(INPUTS)}")
            elif self.rng.random() < 0.15:
                steps.append("x, y = x.clone(), y.clone()")
            for _ in range(self.rng.choice([0, 0, 1, 1, 1, 2])):
                change = self.change()
                while not parses([change]):
                    change = self.change()
                steps.append(change)
            steps += [self.call()] * self.rng.choice([1, 1, 2, 3])
            if self.rng.random() < 0.2:
                steps += self.rng.sample(AFTER, self.rng.choice([1, 1, 2]))
        return steps

    def call(self) -> str:
        call = f"program({self.rng.choice(ARGUMENTS) if self.rng.random() < 0.4 else self.rng.choice(ARGUMENTS[:6])})"
        if self.rng.random() < 0.02:
            return f"result = in_thread(lambda: {call})"
        if self.rng.random() < 0.02:
            return f"result = contextvars.copy_context().run(lambda: {call})"
        return f"with {self.rng.choice(MODES)}: result = {call}" if self.rng.random() < 0.1 else f"result = {call}"

    def change(self) -> str:
        pick, places = self.rng.choice, self.places
        place = pick(places.numbers)
        templates = pick([
            [f"{place} = {{v}}"], [f"{place} = {{v}}"], [f"{place} += 1", f"del {place}", f"{place} = float({place})"],
            TENSOR_CHANGES, [f"{pick(places.tensors)} = {{new}}"],
            LIST_CHANGES, DICT_CHANGES, SET_CHANGES, CLASS_CHANGES, OBJECT_CHANGES, WORLD_CHANGES,
            PATCHES, self.of_pieces, self.of_pieces,
            GENERATOR_CHANGES if "stream" in places.globals else LIST_CHANGES, MODULE_CHANGES if places.modules else OBJECT_CHANGES,
            FUNCTION_CHANGES if "helper" in places.globals else CLASS_CHANGES,
            [f"{pick(places.globals)} = {{v}}", f"{pick(places.globals)} = {{new}}", f"del {pick(places.globals)}",
             f"{pick(places.objects_of_all_kinds)} = {pick(places.objects_of_all_kinds)}"]])
        template = pick(templates)
        others = places.lists if templates is LIST_CHANGES else places.dicts if templates is DICT_CHANGES else places.tensors
        other = pick(others)
        return template.format(
            v=pick(NUMBERS), t=pick(places.tensors), new=pick(TENSORS), l=pick(places.lists), d=pick(places.dicts),
            s=pick(places.sets), c=pick(places.classes), m=pick(places.modules) if templates is MODULE_CHANGES else pick(METHODS),
            m2=pick(places.modules or ["box"]), o=pick(places.objects), o2=pick(places.objects), f=pick(FUNCTIONS),
            g=pick(["helper", "closure", "decorated", "recursive", "driven"]), i=pick(["stream", "outer", "mapped"]),
            i2=pick(places.generators), other=other)
