"""Ways in which the `forward` of an autograd function changes something of the program's, on every call or on later ones only: by
itself, by what it calls, by other names, by special methods; and in which its `backward` would, where both are recorded.
`python -m tests.stale.hidden_changes` runs all beside eager mode.
"""
from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

import capture
from capture.operators.autograd_function import Recorded

WORLD = """
import array, bisect, collections, contextlib, contextvars, dataclasses, enum, functools, heapq, io, itertools, operator, queue
import random, threading, types
import numpy as np
import torch
class Holder:
    shared = []
    def __init__(self): self.log = []
    def bump(self): self.log.append(1)
    def __call__(self): self.log.append(1)
    @staticmethod
    def of(items): items.append(1)
    @classmethod
    def count(cls): cls.shared.append(1)
    @property
    def bumped(self):
        self.log.append(1); return 0
    def __enter__(self): self.log.append(1)
    def __exit__(self, *a): pass
    def __len__(self): self.log.append(1); return 1
    def __add__(self, o): self.log.append(1); return o
    def __getitem__(self, i): self.log.append(1); return i
    def __getattr__(self, n):
        if n.startswith("dyn"): self.log.append(1); return 1
        raise AttributeError(n)
    def __iter__(self): self.log.append(1); return iter(())
LOG = []
TABLE = {"log": [], "n": 0}
BOX = types.SimpleNamespace(log=[], n=0)
HOLDER = Holder()
SETTINGS = Holder()
def push(items): items.append(1)
def push2(items): push(items)
def put(table): table["n"] = table["n"] + 1
def plus(items):
    items += [1]
def plus_same(items):
    same = items
    same += [1]
def insert(items): items[len(items):] = [1]
def delete(items): del items[:]
def logs(): return LOG
def table(): return TABLE
def gen(items):
    items.append(1)
    yield 1
def default(items=LOG): items.append(1)
def kwdefault(*, items=LOG): items.append(1)
def setn(box): box.n = box.n + 1
def setn2(box): setattr(box, "n", box.n + 1)
def inner_of(items):
    def inner(): items.append(1)
    return inner
INNER = inner_of(LOG)
APPEND = LOG.append
BUMP = HOLDER.bump
PART = functools.partial(push, LOG)
PARTC = functools.partial(LOG.append, 1)
LAM = lambda: LOG.append(1)
FUNCS = [push]
FTABLE = {"push": push}
DEQUE = collections.deque()
METHOD = types.MethodType(push, LOG)
CACHED = functools.lru_cache(maxsize=0)(lambda n: LOG.append(n))
@contextlib.contextmanager
def managed():
    LOG.append(1)
    yield

def with_holder(h):
    with h: pass
def with_managed():
    with managed(): pass
def operator_append(items): operator.iadd(items, [1])
def unpack(items):
    [*items[len(items):]] = [1]
    items[0:0] = [1]
def starred(*lists): lists[0].append(1)
def starkw(**k): k["items"].append(1)
def nested_default():
    def inner(n, items=LOG): items.append(n)
    return inner
def loop(lists):
    for items in lists: items.append(1)
def walrus():
    (items := LOG).append(1)

OWN = types.ModuleType("own"); OWN.__file__ = "/program/own.py"; OWN.LOG = LOG; OWN.TABLE = TABLE; OWN.N = HOLDER.log
exec(compile("def push(): LOG.append(1)", OWN.__file__, "exec"), vars(OWN))
TWO_A, TWO_B = inner_of([]), inner_of(LOG); TWO = (inner_of([]), inner_of(LOG))
COUNT = torch.zeros(1); ARR = np.zeros(2); BYTES = bytearray(b"a"); ITER = itertools.count(); OUT = io.StringIO()
PARAM = torch.nn.Parameter(torch.ones(2)); HOLDERS = [Holder()]; TUPLE = ([], 1)
ARRAY = array.array("i", [1]); CV = contextvars.ContextVar("cv", default=0)
HOOKED = torch.nn.ReLU(); LOCKS = threading.Lock()
def closed():
    n = 0
    def bump():
        nonlocal n
        n += 1
    def get(): return n
    return bump, get
BUMPED, CLOSED = closed()
class Meta(type):
    log = []
    def hit(cls): Meta.log.append(1)
    def __call__(cls): Meta.log.append(1)
class Metad(metaclass=Meta):
    n = 0
    @classmethod
    def up(cls): cls.n += 1
COUNTER = collections.Counter(a=1); DD = collections.defaultdict(int); OD = collections.OrderedDict(a=1)
class Base:
    log = []
    def hit(self): self.log.append(1)
class Sub(Base): pass
Q = queue.Queue()
class Named(collections.namedtuple("N", "log")): pass
NT = Named([])
@dataclasses.dataclass
class Data: n: int = 0
DC = Data(); LIST2 = [Data()]
class E(enum.Enum):
    A = 1
    @property
    def items(self): return LOG
WD = {"n": 0}
class REPEAT: n = 0
def FUNC(): FUNC.n += 1
FUNC.n = 0
def deco(fn):
    def wrapped(*a, **k):
        LOG.append(1)
        return fn(*a, **k)
    return wrapped
@deco
def decorated(v): return v
class Desc:
    def __get__(self, o, t): LOG.append(1); return 1
    def __set__(self, o, v): LOG.append(v)
class WithDesc: d = Desc()
WDI = WithDesc()
class Slots:
    __slots__ = ("log",)
SL = Slots(); SL.log = LOG
def kw(**k): k["a"].append(1)
def ret_tuple(): return (LOG, 1)
def make():
    yield LOG
@functools.lru_cache
def cached_log(): return LOG
@functools.singledispatch
def single(v): LOG.append(1)
class New:
    def __new__(cls): LOG.append(1); return object.__new__(cls)
class Init:
    def __init__(self): LOG.append(1)
class Del:
    def __del__(self): LOG.append(1)
class InitSub:
    def __init_subclass__(cls): LOG.append(1)
class Local:
    def __init__(self): self.items = LOG
    def push(self): self.items.append(1)
class LocalArg:
    def __init__(self, items): self.items = items
    def push(self): self.items.append(1)
class Str:
    def __str__(self): LOG.append(1); return "s"
    def __eq__(self, o): LOG.append(1); return True
    def __hash__(self): LOG.append(1); return 1
    def __format__(self, s): LOG.append(1); return "s"
    def __index__(self): LOG.append(1); return 0
    def __float__(self): LOG.append(1); return 0.
STR = Str()
def F_apply(f, *a): f(*a)
"""
WAYS = (
    'push(LOG)', 'push2(LOG)', "push(TABLE['log'])", "push(TABLE.get('log'))", 'push(BOX.log)', 'push(HOLDER.log)', 'put(TABLE)',
    'plus(LOG)', 'plus_same(LOG)', 'insert(LOG)', 'logs().append(1)', "table()['log'].append(1)", "table()['n'] = 5",
    'list(gen(LOG))', 'next(gen(LOG))', 'default()', 'kwdefault()', 'setn(BOX)', 'setn2(BOX)', 'INNER()', 'APPEND(1)', 'BUMP()',
    'PART()', 'PARTC()', 'LAM()', 'FUNCS[0](LOG)', "FTABLE['push'](LOG)", 'METHOD()', 'CACHED(1)', 'HOLDER.bump()', 'HOLDER()',
    'Holder.of(LOG)', 'HOLDER.of(LOG)', 'Holder.count()', 'HOLDER.count()', 'HOLDER.bumped', 'Holder.shared.append(1)',
    'HOLDER.shared.append(1)', 'len(HOLDER)', 'HOLDER + 1', 'HOLDER[0]', 'HOLDER.dyn', 'list(HOLDER)', '[a for a in HOLDER]',
    'bool(HOLDER)', 'ctx.items = LOG; ctx.items.append(1)', 'ctx.items = LOG; push(ctx.items)', 'items = LOG; items.append(1)',
    'items = LOG; push(items)', '[items.append(1) for items in [LOG]]', 'list(map(LOG.append, [1]))', 'list(map(push, [LOG]))',
    'functools.partial(push, LOG)()', 'functools.reduce(lambda a, b: push(LOG), [1, 2])', 'sorted([1], key=LOG.append)',
    'max([1], key=lambda v: LOG.append(v) or 1)', 'list.append(LOG, 1)', 'dict.update(TABLE, n=4)', "TABLE.setdefault('new', 3)",
    'TABLE.update(n=4)', 'LOG.insert(0, 1)', 'LOG.extend([1])', 'LOG += [1]', "getattr(LOG, 'append')(1)",
    '[*map(LOG.append, (1,))]', "exec('LOG.append(1)', {'LOG': LOG})", "eval('LOG.append(1)', {'LOG': LOG})", 'LOG.__iadd__([1])',
    'LOG.__setitem__(slice(0,0), [1])', "BOX.__dict__['n'] = 4", 'BOX.__dict__.update(n=4)', "vars(BOX)['n'] = 4",
    "globals()['LOG'].append(1)", "HOLDER.__dict__['log'].append(1)", "setattr(BOX, 'n', 4)",
    "object.__setattr__(HOLDER, 'n', 4)", 'BOX.n = 4', 'torch.utils._pytree.tree_map_(lambda v: LOG.append(1), 1)',
    'torch.utils._pytree.tree_map(lambda v: LOG.append(v), [1])', '(lambda items: items.append(1))(LOG)',
    '(lambda items=LOG: items.append(1))()', 'with_holder(HOLDER)', 'with_managed()', 'Holder.bump(HOLDER)',
    'type(HOLDER).bump(HOLDER)', 'HOLDER.__class__.bump(HOLDER)', "super(Holder, HOLDER).__getattribute__('log').append(1)",
    'operator_append(LOG)', 'unpack(LOG)', 'starred(*[LOG])', "starkw(**{'items': LOG})", 'nested_default()(1)', 'loop([LOG])',
    'walrus()', 'COUNT.add_(1)', 'COUNT[0] = 5', 'COUNT.data = torch.ones(1)', 'torch.add(COUNT, 1, out=COUNT)',
    'PARAM.data.mul_(2)', 'ARR[0] += 1', 'ARR.fill(3)', 'np.add(ARR, 1, out=ARR)', 'BYTES.append(3)', 'BYTES[0] = 5',
    'next(ITER)', "OUT.write('x')", 'BUMPED()', 'Metad.hit()', 'Metad()', 'Metad.up()', 'Metad.n', "COUNTER.update('a')",
    "COUNTER['b'] += 1", "DD['a'] += 1", "DD['new']", "OD.move_to_end('a')", 'Sub().hit()', 'Sub.log.append(1)', 'Sub.hit(Sub())',
    'Q.put(1)', 'NT.log.append(1)', 'NT[0].append(1)', 'DC.n += 1', 'LIST2[0].n += 1', 'HOLDERS[0].log.append(1)',
    'HOLDERS.append(1)', 'TUPLE[0].append(1)', 'push(TUPLE[0])', 'E.A.items.append(1)', 'ARRAY.append(1)', 'CV.set(5)',
    'REPEAT.n += 1', "setattr(REPEAT, 'n', 4)", "type.__setattr__(REPEAT, 'n', 4)", 'FUNC()', 'LOCKS.acquire(blocking=False)',
    'HOOKED.register_forward_hook(print)', 'HOOKED.eval()', 'decorated(1)', 'WDI.d', 'WDI.d = 4', 'WithDesc.d',
    'SL.log.append(1)', 'push(SL.log)', 'kw(a=LOG)', 'ret_tuple()[0].append(1)', 'next(make()).append(1)',
    '[i.append(1) for i in make()]', 'cached_log().append(1)', 'single(1)', 'New()', 'Init()', 'Del()', 'Local().push()',
    'LocalArg(LOG).push()', 'str(STR)', "f'{STR}'", 'STR == 1', 'STR in [1]', '{STR: 1}', '[1][STR]', 'float(STR)', 'hash(STR)',
    'heapq.heappush(LOG, 1)', 'bisect.insort(LOG, 1)', 'random.shuffle(LOG)', "operator.setitem(TABLE, 'n', 5)",
    "operator.methodcaller('append', 1)(LOG)", "operator.attrgetter('append')(LOG)(1)",
    'itertools.accumulate([1, 2], lambda a, b: LOG.append(1)).__next__()',
    'list(itertools.accumulate([1, 2], lambda a, b: LOG.append(1)))', 'list(itertools.starmap(push, [(LOG,)]))',
    '(lambda: (yield LOG.append(1)))().__next__()', 'a, *b = LOG, 1; a.append(1)', "d = dict(a=LOG); d['a'].append(1)",
    'd = [LOG]; d[0].append(1)', 'd = {1: LOG}; push(*d.values())', 't = (LOG,); push(*t)',
    '(LOG if x.sum() > 0 else LOG).append(1)', '(LOG or LOG).append(1)', '(LOG and LOG).append(1)', '[LOG][0].append(1)',
    'x.register_hook(lambda g: LOG.append(1))', 'list(filter(lambda v: LOG.append(1), [1]))', 'any(LOG.append(1) for _ in [1])',
    "dict.__setitem__(TABLE, 'n', 5)", "TABLE.__setitem__('n', 5)", 'torch.utils._pytree.tree_map(push, [LOG])',
    "torch.utils._pytree.tree_map(push, {'a': LOG}, is_leaf=lambda v: v is LOG)", 'F_apply(push, LOG)',
    'torch.autograd.graph.increment_version(COUNT)', 'PARAM.grad = torch.ones(2)', 'x.tag = LOG; x.tag.append(1)',
    'OWN.LOG.append(1)', 'push(OWN.LOG)', 'OWN.push()', "OWN.TABLE['n'] = 3", 'OWN.N.append(1)', 'TWO[1]()', 'TWO_B()',
    'HOLDER.log = []', 'HOLDER.log, HOLDER.n = [], 1', 'for LOG2 in [LOG]: LOG2.append(1)')
# What is read before and after, if the way names it; the rest always.
READERS = {
    "COUNT": "COUNT.item()", "ARR": "ARR.tolist()", "BYTES": "list(BYTES)", "ITER": "repr(ITER)", "OUT": "OUT.getvalue()",
    "BUMPED": "CLOSED()", "Meta": "Meta.log[:], Metad.n", "COUNTER": "list(COUNTER.items())", "DD": "DD['a'], len(DD)",
    "OD": "list(OD)", "Sub": "Sub.log[:]", "Q": "list(Q.queue)", "NT": "NT.log[:]", "LIST2": "LIST2[0].n", "DC": "DC.n",
    "PARAM": "PARAM.sum().item(), PARAM.grad is None", "HOLDERS": "len(HOLDERS), HOLDERS[0].log[:]", "TUPLE": "TUPLE[0][:]",
    "ARRAY": "list(ARRAY)", "CV": "CV.get()", "REPEAT": "REPEAT.n", "FUNC": "FUNC.n", "LOCKS": "LOCKS.locked()",
    "HOOKED": "len(HOOKED._forward_hooks), HOOKED.training"}
ALWAYS = "list(LOG), list(TABLE['log']), TABLE['n'], len(TABLE), list(BOX.log), BOX.n, list(HOLDER.log), list(Holder.shared)"
PROGRAM = """
def state():
    return {state}
def act(ctx, x):
{act}
class Changes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
{forward}
    @staticmethod
    def backward(ctx, gradient):
{backward}

def program(x):
    before = state()
    return before, Changes.apply(x) + 1, state()
"""


def source(way: str, always: bool, inside: bool) -> str:
    """A program that changes something in this way, if its argument is positive; inside: in `forward` itself."""
    body = [*shared(way), f"if {always} or x.sum() > 0:", *(f"    {statement}" for statement in way.split("; ")), "return x * 2"]
    act, forward = (["return x * 2"], body) if inside else (body, ["return act(ctx, x)"])
    return program(way, act, forward, ["return gradient * 2"])


def source_of_backward(way: str, inside: bool) -> str:
    """A program whose `backward` would change something in this way; inside: by itself."""
    body = [*shared(way), *way.split("; "), "return x * 2"]
    if inside:
        return program(way, ["return x * 2"], ["return x * 2"], ["x = gradient", *body])
    return program(way, body, ["return x * 2"], ["return act(ctx, gradient)"])


def shared(way: str) -> list[str]:
    return ["global LOG"] if way.startswith("LOG +=") else []


def program(way: str, act: list[str], forward: list[str], backward: list[str]) -> str:
    state = [*(reader for name, reader in READERS.items() if name in way), ALWAYS]
    return WORLD + PROGRAM.format(state=", ".join(state), act=indented(1, act), forward=indented(2, forward),
                                  backward=indented(2, backward))


def indented(levels: int, lines: list[str]) -> str:
    return "\n".join(f"{'    ' * levels}{line}" for line in lines)


class Recording:
    """A backend that runs recorded autograd functions by their graphs. `count`: how many there were."""

    takes_autograd_functions = True

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, gm: fx.GraphModule, inputs: Sequence[Any], **_: Any) -> Callable[..., Any]:
        for node in gm.graph.nodes:
            if (passes := getattr(node.target, "passes", None)) is not None:
                self.count += 1
                node.target, node.args, node.kwargs = Recorded(passes), tuple(node.all_input_nodes), {}
        gm.recompile()
        return gm.forward


def run(text: str, engine: Callable[[Any], Any]) -> list[Any]:
    """What the program returns or raises on calls of which the first ones change nothing."""
    module = types.ModuleType("hidden_changes_program")
    module.__file__ = "/program/hidden_changes.py"
    sys.modules[module.__name__] = module           # where dataclasses look
    exec(compile(text, module.__file__, "exec"), vars(module))
    function, results = engine(module.program), []
    for value in (-1.0, -1.0, -1.0, 1.0, 1.0, -1.0):
        try:
            results.append(function(torch.full((2,), value, requires_grad=True)))
        except Exception as error:
            results.append((type(error).__name__, str(error)))
    return results


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def differing(ways: Any) -> Iterator[str]:
    """The programs that differ from eager mode."""
    for way, always, inside in itertools.product(ways, (False, True), (True, False)):
        text = source(way, always, inside)
        if not same(run(text, lambda f: f), run(text, lambda f: capture.compile(f, backend="eager"))):
            yield f"{way} ({'always' if always else 'later'}, {'in forward' if inside else 'in another function'})"


def differing_if_recorded(ways: Any, recording: Recording) -> Iterator[str]:
    """The same of those whose `backward` changes something: recording them would show. None of them is recorded."""
    for way, inside in itertools.product(ways, (True, False)):
        text, recorded = source_of_backward(way, inside), recording.count
        results = run(text, lambda f: capture.compile(f, backend=recording))
        if recording.count > recorded or not same(run(text, lambda f: f), results):
            yield f"{way} (in backward{'' if inside else ', in another function'})"


if __name__ == "__main__":
    found, ways = 0, sys.argv[1:] or WAYS
    for found, program in enumerate(itertools.chain(differing(ways), differing_if_recorded(ways, Recording())), 1):
        print(program, flush=True)
    print(f"{6 * len(ways)} programs, {found} differ")
    raise SystemExit(bool(found))
