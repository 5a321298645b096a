"""Pieces of worlds that are changed behind a program's back: modules that are rewritten, tensors that autograd has saved, switches
of torch, objects and functions whose parts are replaced, and threads that do it."""
from __future__ import annotations

from tests.fuzz.pieces import piece

PIECES = {
    "rewritten": piece("""
        class Halved(nn.Module):
            def forward(self, weight):
                return weight * 0.5

            def right_inverse(self, weight):
                return weight * 2

        class Tuned(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second, self.act = nn.Linear(3, 3), nn.Linear(3, 3, bias=False), nn.ReLU()
                self.second.weight = self.first.weight
                self.register_buffer("mask", torch.tensor([1.0, 0.0, 1.0]))
                self.outputs, self.gain = {}, 1.5

            def forward(self, a, n=1):
                BODY a
                a = self.act(self.first(a)) * self.mask
                return self.second(a) * self.gain + a * n

        def watching(name):
            def watch(module, args, output):
                tuned.outputs[name] = output.detach()
                log.append(name)
            return watch

        def scaling(module, args, kwargs, output):
            return output * kwargs.get("n", 2)
        tuned, taps = Tuned(), []
    """, numbers="tuned.gain tuned.mask[0]", modules="tuned tuned.first tuned.second", functions="tuned tuned.first tuned.forward",
        tensors="tuned.mask tuned.first.weight.data", parameters="tuned.first.weight tuned.first.bias", dicts="tuned.outputs",
        classes="Tuned Halved", globals="tuned",
        readers="len(tuned.outputs); int(tuned.first.weight is tuned.second.weight); len(list(tuned.parameters())); "
                "int(nn.utils.parametrize.is_parametrized(tuned.first)); int(tuned.first.weight.requires_grad); len(taps)",
        statements=[
            "a = tuned(a)", "a = tuned(a, n=n)", "tuned.gain *= 0.5", "a = a * tuned.mask", "tuned.mask.mul_(n)",
            "log.append(sorted(tuned.outputs))", "a = a + tuned.outputs.get('first', 1)",
            "with torch.no_grad(): tuned.first.weight.mul_(0.5)", "tuned.first.weight.data.clamp_(-1, 1)",
            "log.append(sorted(name for name, _ in tuned.named_parameters()))",
            "with nn.utils.parametrize.cached(): a = tuned(a) + tuned.first(a)", "a = F.linear(a, tuned.second.weight)",
            "log.append(sum(p.requires_grad for p in tuned.parameters()))", "a = nn.Module.__call__(tuned, a)",
            "loss = tuned(a).square().sum(); loss.backward(); tuned.zero_grad()"],
        changes=[
            "nn.utils.parametrize.register_parametrization(tuned.first, 'weight', Halved())",
            "nn.utils.parametrize.remove_parametrizations(tuned.first, 'weight')",
            "nn.utils.parametrize.register_parametrization(tuned.second, 'weight', Halved(), unsafe=True)",
            "import torch.nn.utils.prune; nn.utils.prune.l1_unstructured(tuned.first, 'weight', amount=2)",
            "import torch.nn.utils.prune; nn.utils.prune.remove(tuned.first, 'weight')", "tuned.act = F.gelu",
            "tuned.act = nn.GELU()", "del tuned.act; tuned.act = torch.tanh",
            "taps.append(tuned.first.register_forward_hook(watching('first')))",
            "taps.append(tuned.register_forward_hook(scaling, with_kwargs=True))", "taps.pop(0).remove()",
            "taps.append(tuned.act.register_forward_pre_hook(lambda m, args: (args[0] * 2,), prepend=True))",
            "taps.append(tuned.register_forward_pre_hook(lambda m, a, k: (a, dict(k, n=2)), with_kwargs=True))",
            "taps.append(tuned.first.register_forward_hook(lambda m, a, o: o + 1, always_call=True))",
            "tuned.second.weight = nn.Parameter(tuned.first.weight.detach().clone())", "tuned.second.weight = tuned.first.weight",
            "tuned.first.weight.requires_grad = not tuned.first.weight.requires_grad", "tuned.first.requires_grad_(False)",
            "tuned.first.weight.data = tuned.first.weight.data.t()", "tuned.first.weight.data[0] = {v}",
            "tuned.mask = tuned.mask.bool()", "tuned.register_buffer('mask', None)", "tuned.mask = torch.ones(3)",
            "tuned._buffers['mask'] = torch.zeros(3)", "tuned.__dict__['gain'] = {v}",
            "tuned.__class__ = type('Sub', (Tuned,), {{}})", "Tuned.__call__ = lambda self, a, n=1: a + n", "del Tuned.__call__",
            "tuned.first = nn.Identity()", "Tuned.forward.__defaults__ = ({v},)",
            "Halved.forward = lambda self, weight: weight * 3",
            "tuned.forward = types.MethodType(lambda self, a, n=1: a * self.gain, tuned)", "vars(tuned).pop('forward', 0)",
            "tuned.load_state_dict({{k: v * 0 for k, v in tuned.state_dict().items()}}, strict=False)",
            "tuned.first, tuned.second = tuned.second, tuned.first",
            "tuned.to_empty(device='cpu').apply(lambda m: [p.data.fill_(0.5) for p in m.parameters()])",
            "tuned.first.register_forward_hook(lambda m, a, o: log.append(o.grad_fn is None))", "tuned.half().float()",
            "nn.init.constant_(tuned.first.weight, {v})", "tuned = copy.deepcopy(tuned)",
            "tuned.first.__dict__['forward'] = torch.sin",
            "nn.modules.module.register_module_parameter_registration_hook(lambda m, name, p: log.append(name))",
            "tuned.first.weight.register_hook(lambda g: g * 0)",
            "tuned.first.bias.grad = torch.full((3,), 2.0)"]), "saved": piece("""
        class Held(torch.autograd.Function):
            @staticmethod
            def forward(ctx, a, factor=2.0):
                ctx.save_for_backward(a)
                ctx.factor = factor
                return a * factor

            @staticmethod
            def backward(ctx, gradient):
                return gradient * ctx.factor + ctx.saved_tensors[0] * 0, None
        first_leaf, second_leaf = torch.full((3,), 0.5, requires_grad=True), torch.ones(3, requires_grad=True)
        base = torch.linspace(0, 1, 6).requires_grad_()
        part, kept_graph = base[::2], []

        def product(a):
            return first_leaf * second_leaf * a

        def penalised(a):
            out = (first_leaf * a).sum()
            gradient, = torch.autograd.grad(out, first_leaf, create_graph=True)
            return a + gradient.square().sum()
    """, tensors="first_leaf.data second_leaf.data part base.data", parameters="first_leaf second_leaf",
        functions="product; penalised; Held.apply; (lambda a:a*part); (lambda a:a+base[3:])",
        globals="first_leaf second_leaf part base",
        readers="int(first_leaf.grad is None); first_leaf._version; int(part.is_leaf); int(part._base is base); len(kept_graph)",
        classes="Held",
        statements=[
            "a = product(a)", "a = penalised(a)", "a = Held.apply(a)", "a = Held.apply(a, n)",
            "kept_graph.append(product(a).sum())", "a = a * first_leaf.detach()", "product(a).sum().backward()",
            "with torch.no_grad(): first_leaf.mul_(0.5)", "first_leaf.data.add_(1)", "a = a + part",
            "with torch.no_grad(): base.add_(0.25)", "first_leaf.grad = None", "a = a.clone().mul_(first_leaf)",
            "b = (a * second_leaf).exp_()", "a = torch.utils.checkpoint.checkpoint(product, a, use_reentrant=False)",
            "with torch.set_grad_enabled(n > 1): a = product(a)", "a = product(a).detach().requires_grad_()",
            "with torch.enable_grad(): a = product(a)", "with torch.inference_mode(): b = product(b)",
            "with torch.autocast('cpu', dtype=torch.bfloat16): b = torch.mm(a.reshape(-1, 3), a.reshape(-1, 3).t())",
            "first_leaf.requires_grad_(not first_leaf.requires_grad)", "log.append(torch.is_grad_enabled())",
            "log.append(first_leaf.grad)", "a.register_hook(lambda g: g * 2) if a.requires_grad else None", "part = base[1::2]",
            "with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t * n): b = product(a)"],
        changes=[
            "first_leaf.data = torch.full((3,), 3.0)", "with torch.no_grad(): second_leaf.mul_(2)", "first_leaf.data.mul_(2)",
            "backward(result); first_leaf.data.zero_()", "second_leaf.data.add_(1); backward(result)",
            "with torch.no_grad(): first_leaf.add_(1)", "part = base[1::2]", "part.data = torch.ones(3)", "base.data.zero_()",
            "first_leaf = second_leaf", "first_leaf, second_leaf = second_leaf, first_leaf", "second_leaf = first_leaf[...]",
            "first_leaf.requires_grad_(False)", "first_leaf.requires_grad_()", "kept_graph.pop().backward()", "kept_graph.clear()",
            "first_leaf.grad = torch.ones(3)", "first_leaf = first_leaf.detach().double().requires_grad_()",
            "first_leaf = nn.Parameter(first_leaf.detach())", "with torch.inference_mode(): second_leaf = torch.ones(3)",
            "Held.backward = staticmethod(lambda ctx, gradient: (gradient, None))",
            "base = base.detach().clone(); part = base[::2]", "with torch.no_grad(): part.copy_(torch.zeros(3))",
            "torch.autograd.backward([product(torch.ones(3)).sum()])", "x, y = first_leaf, first_leaf", "x, y = part, base[:3]",
            "x, y = base[:3], base[3:]", "x = first_leaf * 2; x.retain_grad()", "x = torch.ones(3); y = x.view(3)",
            "x = torch.ones(2, 3); y = x[0]", "x = first_leaf.data; y = first_leaf",
            "first_leaf.register_post_accumulate_grad_hook(lambda p: log.append('accumulated'))",
            "second_leaf.data = first_leaf.data"]), "switches": piece("""
        plugins = types.ModuleType("plugins")
        plugins.activation, plugins.options, plugins.level = torch.tanh, {"eps": 1e-3, "names": ["a"]}, 1

        def tally(a, seen=[], *, by={"k": 1.0}):
            seen.append(len(seen))
            return a + len(seen) * by["k"]

        def shared():
            total = 0.0

            def add(a):
                nonlocal total
                total += 1.0
                return a + total

            def peek():
                return total
            return add, peek
        add, peek = shared()

        class Slotted:
            __slots__ = ("value", "other", "__dict__")

            def __init__(self):
                self.value, self.extra = 1.0, [2.0]

            def apply(self, a, by=1.5):
                return a * self.value + by
        slots = Slotted()

        class Delegate:
            def __init__(self, target):
                self.target, self.memo = target, {}

            def __getattr__(self, name):
                if name.startswith("__") or name in ("target", "memo"):
                    raise AttributeError(name)
                return getattr(self.target, name)

            @functools.cached_property
            def width(self):
                return len(self.memo) + 1.0
        delegate = Delegate(slots)
    """, numbers="plugins.level plugins.options['eps'] slots.value slots.extra[0] tally.__kwdefaults__['by']['k'] delegate.value",
        objects="slots delegate plugins", dicts="plugins.options vars(delegate) delegate.memo",
        lists="slots.extra tally.__defaults__[0]",
        functions="plugins.activation; tally; add; slots.apply; delegate.apply; (lambda a:plugins.activation(a)*plugins.level)",
        classes="Slotted Delegate", globals="plugins tally slots delegate add",
        readers="peek(); plugins.options['eps']; len(tally.__defaults__[0]); delegate.width; delegate.value; "
                "int(torch.is_grad_enabled()); torch.get_default_dtype().itemsize; int(torch.is_autocast_enabled('cpu')); "
                "int(torch.is_anomaly_enabled()); int(torch.are_deterministic_algorithms_enabled())",
        statements=[
            "a = tally(a)", "a = tally(a, [1])", "a = add(a)", "a = plugins.activation(a)", "a = slots.apply(a)",
            "a = delegate.apply(a, by=n)", "plugins.level += 1", "slots.value = slots.value * 0.5", "delegate.memo[n] = a",
            "vars(slots)['extra'] = [n]", "del slots.other", "slots.other = a", "log.append(getattr(slots, 'other', None) is None)",
            "a = a * torch.ones(3)", "a = a + torch.tensor(0.5)", "a = torch.full((3,), 1.5) + a", "log.append(peek())",
            "vars(delegate).pop('width', None)", "log.append(torch.get_default_dtype())", "import math as m; n = m.floor(2.5)",
            "a = getattr(plugins, 'activation')(a)", "setattr(plugins, 'seen', len(log))", "log.append(sorted(plugins.options))",
            "torch.set_default_dtype(torch.float64); a = a + torch.ones(3); torch.set_default_dtype(torch.float32)",
            "log.append(torch.mm(a.reshape(-1, 3), torch.ones(3, 2)).dtype)", "a = functools.partial(tally, seen=slots.extra)(a)"],
        changes=[
            "plugins.activation = torch.sigmoid", "plugins = copy.copy(plugins)",
            "plugins.options = dict(plugins.options, eps={v})", "del plugins.level; plugins.level = {v}",
            "plugins.__class__ = type('Plugins', (types.ModuleType,), {{'level': 4}})", "tally.__defaults__ = ([1, 2],)",
            "tally.__defaults__[0].clear()", "tally.__kwdefaults__ = {{'by': {{'k': {v}}}}}",
            "tally.__kwdefaults__['by'] = {{'k': 2}}", "tally.__code__ = (lambda a, seen=(), *, by=1: a - len(seen)).__code__",
            "add.__closure__[0].cell_contents = {v}", "add, peek = shared()", "add.__code__ = add.__code__.replace(co_consts=tuple("
            "2.0 if c == 1.0 else c for c in add.__code__.co_consts))", "Slotted.apply.__defaults__ = ({v},)",
            "Slotted.apply.__code__ = (lambda self, a, by=0: a - self.value).__code__", "Slotted.value = {v}", "del slots.value",
            "slots.__dict__ = {{'extra': [{v}]}}", "slots.apply = lambda a, by=1: a * by", "slots.__dict__.pop('apply', 0)",
            "slots.__class__ = type('Other', (Slotted,), {{'__slots__': ()}})", "delegate.target = box",
            "delegate.__dict__['width'] = {v}", "Delegate.__getattr__ = lambda self, name: 2.0",
            "Delegate.apply = lambda self, a, by=1: a + by", "del Delegate.apply",
            "delegate.__dict__ = {{'target': slots, 'memo': {{1: 2}}}}", "Delegate.width = 3.0",
            "in_thread(lambda: setattr(plugins, 'level', {v}))", "in_thread(lambda: torch.set_grad_enabled(False))",
            "in_thread(lambda: slots.extra.append({v}))", "in_thread(lambda: torch.set_default_dtype(torch.float64))",
            "in_thread(lambda: tally(torch.ones(3)))", "in_thread(lambda: program(x))", "in_thread(lambda: torch.manual_seed(7))",
            "in_thread(lambda: torch.set_autocast_enabled('cpu', True))", "torch.set_default_dtype(torch.float64)",
            "torch.autograd.set_detect_anomaly(True)", "torch.autograd.set_detect_anomaly(False)",
            "torch.set_float32_matmul_precision('medium')", "torch.use_deterministic_algorithms(True, warn_only=True)",
            "torch.set_grad_enabled(not torch.is_grad_enabled())", "torch.set_autocast_cache_enabled(False)",
            "torch.set_autocast_enabled('cpu', True); torch.set_autocast_dtype('cpu', torch.float16)",
            "torch.set_default_device('cpu')", "math = types.SimpleNamespace(floor=lambda v: 5)", "setattr = lambda *a: None",
            "getattr = lambda *a: torch.cos", "globals().pop('getattr', 0)", "sorted = list",
            "globals().update(tally=lambda a, *r, **k: a)", "abs = plugins.activation"]),
}
