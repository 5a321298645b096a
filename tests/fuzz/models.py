"""Pieces of worlds in the style of real programs: training, views of one storage, modules around modules, classes of tensors and of
classes, and objects that count, schedule and call back."""
from __future__ import annotations

from tests.fuzz.pieces import piece

PIECES = {
    "training": piece("""
        class Student(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner, self.norm, self.outer = nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=0.3), nn.Linear(4, 3)
                self.seen = 0

            def forward(self, a, n=1):
                self.seen += 1
                BODY a
                hidden = self.inner(a).reshape(-1, 4)
                hidden = self.norm(torch.cat([hidden, hidden * 2]))[:len(hidden)]
                return self.outer(hidden.relu()).reshape(a.shape)
        student, meter = Student(), types.SimpleNamespace(total=0.0, count=0, best=None, history=collections.deque(maxlen=3))
        teacher = copy.deepcopy(student).eval()
        optimizer = torch.optim.SGD([{"params": student.inner.parameters(), "lr": 0.1},
                                     {"params": [*student.norm.parameters(), *student.outer.parameters()]}], lr=0.05, momentum=0.9)
        adam = torch.optim.AdamW(student.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: G ** -step)
        stepped = torch.optim.lr_scheduler.StepLR(adam, 2, gamma=0.5)

        def fit(x):
            optimizer.zero_grad(set_to_none=flag)
            out = student(x)
            loss = F.mse_loss(out, x.detach())
            loss.backward()
            nn.utils.clip_grad_norm_(student.parameters(), H)
            optimizer.step()
            scheduler.step()
            meter.count += 1
            if meter.best is None or outside(loss.item()) < meter.best:
                meter.best = loss.item()
            return out.detach()

        def accumulate(x):
            n = meter.count
            loss = student(x).square().mean() / 2
            BODY x
            loss.backward()
            meter.count += 1
            meter.total += loss.detach()
            if meter.count % 2 == 0:
                adam.step()
                adam.zero_grad()
                stepped.step()
            return x

        @torch.no_grad()
        def follow(x, decay=0.75):
            for old, new in zip(teacher.parameters(), student.parameters()):
                old.lerp_(new, 1 - decay)
            for old, new in zip(teacher.buffers(), student.buffers()):
                old.copy_(new)
            return teacher(x)
    """, numbers="optimizer.param_groups[0]['lr'] adam.param_groups[0]['weight_decay'] meter.total meter.count meter.best "
                 "student.seen optimizer.param_groups[1]['momentum']",
        tensors="student.inner.weight.data teacher.outer.bias student.norm.running_mean", objects="meter", classes="Student",
        modules="student student.inner student.norm teacher", functions="fit accumulate follow student teacher",
        dicts="optimizer.param_groups[0] optimizer.state", lists="meter.history optimizer.param_groups[1]['params']",
        readers="optimizer.param_groups[0]['lr']; scheduler.get_last_lr()[0]; meter.count; len(optimizer.state); student.seen; "
                "scheduler.last_epoch; int(student.inner.weight.grad is None); len(meter.history); float(meter.total)",
        globals="optimizer scheduler student teacher fit",
        statements=[
            "optimizer.step()", "optimizer.zero_grad()", "scheduler.step()", "adam.step()", "adam.zero_grad(set_to_none=False)",
            "student(a).sum().backward()", "nn.utils.clip_grad_value_(student.parameters(), 0.5)", "meter.history.append(n)",
            "log.append(scheduler.get_last_lr())", "a = fit(a)", "a = accumulate(a)", "b = follow(b)",
            "log.append(len(optimizer.state))", "loss = F.l1_loss(student(a), b); loss.backward()",
            "student.train(not student.training)", "teacher.load_state_dict(student.state_dict())",
            "torch.optim.Adam(student.parameters()).step()",
            "grads = torch.autograd.grad(student(a).sum(), list(student.parameters())); log.append([g.shape for g in grads])",
            "meter.history.append(student(a).mean().item())", "meter.total = meter.total * 0.5 + student(a).detach().mean()",
            "saved = copy.deepcopy(optimizer.state_dict()); optimizer.load_state_dict(saved)",
            "for group in optimizer.param_groups: group['lr'] *= 0.5", "optimizer.param_groups[0]['lr'] = n",
            "student.requires_grad_(not student.inner.weight.requires_grad)", "b = teacher(a).detach() + student(a)",
            "a = torch.func.functional_call(student, {k: v * 2 for k, v in student.named_parameters()}, (a,))"],
        changes=[
            "optimizer.param_groups[0]['lr'] = {v}", "optimizer.zero_grad()", "optimizer.state.clear()", "optimizer.step()",
            "scheduler.step()", "optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))", "optimizer = adam",
            "optimizer.add_param_group({{'params': [leafy]}})",
            "student.inner = nn.utils.parametrizations.weight_norm(student.inner)",
            "optimizer.register_step_post_hook(lambda *seen: log.append('stepped'))", "scheduler.base_lrs[0] = {v}",
            "optimizer.register_step_pre_hook(lambda *seen: None)", "student.requires_grad_(False)", "student.norm.momentum = None",
            "scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)", "student.inner.requires_grad_(False)",
            "student.inner.weight.grad = None", "student = copy.deepcopy(student)", "student, teacher = teacher, student",
            "for p in student.parameters(): p.grad = torch.ones_like(p)", "student.norm.eval()", "student.outer = nn.Linear(4, 3)",
            "student.load_state_dict(teacher.state_dict(), assign=True)", "optimizer.param_groups[0]['nesterov'] = True",
            "optimizer.param_groups[1]['maximize'] = True", "optimizer.defaults['lr'] = {v}",
            "adam.param_groups[0]['betas'] = (0.5, 0.5)", "optimizer.param_groups[0]['params'].pop()",
            "adam.param_groups[0]['amsgrad'] = True", "meter.total = torch.tensor(1.0)",
            "student.inner.weight.register_post_accumulate_grad_hook(lambda p: p.grad.zero_())",
            "adam = torch.optim.Adagrad([leafy])", "student.inner.weight.register_hook(lambda g: g * 2)",
            "nn.init.zeros_(student.inner.bias)", "meter.history.clear()", "student.norm.running_mean.fill_(0.5)",
            "student.norm.track_running_stats = False", "student.norm = nn.Identity()",
            "optimizer.param_groups[0]['lr'] = torch.tensor(0.25)", "adam.param_groups[0]['foreach'] = True", "flag = not flag",
            "scheduler.load_state_dict(copy.deepcopy(scheduler.state_dict()))", "optimizer.param_groups.reverse()",
            "meter.count = {v}", "optimizer.state[student.inner.bias] = {{}}", "student.inner.weight.data.mul_(0.5)",
            "follow.__defaults__ = (0.5,)", "fit = compiled(fit)"]),
    "storage": piece("""
        flat = torch.linspace(-1, 1, 12)
        upper, lower = flat[:6].view(2, 3), flat.split(3)[-1]

        class Bank(nn.Module):
            def __init__(self, size=4):
                super().__init__()
                self.register_buffer("rows", torch.zeros(size, 3))
                self.register_buffer("place", torch.zeros(1, dtype=torch.long), persistent=False)
                self.last, self.filled, self.views = self.rows[-1], 0, list(self.rows.unbind())

            @torch.no_grad()
            def push(self, a):
                start = int(self.place)
                for row in a.reshape(-1, 3)[:len(self.rows)]:
                    self.rows[start] = row
                    start = (start + 1) % len(self.rows)
                self.place[0] = start
                self.filled = min(self.filled + 1, len(self.rows))

            def forward(self, a, n=1):
                self.push(a)
                BODY a
                return a + self.rows[:self.filled].mean(0) * n

        class Cache:
            def __init__(self):
                self.keys, self.length = None, 0

            def update(self, a):
                self.keys = a if self.keys is None else torch.cat([self.keys, a])[-6:]
                self.length += len(a)
                return self.keys

        class Running:
            def __init__(self):
                self.mean, self.count = torch.zeros(3), 0

            def __call__(self, a):
                self.count += 1
                self.mean += (a.detach().reshape(-1, 3).mean(0) - self.mean) / self.count
                return a - self.mean
        bank, cache, running = Bank(), Cache(), Running()
        grid = torch.zeros(2, 4, 3)
        window, position = grid[:, 1:3], 0

        def put(x):
            grid[:, position % 4] = x.reshape(-1, 3)[0]
            position += 1
            return x * grid[:, :position].sum()
    """, numbers="bank.filled cache.length running.count position lower[0] flat[1]", objects="cache running", modules="bank",
        tensors="flat upper lower bank.rows bank.last bank.views[0] cache.keys running.mean window grid[0,0] bank.place",
        lists="bank.views", functions="bank; running; put; (lambda a:cache.update(a)); (lambda a:a+upper.sum(0))",
        classes="Bank Running", globals="flat upper lower bank position window",
        readers="bank.filled; cache.length; running.count; int(bank.place); position; int(lower._base is flat); "
                "int(bank.last.data_ptr() == bank.views[-1].data_ptr()); flat._version; int(window._base is grid); len(bank.views)",
        statements=[
            "bank.push(a)", "cache.update(a)", "a = running(a)", "upper.add_(lower)", "lower.copy_(upper[0])", "flat[2:8] *= 0.5",
            "flat.view(4, 3)[n] = lower", "upper.t().mul_(2)", "bank.last.add_(1)", "bank.views[0].zero_()", "a = put(a)",
            "flat.index_copy_(0, torch.tensor([1, 3]), torch.ones(2))", "flat.index_add_(0, torch.tensor([0, 0]), lower[:2])",
            "upper[upper < 0] = n", "flat.as_strided((3,), (2,)).add_(1)", "first, second = upper; first.add_(second)",
            "chunk, *_ = flat.chunk(3); chunk += 1", "lower.scatter_(0, torch.tensor([2, 0]), flat[:2])", "flat.roll(1).neg_()",
            "torch.mul(upper, 2, out=upper)", "upper.lerp_(upper.flip(0), 0.5)", "flat.unfold(0, 3, 3)[1] += 1",
            "upper.diagonal().fill_(n)", "bank.rows, saved = bank.rows.clone(), bank.rows; log.append(saved)",
            "log.append(upper.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr())",
            "log.append(lower._base is flat)", "upper.copy_(a)", "torch._foreach_add_([upper, lower], 1)",
            "upper.view(torch.int32).bitwise_and_(-1)", "window[0].add_(a.reshape(-1, 3)[0])", "grid[..., -1] = n",
            "position = (position + 1) % 4", "a = a + window.sum((0, 1))", "bank.views[n % 2] = bank.rows[0]",
            "lower, upper = upper[1], flat[6:].view(2, 3)", "flat.swapaxes_(0, 0)", "bank.rows.data[0] = 5.0",
            "b = upper.detach(); b.mul_(2)", "a = upper.expand(2, 2, 3)[0] + a", "cache.keys = None",
            "window = grid[:, position % 3]", "log.append(torch.equal(bank.last, bank.rows[-1]))", "flat.clamp_(max=n)",
            "with torch.no_grad(): upper.requires_grad_().mul_(2)", "grid.narrow(1, position % 4, 1).fill_(1)",
            "log.append(bank.rows._version)", "a = a + torch.stack(bank.views).mean(0)", "upper.select(0, -1).sub_(lower)"],
        changes=[
            "bank.rows[0] = {v}", "bank.place.fill_(2)", "bank.rows = torch.zeros(2, 3)", "bank.last = bank.rows[0]",
            "flat.zero_()", "bank.views.reverse()", "upper = flat.view(4, 3)[:2]", "lower = upper[0]", "flat.resize_(12)",
            "cache.keys = None", "cache.keys = upper", "running.mean = lower", "running.count = 0", "bank.filled = {v}",
            "flat = flat.clone()", "bank = copy.deepcopy(bank)", "bank.to(torch.float64)",
            "bank.load_state_dict(bank.state_dict())", "flat.requires_grad_()", "flat.data = torch.ones(12)",
            "upper.set_(flat.untyped_storage(), 3, (2, 3), (3, 1))", "lower = flat[::4]", "upper = upper.t().contiguous().t()",
            "bank.rows = bank.rows.expand(4, 3)", "flat.add_(lower.sum())", "position = {v}",
            "bank.register_buffer('rows', upper, persistent=False)", "upper, lower = torch.ones(2, 3), torch.ones(3)",
            "bank.views = list(torch.zeros(4, 3).unbind())", "window = grid[0]", "grid = torch.ones(2, 4, 3)", "x = flat[:3]",
            "x, y = upper[0], upper[1]", "x, y = flat[:6].view(2, 3), flat[3:9].view(2, 3)", "x = bank.rows", "upper.mul_(2)",
            "bank.place = bank.place + 1", "lower.resize_(3)", "upper.data = flat[6:].view(2, 3)", "bank.rows.requires_grad_()",
            "bank.rows = nn.Parameter(bank.rows)", "with torch.inference_mode(): lower = torch.ones(3)",
            "flat = nn.Parameter(flat)", "bank.views[0] = bank.views[1]"]),
    "wrappers": piece("""
        class Adapter(nn.Module):
            def __init__(self, inner, rank=2):
                super().__init__()
                self.inner, self.down, self.up = inner, nn.Linear(3, rank, bias=False), nn.Linear(rank, 3, bias=False)
                self.alpha, self.enabled = 0.5, True

            def __getattr__(self, name):
                try:
                    return super().__getattr__(name)
                except AttributeError:
                    if name == "inner":
                        raise
                    return getattr(self.inner, name)

            def forward(self, a, *rest, **more):
                result = self.inner(a, *rest, **more)
                return result + self.up(self.down(a)) * self.alpha if self.enabled else result

        class Gate(nn.Module):
            counts = collections.Counter()

            def __init__(self):
                super().__init__()
                self.weights = nn.ParameterList([nn.Parameter(torch.full((3,), k + 1.0)) for k in range(2)])
                self.named = nn.ParameterDict({"scale": nn.Parameter(torch.ones(3)), "shift": nn.Parameter(torch.zeros(3))})
                self.choice, self.temperature = 0, 1.0

            def __setattr__(self, name, value):
                if name == "choice":
                    log.append(("choice", value))
                super().__setattr__(name, value)

            @property
            def active(self):
                return self.weights[self.choice]

            def train(self, mode=True):
                self.temperature = 2.0 if mode else 1.0
                return super().train(mode)

            def extra_repr(self):
                return f"choice={self.choice}"

            def forward(self, a, n=1):
                type(self).counts["calls"] += 1
                BODY a
                return a * self.active / self.temperature + self.named["shift"] * n
        tower = nn.Sequential(collections.OrderedDict(
            first=Adapter(nn.Linear(3, 3)), plain=nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)), gate=Gate()))
        tied, cell_net = nn.Linear(3, 3), nn.GRUCell(3, 3)
        tied.weight = tower.first.inner.weight
    """, numbers="tower.first.alpha tower.gate.choice tower.gate.temperature Gate.counts['calls'] tower.first.enabled",
        tensors="tied.weight.data tower.gate.active tower.gate.named['shift'] tower.first.up.weight", dicts="Gate.counts",
        modules="tower tower.first tower.gate tied", classes="Adapter Gate", functions="tower tied tower[0] tower.gate tower.plain",
        globals="tower tied Gate",
        readers="tower.gate.choice; len(tower); tower.first.in_features; int(tower.first.weight is tied.weight); "
                "Gate.counts['calls']; int(tower.gate.training); len(list(tower.parameters())); len(tower.state_dict()); "
                "len(tower.gate.weights)",
        statements=[
            "a = tower(a)", "a = tied(a)", "a = tower[0](a)", "for m in tower.children(): log.append(type(m).__name__)",
            "log.append([name for name, _ in tower.named_parameters()])", "tower.gate.choice = int(n) % 2",
            "tower.gate.choice ^= 1", "log.append(tower.first.weight is tied.weight)",
            "with torch.no_grad(): tied.weight.mul_(0.5)", "state = tower.state_dict(); log.append(len(state))",
            "log.append(repr(tower.gate))", "tower.zero_grad()", "a = cell_net(a.reshape(-1, 3)).reshape(a.shape)",
            "tower.train(not tower.training)", "tower.gate.counts.clear()",
            "log.append(sum(p.numel() for p in tower.parameters() if p.requires_grad))", "a = copy.deepcopy(tower.gate)(a)",
            "handle = tower.gate.register_forward_hook(lambda m, i, o: o * 2); a = tower.gate(a); handle.remove()",
            "log.append('gate' in dict(tower.named_modules()))", "a = functools.reduce(lambda v, m: m(v), tower, a)",
            "tower.first.add_module(f'extra{len(tower.first._modules)}', nn.Identity())", "tower.first.alpha = n", "del tower[-1]",
            "tower.append(nn.Tanh())",
            "a = torch.func.functional_call(tied, {'weight': torch.eye(3), 'bias': torch.zeros(3)}, (a,))",
            "tower.gate.named['scale'] = nn.Parameter(a.detach().reshape(-1)[:3])", "a = a * tower.gate.named['scale']",
            "tower.first.inner, tower.first.spare = nn.Identity(), tower.first.inner", "log.append(tower.first.missing)",
            "tower.gate.weights[0].data.add_(1)", "first, *others = tower; a = first(a)", "log.append(tower.first.enabled)",
            "a = tower.get_submodule('gate')(a)", "tower.gate.weights.append(nn.Parameter(torch.ones(3)))",
            "tower.apply(lambda m: log.append(type(m).__name__))", "tower(a).sum().backward()",
            "with nn.utils.parametrize.cached(): a = tower(a) + tower(a)"],
        changes=[
            "tower.first.enabled = not tower.first.enabled", "tower.first = tower.first.inner", "tower.gate.choice = 1",
            "tower.first.inner = Adapter(tower.first.inner)", "tower.gate.weights.append(nn.Parameter(torch.zeros(3)))",
            "tower.gate.named['shift'] = nn.Parameter(torch.ones(3))", "tower.insert(0, nn.Tanh())", "tower.append(nn.Dropout())",
            "nn.utils.parametrize.remove_parametrizations(tower.plain, 'weight')", "tower.pop(0)", "del tower[0]",
            "tower = tower[1:]", "nn.utils.parametrize.register_parametrization(tied, 'bias', nn.Tanh())", "Gate.counts.clear()",
            "tower.eval()", "import torch.nn.utils.prune as prune; prune.l1_unstructured(tied, 'weight', 0.5)",
            "import torch.nn.utils.prune as prune; prune.remove(tied, 'weight')",
            "tower.first.forward = types.MethodType(lambda self, a: a * 2, tower.first)",
            "Gate.active = property(lambda self: 2.0)", "Adapter.__getattr__ = nn.Module.__getattr__",
            "tower.register_module('extra', nn.Tanh())", "tower.gate.train(False)",
            "tower.gate.register_forward_hook(lambda m, a, o: (log.append(m.choice), o)[1], always_call=True)", "tower.double()",
            "tower.requires_grad_(False)", "tower.first.register_forward_pre_hook(lambda m, a: (a[0] + 1,))", "tower.zero_grad()",
            "tower.apply(lambda m: setattr(m, 'alpha', {v}))", "tied.weight = nn.Parameter(torch.eye(3))", "tied.bias = None",
            "tied.weight.data = torch.eye(3)", "tower.first.inner.weight = tied.weight", "nn.utils.spectral_norm(tied)",
            "tower.plain.parametrizations.weight.original0.data.mul_(2)", "nn.utils.parametrizations.orthogonal(tied)",
            "tower.gate = Gate()", "tower.gate.weights[0] = tower.gate.weights[1]", "del Gate.__setattr__", "Gate.choice = 1",
            "tower.first.up, tower.first.down = tower.first.down, tower.first.up", "tower.gate.forward = tied.forward",
            "tower.load_state_dict({{k: v * 2 for k, v in tower.state_dict().items()}}, strict=False)", "del tower.first.inner",
            "tower.first.register_full_backward_pre_hook(lambda m, g: log.append(len(g)))", "tower.gate.temperature = {v}"]),
    "types": piece("""
        class Traced(torch.Tensor):
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                log.append(getattr(func, "__name__", "?"))
                return super().__torch_function__(func, types, args, kwargs or {})

        class Unit(torch.Tensor):
            unit = "m"

            def doubled(self):
                return self * 2

        class Duck:
            def __init__(self, data):
                self.data = data

            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                args = [arg.data if isinstance(arg, Duck) else arg for arg in args]
                return Duck(func(*args, **(kwargs or {})))

        class Twice(torch.overrides.TorchFunctionMode):
            def __torch_function__(self, func, types, args=(), kwargs=None):
                result = func(*args, **(kwargs or {}))
                return result * 2 if func is torch.tanh else result

        class Registry(type):
            def __instancecheck__(cls, x):
                log.append("asked")
                return hasattr(x, "value")

            def __iter__(cls):
                return iter(cls.known)

            def __len__(cls):
                return len(cls.known)

            def __getitem__(cls, name):
                return {each.__name__: each for each in cls.known}[name]

            def __contains__(cls, name):
                return any(each.__name__ == name for each in cls.known)

        class Registered(metaclass=Registry):
            known, rate = [], 1.0

            def __init_subclass__(cls, rate=1.0, **named):
                super().__init_subclass__(**named)
                Registered.known.append(cls)
                cls.rate = rate

            def __call__(self, a):
                return a * self.rate

        class First(Registered, rate=0.5):
            pass

        class Second(First, rate=2):
            def __call__(self, a):
                return super().__call__(a) + self.rate

        class Ratio(float):
            def __add__(self, other):
                return Ratio(float(self) + other + 1)

        class Level(enum.IntEnum):
            LOW = 1
            HIGH = 2

        class Option(enum.Flag):
            READ = 1
            WRITE = 2
        traced, unit = torch.ones(3).as_subclass(Traced), torch.ones(3).as_subclass(Unit)
        ratio, level, option, second = Ratio(1.5), Level.LOW, Option.READ, Second()
        unit.unit = "cm"
    """, numbers="First.rate Registered.rate ratio level second.rate", tensors="traced unit", classes="Registered First Second",
        objects="second", lists="Registered.known", names="unit.unit",
        functions="second; First(); Registered['Second'](); (lambda a:unit.doubled()*a); (lambda a:torch.add(Duck(a),1).data)",
        readers="int(isinstance(box,Registered)); len(Registered); len([*Registered]); int('First' in Registered); ratio+1; "
                "level+1; int(level is Level.LOW); Level(2)*1; len(list(Option)); int(bool(option&Option.READ)); First.rate; "
                "unit.doubled().sum().item()",
        globals="traced unit ratio level option second", managers="Twice(); torch._C.DisableTorchFunctionSubclass()",
        statements=[
            "a = unit.doubled() + a", "log.append(type(a + unit).__name__)", "a = traced + a",
            "log.append(Registered['First'].__name__)", "class Third(First, rate=n): pass",
            "log.append([each.rate for each in Registered])", "level = Level.HIGH", "option |= Option.WRITE", "log.append(option)",
            "log.append(level)", "ratio = ratio + n", "unit.unit = 'km'", "log.append(isinstance(n, Registered))",
            "a = a.as_subclass(torch.Tensor)", "log.append(getattr(a, 'unit', None))", "with Twice(): a = torch.tanh(a)",
            "a = torch.mul(Duck(a), 2).data", "log.append(Level(1).name)", "unit.mul_(2)", "a = a.as_subclass(Unit)",
            "log.append(Option.READ in option)", "log.append(type(ratio).__name__)", "unit = unit + 1",
            "match level:\n    case Level.LOW: n = 1\n    case _: n = 2", "log.append(type(torch.cat([unit, unit])).__name__)",
            "kind = type('Made', (First,), {'rate': n}); a = kind()(a)", "log.append(issubclass(Second, Registered))"],
        changes=[
            "unit.unit = 'k'", "Unit.doubled = lambda self: self",
            "Traced.__torch_function__ = torch._C._disabled_torch_function_impl", "del Traced.__torch_function__",
            "Registry.__instancecheck__ = lambda cls, x: True", "Registered.known.clear()",
            "Registry.__call__ = lambda cls, *seen: box", "Registry.__getattr__ = lambda cls, name: 3.0", "First.rate = {v}",
            "traced = unit", "unit = torch.ones(3)", "Registry.__len__ = lambda cls: 9",
            "type('New', (Registered,), {{}}, rate={v})", "First.__call__ = lambda self, a: a + 1", "del Second.__call__",
            "Second.__bases__ = (Registered,)", "x = x.as_subclass(Traced)", "x = x.as_subclass(Unit)", "level = Level.HIGH",
            "level = 2", "option = Option.READ | Option.WRITE", "ratio = 1.5", "Ratio.__add__ = lambda self, other: 4.0",
            "Ratio.__radd__ = lambda self, other: 5.0", "Registered.known.reverse()",
            "Twice.__torch_function__ = lambda self, func, types, args=(), kwargs=None: func(*args, **(kwargs or {{}})) + 1",
            "Unit.__torch_function__ = Traced.__torch_function__", "Unit.__add__ = lambda self, other: other",
            "Duck.__torch_function__ = classmethod(lambda cls, func, types, args=(), kwargs=None: Duck(torch.ones(3)))",
            "second.rate = {v}", "second.__class__ = First", "Registry.__setattr__ = lambda cls, name, value: None",
            "Registry.__getattribute__ = lambda cls, name: type.__getattribute__(cls, name)", "del unit.unit",
            "Unit.unit = property(len)"]),
    "habits": piece("""
        class Meter:
            def __init__(self):
                self.total, self.count, self.window = 0.0, 0, collections.deque(maxlen=3)

            def update(self, value, n=1):
                self.total += value * n
                self.count += n
                self.window.append(value)

            @property
            def average(self):
                return self.total / max(self.count, 1)

        class Schedule:
            def __init__(self, base=0.5, warmup=2):
                self.base, self.warmup, self.number = base, warmup, 0

            def step(self):
                self.number += 1
                return self.rate

            @property
            def rate(self):
                return self.base * min((self.number + 1) ** -0.5, (self.number + 1) / self.warmup)

        class Transaction:
            def __init__(self, target):
                self.target = target

            def __enter__(self):
                self.saved = dict(vars(self.target))
                return self

            def __exit__(self, kind, error, traceback):
                if kind is not None:
                    vars(self.target).clear()
                    vars(self.target).update(self.saved)
                return isinstance(error, ValueError)

        class Emitter:
            def __init__(self):
                self.callbacks = {}

            def on(self, name, callback=None):
                if callback is None:
                    return functools.partial(self.on, name)
                self.callbacks.setdefault(name, []).append(callback)
                return callback

            def emit(self, name, *args):
                return [callback(*args) for callback in list(self.callbacks.get(name, ()))]

        class Loader:
            def __init__(self, rows, size=2):
                self.rows, self.size, self.epoch = rows, size, 0

            def __len__(self):
                return len(self.rows) // self.size

            def __iter__(self):
                self.epoch += 1
                for start in range(0, len(self.rows), self.size):
                    yield self.rows[start:start + self.size]

        def retry(function, x, times=2):
            for k in range(times):
                try:
                    return function(x)
                except (RuntimeError, ValueError) as error:
                    log.append((k, type(error).__name__))
            return x

        def flaky(x):
            schedule.number += 1
            x = x + 1
            if schedule.number % 2:
                raise ValueError(schedule.number)
            return x * schedule.rate
        clock, schedule, emitter, loader = Meter(), Schedule(), Emitter(), Loader([torch.full((3,), k * 0.5) for k in range(4)])
        batches, memo, steps_done = iter(loader), {}, itertools.count(1)

        @emitter.on("ping")
        def pinged(value):
            clock.count += 1
            return value

        def lazily(build):
            made = []

            def get():
                if not made:
                    made.append(build())
                return made[0]
            return get
        pattern = lazily(lambda: torch.arange(3.0) * H)

        def cached(x):
            key = tuple(x.shape), x.dtype
            if key not in memo:
                memo[key] = torch.ones_like(x) * len(memo)
            return x + memo[key]
    """, numbers="clock.total clock.count clock.window[-1] schedule.base schedule.number schedule.warmup loader.size loader.epoch",
        objects="clock schedule emitter loader", classes="Meter Schedule Emitter",
        lists="clock.window loader.rows emitter.callbacks['ping']", dicts="emitter.callbacks memo",
        tensors="loader.rows[0] pattern()", generators="batches loader",
        functions="flaky; cached; functools.partial(retry,flaky); (lambda v:v*schedule.rate); (lambda v:v+pattern())",
        readers="clock.average; schedule.rate; schedule.step(); len(emitter.emit('ping',1)); len(loader); loader.epoch; "
                "sum(clock.window); len(memo); next(steps_done); len(next(batches,()))", globals="clock schedule batches pattern",
        managers="Transaction(box); Transaction(clock); Transaction(schedule)",
        statements=[
            "clock.update(n)", "clock.update(a.sum().item())", "schedule.step()", "n = emitter.emit('ping', n)[-1]",
            "a = retry(flaky, a)", "emitter.on('ping', lambda *seen: log.append(len(seen)))",
            "batch = next(batches, None); log.append(batch)", "batches = iter(loader)", "for batch in loader: a = a + batch[0]",
            "a = flaky(a)", "a = cached(a)", "b = b + pattern()", "emitter.on('pong')(lambda value: value * schedule.rate)",
            "log.append(emitter.emit('pong', a))", "a = a * schedule.rate",
            "with Transaction(schedule): schedule.number = 9; fails(ValueError(n))", "a = a * schedule.number",
            "a = a / clock.average", "with Transaction(clock): clock.count = a.sum(); a = flaky(a)", "log.append(next(steps_done))",
            "a = a + next(steps_done)", "schedule.base *= 0.9", "clock.window.append(a)",
            "a = F.dropout(a, min(schedule.rate, 0.5))", "loader.rows.reverse()",
            "emitter.callbacks.setdefault('kept', []).append(lambda: a)",
            "log.append([f() for f in emitter.callbacks.get('kept', ())])", "if schedule.number % 3 == 0: a = a * 2",
            "a = a.clamp(max=schedule.number)", "a = torch.where(a > schedule.rate, a, b)",
            "a = a.narrow(-1, 0, min(schedule.number, 3))", "log.append(f'{schedule.rate:.3f} {clock.average}')",
            "loader.size = 1 + n % 2", "for i, batch in enumerate(batches): a = a + batch[-1] * i",
            "a = a + loader.rows[schedule.number % len(loader.rows)]", "n = round(clock.average, 2)",
            "log.append(f'{schedule.number:03d}')", "table[f'step{schedule.number}'] = a"],
        changes=[
            "emitter.callbacks.clear()", "emitter.on('ping', print)", "schedule.number += 1", "schedule.warmup = {v}",
            "clock = Meter()", "Schedule.rate = property(lambda self: self.number)", "Meter.average = {v}",
            "loader.rows.append(torch.ones(3))", "batches = iter(loader)", "next(batches, None)", "clock.count = numpy.int64(3)",
            "clock.window = collections.deque([1.0])", "emitter.callbacks['ping'].append(pinged)",
            "emitter.on('pong', lambda value: {v})", "schedule.base = 1 / 3", "memo.clear()",
            "pattern = lazily(lambda: torch.ones(3))", "pattern.__closure__[1].cell_contents.clear()",
            "steps_done = itertools.count(5)", "Emitter.emit = lambda self, *seen: [4.0]",
            "Transaction.__exit__ = lambda self, *seen: True", "batches.close()", "Loader.__iter__ = lambda self: iter(self.rows)",
            "loader = loader.rows", "schedule.number = 2 ** 40", "clock.total = 1j", "schedule.number = -2",
            "schedule.step = lambda: 2.0", "memo = collections.defaultdict(lambda: 3.0)", "next(steps_done)",
            "pinged.__code__ = (lambda value: -1).__code__", "emitter.callbacks['ping'][0] = abs", "retry.__defaults__ = (1,)",
            "flaky = compiled(flaky)", "cached = compiled(cached)"]),
}
