"""Pieces of worlds made of the standard library's classes: containers of all kinds, dataclasses, dispatch, copies, generators of
random numbers, and iterators that many calls share."""
from __future__ import annotations

from tests.fuzz.pieces import piece

PIECES = {
    "records": piece("""
        import heapq, typing

        @functools.total_ordering
        class Version:
            def __init__(self, value):
                self.value = value

            def __eq__(self, other):
                return self.value == getattr(other, "value", other)

            def __lt__(self, other):
                return self.value < getattr(other, "value", other)

        @dataclasses.dataclass(slots=True, order=True)
        class Span:
            start: float
            stop: float = 2.0
            step: dataclasses.InitVar[float] = 1.0
            tensor: object = dataclasses.field(default=None, compare=False, repr=False)

            def __post_init__(self, step):
                self.stop *= step

            @property
            def width(self):
                return self.stop - self.start

        @dataclasses.dataclass(kw_only=True)
        class Options:
            rate: float = 0.5
            names: dict = dataclasses.field(default_factory=lambda: {"a": 1.0})
            parent: object = None

        class Sample(typing.NamedTuple):
            value: float
            tensor: object = torch.full((3,), 0.5)

            def scaled(self, by=1.0):
                return self.tensor * self.value * by

        class Defaults(collections.UserDict):
            def __missing__(self, key):
                return 3.0

            def __setitem__(self, key, value):
                log.append(key)
                super().__setitem__(key, value)

        class Rows(collections.UserList):
            @property
            def total(self):
                return sum(self.data)

        class Handler:
            by = 1.5

            @functools.singledispatchmethod
            def handle(self, value):
                return self.by

            @handle.register
            def handle_int(self, value: int):
                return value + self.by

            def scaled(self, a, by=1.0):
                return a * by * self.by
            half = functools.partialmethod(scaled, by=0.5)

            def __copy__(self):
                made = type(self)()
                made.by = self.by + 1
                return made

            def __deepcopy__(self, memo):
                made = memo[id(self)] = type(self)()
                made.by = self.by * 2
                return made

            def __format__(self, spec):
                return spec + str(self.by)
        version, span, options, sample = Version(2), Span(0.5, tensor=torch.ones(3)), Options(parent=box), Sample(1.5)
        chain, defaults, rows_list = collections.ChainMap({"a": 1.0}, table), Defaults(a=1.0), Rows([1.0, 2.0])
        handler, heap, read_only = Handler(), [1.0, 3.0, 2.0], types.MappingProxyType(box.table)
        by_object, by_name = weakref.WeakKeyDictionary({box: 1.0}), weakref.WeakValueDictionary(box=box)
        value_of, applied = operator.attrgetter("value"), operator.methodcaller("apply", weight)
    """, numbers="version.value span.start span.stop options.rate options.names['a'] chain['a'] defaults['a'] rows_list[0] "
                 "handler.by Handler.by by_object[box] chain.maps[0]['a'] heap[0] Options.rate",
        tensors="span.tensor sample.tensor",
        lists="rows_list rows_list.data heap chain.maps",
        dicts="chain defaults options.names chain.maps[0] by_object defaults.data",
        objects="version options handler rows_list", classes="Version Options Handler Rows Defaults",
        functions="handler.half; handler.scaled; (lambda a:a*sample.value); sample.scaled; (lambda a:a+value_of(box))",
        globals="version span options sample chain defaults handler read_only value_of",
        readers="span.width; rows_list.total; handler.handle(2); handler.handle(1.5); handler.handle('a'); defaults['zz']; "
                "len(chain); int(version<=2); int(version>Version(1)); int(Span(1.0)<span); sample[0]; len(by_object); "
                "value_of(box); read_only['a']; float(f'{handler:1}'); len(by_name); int(Span(0.5)==span); "
                "operator.itemgetter(0)(sample); "
                "len(dataclasses.fields(span)); copy.copy(handler).by; sample._asdict()['value']; hash(sample.value); "
                "next(iter(heap))",
        statements=[
            "span = dataclasses.replace(span, step=n)", "options = dataclasses.replace(options, rate=n)", "span.start += 1",
            "log.append(dataclasses.asdict(options, dict_factory=list))", "log.append(dataclasses.astuple(span)[:2])",
            "log.append(span)", "sample = sample._replace(value=n)", "a = sample.scaled(n)", "sample = Sample(n, a)",
            "value, tensor = sample; a = a + tensor", "chain = chain.new_child({'a': n})", "chain['b'] = n",
            "chain = chain.parents", "log.append(dict(chain))", "defaults['b'] = n", "log.append(dict(defaults))",
            "defaults |= {'c': n}", "log.append('zz' in defaults)", "rows_list.append(n)", "rows_list += [n]",
            "log.append(rows_list * 2)", "rows_list = rows_list[1:]", "rows_list.sort()", "heapq.heappush(heap, n)",
            "n = heapq.heappop(heap)", "n = heapq.heapreplace(heap, 2.0)", "log.append(heapq.nlargest(2, heap))",
            "a = handler.half(a)", "n = handler.handle(n)", "log.append(f'{handler:>}')", "handler = copy.copy(handler)",
            "handler = copy.deepcopy(handler)", "log.append(copy.deepcopy([handler, handler])[1].by)",
            "log.append(version >= 1)", "version.value += 1", "log.append(sorted([version, Version(n)])[0].value)",
            "by_object[twin] = n", "log.append(sorted(by_object.values()))", "by_object.pop(box, None)",
            "log.append(by_object.get(twin))", "by_name['twin'] = twin", "log.append(sorted(by_name))",
            "made = Derived(); made.value = n; by_object[made] = 2; del made", "log.append(len(by_object))",
            "log.append(read_only.get('zz', n))", "log.append([*read_only])", "a = applied(box) + a",
            "value_of = operator.attrgetter('value', 'child.value')", "log.append(value_of(box))",
            "match span:\n    case Span(start=0.5): n = 1\n    case Span(start=first): n = first",
            "match sample:\n    case Sample(1.5, t): a = a + t\n    case (first, _): n = first",
            "match options:\n    case Options(rate=rate, names={'a': first}): n = rate + first", "log.append(span == Span(n))",
            "log.append(dataclasses.is_dataclass(span))", "span.tensor = a", "a = a + span.tensor", "log.append(repr(span))",
            "log.append(options == dataclasses.replace(options))", "options.names[str(n)] = n",
            "for field in dataclasses.fields(options): log.append(getattr(options, field.name) is None)", "span.extra = n",
            "for key, value in chain.items(): log.append(key)", "options.parent = handler", "n = options.parent.by",
            "with contextlib.suppress(AttributeError, KeyError): n = chain['zz'] + options.parent.by"],
        changes=[
            "span.start = {v}", "span.tensor.mul_(2)", "span = Span({v})", "sample = Sample({v})", "sample = (2.0, weight)",
            "options.names = {{'a': {v}}}", "options = Options()", "Options.__match_args__ = ()", "chain.maps.reverse()",
            "chain.maps.append({{'zz': 1.0}})", "chain = collections.ChainMap(box.table, chain)", "table['a'] = {v}",
            "defaults.data['a'] = {v}", "defaults.data = {{}}", "Defaults.__missing__ = lambda self, key: {v}",
            "del Defaults.__missing__", "rows_list.data.append({v})", "rows_list.data = heap", "heap.clear()",
            "heap.append({v})", "Handler.handle.register(float)(lambda self, value: 9.0)",
            "Handler.handle.register(str)(lambda self, value: {v})",
            "Handler.half = functools.partialmethod(Handler.scaled, by=3.0)", "handler.half = lambda a: a - 1",
            "Handler.scaled.__defaults__ = ({v},)", "Handler.__copy__ = lambda self: box", "del Handler.__deepcopy__",
            "Handler.__format__ = lambda self, spec: '4'", "Version.__lt__ = lambda self, other: True",
            "Version.__le__ = lambda *a: False", "version.value = {v}", "version = {v}", "by_object[box] = {v}",
            "del by_object[box]", "by_object[twin] = {v}", "by_name.clear()", "by_name['box'] = twin", "box.table['a'] = {v}",
            "read_only = types.MappingProxyType({{'a': {v}}})", "value_of = operator.attrgetter('child.value')",
            "value_of = operator.itemgetter(0)", "applied = operator.methodcaller('doubled')",
            "Span.width = property(lambda self: 5.0)", "Span.__eq__ = lambda self, other: True",
            "Span.__post_init__ = lambda self, s: None", "Sample.scaled = lambda self, by=1: weight",
            "Sample.value = property(lambda self: 7.0)", "twin, box = box, twin", "Sample.__new__.__defaults__ = ({v},)",
            "Options.__init__ = lambda self, **named: vars(self).update(rate=1.0, names={{}})",
            "sample = sample._replace(tensor=torch.zeros(3))", "chain.maps[0] = collections.OrderedDict(a={v})"]),
    "draws": piece("""
        import json, pickle, bisect, fractions, decimal, string

        class Sampler:
            def __init__(self, seed=3):
                self.random, self.generator, self.p = random.Random(seed), torch.Generator().manual_seed(seed), 0.5

            def mask(self, a):
                return a * torch.bernoulli(torch.full_like(a, self.p), generator=self.generator)

            def choose(self, options):
                return options[self.random.randrange(len(options))]

            def state(self):
                return self.generator.get_state().sum().item()

        class Window:
            def __init__(self, size=3):
                self.values, self.size, self.order = [], size, []

            def push(self, value):
                self.values.append(value)
                bisect.insort(self.order, value)
                if len(self.values) > self.size:
                    self.order.remove(self.values.pop(0))

            @property
            def median(self):
                return self.order[len(self.order) // 2] if self.order else 0.0

            def __getstate__(self):
                return {"values": self.values, "size": self.size}

            def __setstate__(self, state):
                self.__dict__.update(state, order=sorted(state["values"]))
        sampler, window, array_draws = Sampler(), Window(), numpy.random.default_rng(3)
        turns, numbered, third = itertools.cycle([1.0, 2.0, 0.5]), itertools.count(1), fractions.Fraction(1, 3)
        price, template, encoded = decimal.Decimal("1.10"), string.Template("$name-${value}"), json.dumps({"a": [1.0, 2.0]})
    """, numbers="sampler.p window.size window.median", objects="sampler window", classes="Sampler Window",
        lists="window.values window.order", functions="sampler.mask; (lambda a:a*next(turns)); (lambda a:a+float(third))",
        readers="sampler.random.random(); sampler.choose([1.0,2.0]); window.median; next(turns); next(numbered); float(third*2); "
                "float(price); json.loads(encoded)['a'][0]; sampler.state()%7; array_draws.random(); "
                "int(array_draws.integers(5)); "
                "sampler.random.gauss(0,1); len(pickle.dumps(window.values)); third.denominator; random.random(); "
                "bisect.bisect(window.order,1.0); int(torch.randint(5,(),generator=sampler.generator))",
        generators="turns numbered zip(turns,numbered) itertools.islice(numbered,2)",
        globals="sampler window turns numbered third price",
        statements=[
            "a = sampler.mask(a)", "n = sampler.choose([n, 2.0])", "window.push(round(float(n), 2))", "log.append(window.order)",
            "a = a + torch.rand(3, generator=sampler.generator)", "a = a * torch.randn((), generator=sampler.generator)",
            "log.append(torch.randperm(3, generator=sampler.generator).tolist())", "sampler.generator.manual_seed(int(n))",
            "state = sampler.random.getstate(); log.append(sampler.random.random()); sampler.random.setstate(state)",
            "sampler.random.shuffle(items)", "log.append(sampler.random.sample(range(5), 2))", "random.seed(int(n))",
            "a = a * sampler.random.uniform(0, 1)", "log.append(sampler.random.choices([1, 2], k=2))",
            "a = a + array_draws.random()",
            "log.append(array_draws.integers(5, size=2).tolist())", "torch.manual_seed(5)", "a = a * next(turns)",
            "saved = sampler.generator.get_state(); a = a + torch.rand(3, generator=sampler.generator); "
            "sampler.generator.set_state(saved)",
            "with torch.random.fork_rng(): a = a + torch.rand(3)", "a = F.dropout(a, sampler.p)", "n = next(numbered) + n",
            "third = third + fractions.Fraction(1, 2)", "log.append(third)", "price = price * 2", "log.append(str(price))",
            "log.append(template.substitute(name=name, value=n))", "log.append(json.dumps({'n': n, 'items': items}))",
            "encoded = json.dumps([n, {'a': n}])", "log.append(json.loads(encoded))",
            "window = pickle.loads(pickle.dumps(window))",
            "window = copy.deepcopy(window)", "sampler = copy.deepcopy(sampler)", "log.append(window.median)",
            "a.bernoulli_(0.5, generator=sampler.generator)", "a = a + a.new_empty(3).uniform_(generator=sampler.generator)",
            "a = a + torch.normal(0.0, 1.0, (3,), generator=sampler.generator)", "log.append(sampler.generator.initial_seed())",
            "log.append([*itertools.accumulate(items, operator.mul)][:3])", "log.append([*itertools.pairwise(window.values)])"],
        changes=[
            "sampler.generator.manual_seed(5)", "sampler.generator = torch.Generator()",
            "sampler.generator = torch.default_generator",
            "sampler.random.seed(5)", "sampler.random = random", "sampler.random = random.Random(7)",
            "sampler.random.random = lambda: 0.5",
            "sampler = Sampler(4)", "torch.rand(2, generator=sampler.generator)", "sampler.random.random()", "window.push({v})",
            "window.order.reverse()", "window = Window(1)", "Window.median = 2.0", "Window.push = lambda self, value: None",
            "del Window.__setstate__", "turns = itertools.cycle([5.0])", "next(turns)", "next(numbered)",
            "numbered = itertools.count(9)",
            "third = fractions.Fraction(2, 3)", "third = 0.25", "price = decimal.Decimal('3')",
            "encoded = '[1]'", "encoded = json.dumps({{'a': [{v}]}})", "template = string.Template('$name')",
            "array_draws.random()",
            "array_draws = numpy.random.default_rng(4)", "sampler.generator.set_state(torch.Generator().get_state())",
            "torch.manual_seed(3)", "random.seed(3)",
            "json = types.SimpleNamespace(loads=lambda text: {{'a': [2.0]}}, dumps=str)", "Sampler.choose = lambda self, o: o[0]"]),
}
