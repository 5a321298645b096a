"""Pieces of worlds of a kind each: classes and their instances, containers, functions and streams, modules, arrays, autograd."""
from __future__ import annotations

from tests.fuzz.pieces import piece

PIECES = {
    "slots": piece("""
        class Slotted:
            __slots__ = ("value", "tensor", "other")

            def __init__(self, value):
                self.value, self.tensor = value, torch.full((3,), 0.5)

            def __add__(self, other):
                return self.value + other

            def __eq__(self, other):
                return self.value == getattr(other, "value", other)

            __hash__ = object.__hash__
        slotted = Slotted(2)
    """, numbers="slotted.value slotted.other", tensors="slotted.tensor",
        readers="slotted+1; getattr(slotted,'other',3); int(slotted==2)",
        classes="Slotted"),
    "dataclass": piece("""
        @dataclasses.dataclass
        class Point:
            x: float = 1.0
            y: object = None
            tags: list = dataclasses.field(default_factory=list)

            def __post_init__(self):
                self.norm = abs(self.x)

        @dataclasses.dataclass(frozen=True)
        class Config:
            lr: float = 0.5
            mode: str = "relu"
        point, config = Point(2.0), Config()
        Pair = collections.namedtuple("Pair", "first second")
        couple = Pair(1.5, [2.0])
    """, numbers="point.x point.y point.norm Config.lr couple.second[0]", lists="point.tags couple.second", objects="point",
        classes="Point Config", names="config.mode",
        readers="config.lr; couple.first; Point(3.0).norm; dataclasses.replace(point,x=2.5).x; int(Config()==config); couple[0]"),
    "protocols": piece("""
        class Positive:
            def __set_name__(self, owner, name):
                self.slot = "_" + name

            def __get__(self, instance, owner=None):
                return self if instance is None else getattr(instance, self.slot, 1.0)

            def __set__(self, instance, value):
                setattr(instance, self.slot, abs(value))

        class Proxy:
            level = Positive()

            def __init__(self, target):
                self.__dict__["target"] = target

            def __getattr__(self, name):
                if name == "target":
                    raise AttributeError(name)
                return getattr(self.target, name)

            def __len__(self):
                return 2

            def __getitem__(self, index):
                if index > 2:
                    raise IndexError(index)
                return index * self.level

            def __bool__(self):
                return bool(self.level > 1)

            def __contains__(self, value):
                return value == self.level
        proxy = Proxy(box)
    """, numbers="proxy.level proxy._level", objects="proxy", classes="Proxy Positive",
        readers="proxy.value; len(proxy); sum(proxy); proxy[1]; int(bool(proxy)); int(1.0 in proxy); proxy.scale; max(proxy)",
        functions="proxy.apply"),
    "metaclass": piece("""
        class Meta(type):
            made = 0

            def __call__(cls, *args):
                cls.made += 1
                return super().__call__(*args)

            @property
            def total(cls):
                return cls.made * 2

        class Counted(metaclass=Meta):
            limit = 2

            def __init__(self, value=1):
                self.value = value * self.limit

        class Color(enum.Enum):
            RED = 1
            BLUE = 2.5
        color, counted = Color.RED, Counted()
    """, numbers="Counted.limit Counted.made counted.value", objects="counted", classes="Counted Meta",
        readers="Counted(3).value; Counted.total; color.value; Color['BLUE'].value; int(color is Color.RED); Color(1).value"),
    "containers": piece("""
        class Table(dict):
            def __missing__(self, key):
                return 4.0

        class Stack(list):
            top = property(lambda self: self[-1])
        lookup, stack, queue = Table(a=1.0), Stack([1.0, 3.0]), collections.deque([1.0, 2.0, 3.0], maxlen=4)
        counts, ordered = collections.Counter("aab"), collections.OrderedDict(b=1.0, a=2.0)
        groups, nested, tensors = collections.defaultdict(list, a=[1.0]), {"k": {"m": [1.0, 2.0]}}, [torch.ones(3), torch.zeros(3)]
    """, numbers="lookup['a'] stack[0] queue[0] counts['a'] ordered['a'] groups['a'][0] nested['k']['m'][0]",
        tensors="tensors[0] tensors[-1]",
        lists="stack nested['k']['m'] groups['a'] queue tensors", dicts="lookup ordered groups nested nested['k'] counts",
        readers="lookup['zz']; stack.top; counts['zz']; len(groups['b']); sum(queue); next(iter(ordered.values())); "
                "sum(counts.values()); len(nested['k']); sum(ordered[k]*i for i,k in enumerate(ordered))", classes="Table Stack"),
    "functions": piece("""
        def helper(a, by=1.0, *, power=1):
            n = by
            BODY a
            return a * G + by * power

        def factory(factor=3.0):
            calls = 0

            def closure(x):
                nonlocal calls
                calls += 1
                return x * factor + calls % 3

            def rebind(value):
                nonlocal factor
                factor = value
            return closure, rebind
        closure, rebind = factory()
        cell = closure.__closure__[1]
        partial = functools.partial(helper, by=0.5)

        def decorator(function):
            @functools.wraps(function)
            def wrapper(*args, **kwargs):
                wrapper.calls += 1
                return function(*args, **kwargs)
            wrapper.calls = 0
            return wrapper

        @decorator
        def decorated(x):
            return x + weight

        def rows(a, count=2):
            for k in range(count):
                got = yield a + k
                if got:
                    a = a * got

        def driven(x):
            generator = rows(x)
            first = next(generator)
            return generator.send(2.0) + first

        @contextlib.contextmanager
        def raised(place, by):
            old = place.value
            place.value = by
            try:
                yield place
            finally:
                place.value = old

        def managed(x):
            with raised(box, H) as place:
                x = x * place.value
            return x + box.value

        def recursive(x, depth=2):
            return x if depth <= 0 else recursive(x + depth, depth - 1)
        listed = [torch.relu, lambda x: x - 1]
        named = {"f": torch.tanh, "g": lambda x, by=2.0: x * by}
    """, numbers="cell.cell_contents helper.level decorated.calls", lists="listed", dicts="named partial.keywords",
        functions="helper closure partial decorated driven managed recursive listed[0] listed[1] named['f'] named['g'] "
                  "getattr(torch,name)",
        readers="closure.__closure__[0].cell_contents; helper.__defaults__[0]; decorated.calls; len(listed); "
                "getattr(helper,'level',2)",
        globals="helper closure partial decorated listed", managers="raised(box, n) as place; raised(twin, 2.0)",
        generators="rows(a); rows(b, count=1)"),
    "streams": piece("""
        def ticks(limit=4, by=1.0):
            count = 0
            try:
                while count < limit:
                    got = yield count * by
                    count += 1 if got is None else abs(got) + 1
            finally:
                log.append("closed")

        def through(inner):
            try:
                got = yield from inner
            except ValueError as error:
                got = yield error.args
            log.append(got)

        class Ticker:
            def __init__(self, by=1.0):
                self.by, self.count, self.left = by, 0, [1] * 9

            def __iter__(self):
                return self

            def __next__(self):
                if not self.left:
                    raise StopIteration
                self.left.pop()
                self.count += self.by
                return self.count
        stream, outer, ticker, mapped = ticks(), through(ticks(2)), Ticker(), map(lambda v: v * G, [1.0, 2.0, 3.0])
    """, numbers="ticker.by ticker.count", objects="ticker", classes="Ticker",
        readers="next(stream,-1.0); next(ticker); next(outer,-2.0); next(mapped,0.5); sum(ticks(3)); "
                "len([*itertools.islice(ticker,2)])",
        generators="stream outer mapped ticks(2) through(ticks(2)) through(stream)", globals="stream outer mapped"),
    "managers": piece("""
        class Manager:
            def __init__(self, swallows=False):
                self.swallows, self.entered = swallows, 0

            def __enter__(self):
                self.entered += 1
                log.append("enter")
                return self.entered

            def __exit__(self, cls, error, traceback):
                log.append(cls and cls.__name__)
                return self.swallows and outside(cls is not None and issubclass(cls, LookupError))

        @contextlib.contextmanager
        def cleared(place):
            kept = list(place)
            try:
                place.clear()
                yield kept
            except RuntimeError as error:
                log.append(str(error))
            finally:
                place[:] = kept
        manager, swallower = Manager(), Manager(True)
    """, numbers="manager.entered swallower.entered", objects="manager swallower", classes="Manager",
        managers="manager; manager as n; swallower; Manager(bool(n)); cleared(items); manager, swallower as n; outside(manager); "
                 "cleared(box.items) as kept"),
    "nets": piece("""
        class Block(nn.Module):
            ratio = 0.5

            def __init__(self):
                super().__init__()
                self.lin, self.norm, self.drop = nn.Linear(3, 3), nn.LayerNorm(3), nn.Dropout(0.25)
                self.register_buffer("steps", torch.zeros(3))
                self.factor, self.seen = 2.0, []

            def forward(self, a, n=1):
                if self.training:
                    self.steps += 1
                BODY a
                return self.drop(self.norm(self.lin(a))) * self.factor + self.steps * n

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.blocks = nn.ModuleList([Block(), Block()])
                self.head = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
                self.kinds = nn.ModuleDict({"a": nn.Tanh(), "b": nn.Identity()})
                self.scale, self.kind, self.calls, self.config = nn.Parameter(torch.ones(3)), "a", 0, {"depth": 2, "bias": 0.5}

            def forward(self, a, n=1):
                self.calls += 1
                for block in list(self.blocks)[:self.config["depth"]]:
                    a = block(a)
                BODY a
                return self.kinds[self.kind](self.head(a)) * self.scale + self.config["bias"]

        def hook(module, args, output):
            log.append(type(module).__name__)
            return output * 2

        def pre_hook(module, args):
            return (args[0] + G, *args[1:])

        def gradient_hook(module, grad_input, grad_output):
            log.append(len(grad_output))
        net, handles = Net(), []
        block = net.blocks[0]
    """, numbers="net.calls block.factor net.config['depth'] net.config['bias'] Block.ratio",
        lists="block.seen", dicts="net.config", tensors="block.steps net.scale block.lin.weight net.head[0].bias",
        parameters="net.scale block.lin.weight block.lin.bias net.head[0].weight",
        functions="net block net.head net.blocks[1] net.kinds['a'] block.lin block.norm net.forward",
        readers="int(net.training); len(net.blocks); len(list(net.parameters())); int(hasattr(net,'extra')); "
                "sum(p.numel() for p in block.parameters())",
        modules="net block net.head net.blocks[1] net.kinds net.blocks block.lin block.drop", names="net.kind", classes="Block Net",
        globals="net block hook"),
    "aliases": piece("""
        whole = torch.arange(6.0).reshape(2, 3)
        row, columns, same = whole[0], whole.t(), whole
        leaf = torch.ones(3, requires_grad=True)
        settings = types.ModuleType("settings")
        settings.rate, settings.items = 0.5, items
        shared = {"items": items, "row": row, "box": box}
        watched = weakref.ref(box)
    """, numbers="settings.rate shared['items'][0] shared['box'].value",
        lists="shared['items'] settings.items", dicts="shared vars(settings)",
        tensors="row whole same[0] leaf shared['row'] columns[0]", objects="settings", parameters="leaf",
        readers="int(items is settings.items); int(shared['row'] is row); watched().value; int(row is whole); "
                "int(leaf.requires_grad); leaf.ndim",
        globals="row leaf whole"),
    "library": piece("""
        @functools.lru_cache(maxsize=None)
        def remembered(value, by=1):
            return value * by + 1

        @functools.singledispatch
        def shown(value):
            return 1.0

        @shown.register(int)
        def shown_int(value):
            return value + 0.5

        class Kind(abc.ABC):
            pass

        class Lazy:
            def __init__(self, value=1.0):
                self.value = value

            @functools.cached_property
            def squared(self):
                return self.value * self.value

            def __init_subclass__(cls, **named):
                log.append(cls.__name__)
        context, local, lazy = contextvars.ContextVar("context", default=1.0), threading.local(), Lazy(1.5)
        local.value = 2.0
        os.environ["FUZZED"] = "2.0"
    """, numbers="lazy.value local.value lazy.squared", objects="lazy", classes="Lazy Kind",
        readers="remembered(2); remembered(3,by=2); shown(2); shown(1.5); shown('text'); int(isinstance(box,Kind)); "
                "int(issubclass(Other,Kind)); "
                "lazy.squared; context.get(); local.value; float(os.environ.get('FUZZED','0')); Lazy(3).squared",
        changes=[
            "remembered.cache_clear()", "remembered(5)", "shown.register(int)(lambda value: {v})",
            "shown.register(float)(lambda value: 3.0)", "Kind.register({c})", "shown.register(str)(len)", "context.set({v})",
            "os.environ['FUZZED'] = '3.5'", "os.environ.pop('FUZZED', 0)", "vars(lazy).pop('squared', 0)",
            "lazy.__dict__['squared'] = {v}", "local.value = {v}", "del local.value", "local = threading.local()",
            "Kind = type(box)", "Kind.__subclasshook__ = classmethod(lambda cls, other: True)"]),
    "arrays": piece("""
        array, arrays = numpy.array([1.0, 2.0, 3.0]), {"a": numpy.ones(3, dtype=numpy.float32), "b": numpy.arange(3)}
    """, numbers="array[0] array[-1] arrays['b'][1]", dicts="arrays",
        tensors="torch.from_numpy(array) torch.from_numpy(arrays['a'])",
        readers="float(array[0]); float(array.sum()); len(array); float(arrays['a'].mean()); int(array.dtype.itemsize); "
                "arrays['b'].tolist()[-1]",
        functions="(lambda a:a*torch.from_numpy(array)); (lambda a:a+torch.tensor(arrays['b']))", globals="array",
        changes=[
            "array[0] = {v}", "array *= 2", "array.flags.writeable = False", "array = array.astype(numpy.float32)",
            "array = numpy.arange(6.0)[::2]", "array = array.copy()", "array.shape = (3, 1)", "array = arrays['a']",
            "arrays['a'][1] = 5", "arrays['b'] = arrays['b'][::-1]", "array = {v}", "torch.from_numpy(array).zero_()",
            "array[1:] = numpy.nan", "array = numpy.array([-0.0, 0.0, 1.0])"]),
    "keys": piece("""
        class Key:
            def __init__(self, name, tag=0):
                self.name, self.tag = name, tag

            def __eq__(self, other):
                log.append(("equals", self.name))
                return isinstance(other, Key) and self.name == other.name

            def __hash__(self):
                return ord(self.name[0]) % 2
        key, keyed, keys = Key("a"), {Key("a"): 1.0, Key("b"): [2.0], "c": 3.0}, {Key("a"), Key("c"), 1}
    """, numbers="keyed[key] keyed[Key('z')]", dicts="keyed", sets="keys", objects="key", classes="Key", names="key.name",
        readers="keyed[Key('a')]; len(keys); int(Key('b') in keyed); int(key in keys); keyed.get(key,3.0); "
                "keyed.pop(Key('b'),[1])[0]; key.tag",
        changes=[
            "keyed[Key('a')] = {v}", "keyed[Key('z')] = {v}", "keyed.pop(Key('b'), 0)", "key.name = 'b'", "key = Key('b')",
            "keys.add(Key('z'))", "keys.discard(Key('a'))", "Key.__hash__ = lambda self: 1",
            "Key.__eq__ = lambda self, other: self is other", "Key.__hash__ = object.__hash__", "keyed = {{key: 4.0}}",
            "next(iter(keyed)).name = 'q'", "keyed = dict(reversed(keyed.items()))", "keyed[(Key('a'), 1)] = {v}", "key.tag = {v}",
            "Key.__eq__ = object.__eq__"]),
    "autograd": piece("""
        class Double(torch.autograd.Function):
            factor = 2

            @staticmethod
            def forward(ctx, a):
                ctx.save_for_backward(a)
                return a * Double.factor

            @staticmethod
            def backward(ctx, gradient):
                a, = ctx.saved_tensors
                return gradient * a
        draws = torch.Generator()
        draws.manual_seed(1)
        source, saved = torch.ones(3, requires_grad=True), torch.full((3,), 2.0)
    """, numbers="Double.factor", tensors="source saved", parameters="source", classes="Double", globals="source saved",
        functions="Double.apply; torch.func.vmap(torch.tanh); "
                  "(lambda a:torch.utils.checkpoint.checkpoint(torch.sin,a,use_reentrant=False)); "
                  "(lambda a:a*torch.rand(3,generator=draws))",
        readers="float(torch.rand(1,generator=draws)); int(source.grad is None); int(source.is_leaf); source._version",
        changes=[
            "draws.manual_seed(2)", "draws = torch.Generator()", "Double.factor = {v}",
            "Double.backward = staticmethod(lambda ctx, gradient: gradient * 5)", "source.grad = None",
            "Double.forward = staticmethod(lambda ctx, a: a + 1)", "source = source.detach()", "source.data = torch.zeros(3)",
            "saved.requires_grad_()", "torch.rand(2, generator=draws)", "torch.autograd.graph.increment_version(source)",
            "source = Double.apply(source)", "source.requires_grad_(False)"]),
}
