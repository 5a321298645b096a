"""The questions that programs ask of a value `a`, or of two, `a` and `b`, and the programs that ask them."""
from __future__ import annotations

import ast
import textwrap

from tests.universe.statements import PAIR_STATEMENTS, STATEMENTS

# -- of one ------------------------------------------------------------------------------------------------------------

UNARY = """
-a|+a|~a|not a|abs(a)|bool(a)|int(a)|float(a)|complex(a)|str(a)|repr(a)|ascii(a)|bytes(a)|bytearray(a)|len(a)|list(a)
tuple(a)|set(a)|frozenset(a)|dict(a)|sorted(a)|list(reversed(a))|sum(a)|min(a)|max(a)|any(a)|all(a)|list(enumerate(a))
list(zip(a, a))|list(map(str, a))|list(filter(None, a))|iter(a)|next(a)|next(iter(a))|type(a)|callable(a)|chr(a)|ord(a)
bin(a)|hex(a)|oct(a)|round(a)|type(a) is int|type(a) == type(2)|isinstance(a, int)|isinstance(a, (str, float))
isinstance(a, int | str)|issubclass(a, int)|isinstance(a, collections.abc.Iterable)|isinstance(a, collections.abc.Hashable)
isinstance(a, collections.abc.Mapping)|isinstance(a, torch.Tensor)|isinstance(a, type)|isinstance(2, a)|issubclass(int, a)
a.__class__|a.__class__ is str|type(a).__name__|hasattr(a, '__len__')|hasattr(a, 'a')|hasattr(a, '__call__')
hasattr(a, '__eq__')|getattr(a, 'real', None)|getattr(a, 'a', 7)|a.real|a.imag|a.a|a.name|a.value|a.shape|a.args|a.__name__
a.__doc__|vars(a)|a.__dict__|a.__len__()|a.__eq__(2)|a.__str__()|a.__repr__()|a.__hash__ is None|a.__iter__|a.__getitem__(0)
a.__bool__()|a.__index__()|a.__add__(2)|a.__contains__(2)|a.__format__('')|a.__class__.__mro__|hash(a) == hash(a)
id(a) == id(a)|a is a|hash(a) if isinstance(a, (int, str)) else 0|operator.index(a)|operator.length_hint(a)|operator.truth(a)
operator.not_(a)|math.floor(a)|math.ceil(a)|math.trunc(a)|math.isnan(a)|math.isfinite(a)|math.sqrt(a)|math.fabs(a)
math.copysign(1, a)|math.gcd(a, 4)|math.prod(a)|math.fsum(a)|math.factorial(a)
"""
FORMATS = """
format(a)|format(a, '')|format(a, '>5')|format(a, 'd')|format(a, '.2f')|format(a, 's')|f'{a}'|f'{a!s}'|f'{a!r}'|f'{a!a}'
f'{a:>5}'|f'{a:d}'|f'{a:.2f}'|f'{a:s}'|f'{a:x}'|f'{a:,}'|f'{a:e}'|f'{a:%}'|f'{a!s:>4}'|f'{a!r:<4}'|f'{a=}'|f'{a}{a}'|f'x{a}'
f'{2:{a}}'|f'{"b":{a}}'|'%s' % a|'%s' % (a,)|'%r' % (a,)|'%d' % (a,)|'%x' % (a,)|'%.1f' % (a,)|'%c' % (a,)|'%(a)s' % a
'%*d' % (a, 2)|b'%s' % (a,)|a % 2|a % 'a'|a % (2,)|'{}'.format(a)|'{:>4}'.format(a)|'{!r}'.format(a)|'{0}{0}'.format(a)
'{a}'.format(a=a)|'{0[0]}'.format(a)|'{0.real}'.format(a)|'{a}'.format_map(a)|'{}'.format(*a)|','.join(a)|','.join([a])
','.join((a, a))|','.join(map(str, [a]))|str(a, 'utf8')|str(object=a)|int(a, 10)|int('2', a)|int(str(a))
string.Template('$a').substitute(a=a)|repr([a])|str((a,))|repr({2: a})|f'{[a]}'
"""
COMPARISONS = """
a == a|a != a|a < a|a >= a|a == 2|2 == a|a != 2|a == 2.0|a == 'a'|'a' == a|a != 'a'|a == None|None == a|a is None
a is not None|a is True|a is Ellipsis|a is NotImplemented|a == ()|a == (2, 3)|(2, 3) == a|a == [2]|[2] == a|a == {}|a == {2}
{2} == a|a == Number.TWO|Number.TWO == a|a != Number.TWO|a == Text.A|Text.A == a|a == Colour.RED|Colour.RED == a
a != Colour.RED|a == Equal.TWO|a == torch.float32|torch.float32 == a|a != torch.float32|a == int|int == a|a == len|len == a
a == function|function == a|a != function|a == shared|shared == a|a != shared|a == math|a == slice(2)|a == range(2)
range(2) == a|a == torch.device('cpu')|torch.Size((2, 3)) == a|a == b'a'|a == 2j|(a,) == (2,)|[a] == ['a']|(a, 1) == (a, 1)
[a] == [a]|{2: a} == {2: 2}|{a: 1} == {2: 1}|(a,) != (shared,)|[a] == [Colour.RED]|(1, a) < (1, 2)|[a] < ['b']|a < 3|3 < a
a <= 'b'|'b' > a|a > shared|a < (2, 4)|a < {1, 2, 3}|a >= None|1 < a < 3|a == a == 2|a is shared|a is int|a is function
a is Colour.RED|a is Number.TWO|a == Mixed.A|Mixed.A == a|a == Access.READ|a == Mask.LOW|Mask.LOW == a|a == np.int64(2)
np.float64(2) == a|a == Frozen(2)
"""
MEMBERSHIP = """
a in (2, 'a', None)|a in [2, 7]|a in {2, 7}|a not in {2, 7}|a in {'a', 'b'}|a in {2: 1, 'a': 2}|a in {2, Colour.RED}
a in frozenset({2, 'a'})|a in (Number.TWO,)|a in {Number.TWO}|a in (Colour.RED, Colour.BLUE)|a in {Colour.RED: 1}
a in (shared, function)|a in {shared}|a in (torch.float32, int)|a in 'abc'|a in b'abc'|a in range(5)|a in (1, 2, (2, 3))
a in outside_set|a in outside_list|a in outside_dict|a in outside_dict.values()|a in outside_dict.items()|a in {}.keys()
2 in a|'a' in a|2 not in a|None in a|shared in a|a in ()|a in set()|a in {}|a in [a]|a in (a,)|a in {a}|a in iter([2, 7])
a in (n for n in (2, 'a'))|a in Colour|a in Number|any(a == n for n in (2, 'a'))|(2, a) in {(2, 2), (2, 'a')}|(a,) in [(2,)]
"""
ARITHMETIC = """
a + 1|1 + a|a - 1|1 - a|a * 2|2 * a|a / 2|2 / a|a // 2|a % 3|3 % a|a ** 2|2 ** a|a << 1|1 << a|a >> 1|a & 1|1 & a|a | 1|1 | a
a ^ 1|a @ a|a + a|a * a|a - a|a / a|a // a|a % a|a | a|a & a|a + 'b'|'b' + a|a + (1,)|(1,) + a|a + [1]|[1] + a|a + 1.5
a * 1.5|1.5 * a|a + True|a * 'ab'|'ab' * a|[0] * a|(0,) * a|a | {1}|{1, 2} & a|{1, 2} - a|{1, 2} ^ a|{'b': 1} | a
a | {'b': 1}|a + None|a - 2j|divmod(a, 2)|divmod(7, a)|pow(a, 2)|pow(a, 2, 7)|pow(2, a, 7)|round(a, 1)|a and 1|a or 1|1 and a
0 or a|1 if a else 2|a if a else 'else'|not not a|a and a or 2|sum([a, a], a)|sum([1, a])|max(a, 1)|min(1, a)|max([a, a])
sorted([a, a])|abs(a) + 1|-a + 1|int(a) + 1|float(a) * 2|bool(a) + 1|len(a) + 1|a + Number.TWO
functools.reduce(operator.add, [1, a])|operator.concat(a, a)|operator.add(a, 1)|operator.mul(2, a)|statistics_mean(a)
"""
SUBSCRIPTS = """
a[0]|a[1]|a[-1]|a[:1]|a[1:]|a[::-1]|a['a']|a[a]|a[0, 1]|a[None]|a[...]|a[shared]|[1, 2, 3][a]|(1, 2, 3)[a]|'abc'[a]|b'abc'[a]
range(10)[a]|[1, 2, 3][a:]|[1, 2, 3][:a]|'abc'[a:]|(1, 2, 3)[:a]|[1, 2, 3][::a]|range(10)[a:]|{2: 1, 'a': 2}[a]
{2: 1, 'a': 2}.get(a)|{2: 1, 'a': 2}.get(a, a)|{Colour.RED: 1, shared: 2}[a]|{Colour.RED: 1, shared: 2}.get(a)|{a: 1}
{a: 1}[a]|{a: 1}[2]|{a}|{1, a}|len({a, 2})|{1: a}|[a]|(a,)|outside_dict[a]|outside_dict.get(a)|outside_list[a]
outside_list[a:]|outside_tuple[a]|slice(a)|slice(1, a)|range(a)|list(range(a))|range(1, a)|list(range(0, a))|[0, 1][bool(a)]
(0, 1)[not a]|operator.getitem(a, 0)|operator.itemgetter(0)(a)|operator.attrgetter('real')(a)|Colour(a)|Number(a)|Text(a)
Mask(a)|Colour[a]|[*a]|(*a,)|(*a, 1)|{*a}|{**a}|[*a, *a]|dict(**a)|function(*a)|function(1, *a)|keyworded(**a)|keyworded(*a)
dict(a=a)|[n for n in a]|{n for n in a}|{n: 1 for n in a}|list(n for n in a)|[n for n in range(3) if a]
[n for n in (1, a) if n]|tuple(map(bool, [a]))|list(itertools.chain([1], a))|list(itertools.islice(a, 2))
list(itertools.repeat(a, 2))|list(itertools.islice([1, 2], a))|list(zip([1], a))|dict.fromkeys(a)|dict.fromkeys([a], 1)
dict.fromkeys('ab', a)|list(enumerate('ab', a))|enumerate(a)|map(str, a)|zip(a)|reversed(a)|filter(None, a)|copy.copy(a)
copy.deepcopy(a) is a|(lambda v=a: v)()|(lambda: a)()|[a, 1][0]|(a, 1)[0] is a|list((a, a))[1] is a|collections.deque(a)
collections.Counter(a)|collections.OrderedDict(a)|collections.ChainMap({}, a)|functools.partial(a, 1)|types.MethodType(a, 2)
property(a)
"""
METHODS_OF_A = {
    str: """
upper()|lower()|title()|strip()|strip('a')|split()|split('a')|join('ab')|join([])|replace('a', 'b')|startswith('a')
endswith(('a', 'b'))|find('a')|index('a')|count('a')|isdigit()|isalpha()|zfill(3)|ljust(3)|center(3)|encode()|format(2)
partition('b')|splitlines()|removeprefix('a')|isidentifier()|casefold()|swapcase()|translate({97: 'b'})|expandtabs()
rsplit(None, 1)
""",
    int: """
bit_length()|bit_count()|conjugate()|to_bytes(4, 'big')|as_integer_ratio()|__add__(1)|__index__()|is_integer()|hex()
""",
    list: """
append(1)|extend([1])|insert(0, 1)|remove(2)|pop()|pop(0)|clear()|index(2)|index('a')|count(2)|sort()|sort(reverse=True)
reverse()|copy()|__len__()|__contains__(2)|__iter__()|__setitem__(0, 1)|appendleft(1)|popleft()|rotate(1)
""",
    dict: """
get(2)|get('a')|get('z', 2)|keys()|values()|items()|pop('a', None)|pop('a')|popitem()|setdefault('z', 2)|update({'b': 1})
update(b=1)|update([('b', 1)])|move_to_end('a')|most_common()|elements()|fromkeys('ab')
""",
    set: """
add(2)|add('b')|discard(2)|remove(2)|union([1])|intersection([2])|difference({2})|symmetric_difference({2, 7})
issubset({2, 3})|issuperset([2])|isdisjoint([2])|intersection_update([2])|difference_update([2])
""",
    tuple: """
count('a')|_asdict()|_replace(a=1)|_fields
""",
    object: """
send(None)|close()|throw(ValueError)|mro()|__call__(1)|__next__()|item()|sum()|tolist()|as_tuple()|add_note('a')
with_traceback(None)
""",
}
CALLED_WITH_A = {
    "'abc'": """
startswith(a)|endswith(a)|find(a)|index(a)|count(a)|replace(a, 'x')|replace('a', a)|replace('a', 'b', a)|split(a)|strip(a)
join(a)|partition(a)|ljust(a)|center(5, a)|zfill(a)|encode(a)|format(a)|removeprefix(a)|translate(a)|expandtabs(a)|__eq__(a)
__add__(a)|__mul__(a)|__contains__(a)|__getitem__(a)|__lt__(a)|__mod__(a)|__format__(a)|split(None, a)|find('b', a)
""",
    "7": """
__eq__(a)|__add__(a)|__lt__(a)|__and__(a)|__pow__(a)|to_bytes(a, 'big')|to_bytes(4, a)|__rsub__(a)|__divmod__(a)
__format__(a)
""",
    "int": """
from_bytes(a, 'big')|fromhex(a)
""",
    "float": """
fromhex(a)
""",
    "2.5": """
__eq__(a)|__mul__(a)|__lt__(a)|__round__(a)|__rpow__(a)
""",
    "[2, 7, 2]": """
append(a)|extend(a)|insert(a, 0)|insert(0, a)|remove(a)|pop(a)|index(a)|count(a)|index(2, a)|sort(key=a)|sort(reverse=a)
__add__(a)|__iadd__(a)|__mul__(a)|__eq__(a)|__contains__(a)|__getitem__(a)|__setitem__(a, 0)|__setitem__(0, a)|__delitem__(a)
__lt__(a)
""",
    "outside_list": """
index(a)|count(a)|__contains__(a)|append(a)|extend(a)|remove(a)|pop(a)|insert(0, a)|__eq__(a)|sort(key=a)|insert(a, 5)
""",
    "{2: 'a', 'b': 3}": """
get(a)|get(2, a)|pop(a, None)|pop(a)|setdefault(a, 1)|setdefault(2, a)|update(a)|update(c=a)|__contains__(a)|__getitem__(a)
__setitem__(a, 1)|__setitem__(1, a)|__delitem__(a)|__eq__(a)|__or__(a)|__ior__(a)|fromkeys(a, 1)
""",
    "outside_dict": """
get(a)|pop(a, None)|setdefault(a, 1)|update(a)|__contains__(a)|__setitem__(a, 1)|__setitem__(1, a)|__eq__(a)|__or__(a)
fromkeys(a)
""",
    "{2, 7}": """
add(a)|discard(a)|remove(a)|union(a)|intersection(a)|difference(a)|symmetric_difference(a)|issubset(a)|issuperset(a)
isdisjoint(a)|update(a)|intersection_update(a)|difference_update(a)|__or__(a)|__and__(a)|__contains__(a)|__eq__(a)|__lt__(a)
union([1], a)
""",
    "outside_set": """
add(a)|discard(a)|remove(a)|union(a)|issubset(a)|issuperset(a)|isdisjoint(a)|update(a)|__contains__(a)|__eq__(a)
intersection(a)
""",
    "(2, 'a', 2)": """
count(a)|index(a)|__contains__(a)|__add__(a)|__mul__(a)|__eq__(a)|__getitem__(a)|__lt__(a)|index(2, a)
""",
    "range(5)": """
count(a)|index(a)|__contains__(a)|__eq__(a)|__getitem__(a)
""",
    "b'abc'": """
startswith(a)|find(a)|join(a)|split(a)|replace(a, b'x')|decode(a)|count(a)
""",
}
OF_TENSORS = """
x + a|a + x|x * a|a * x|x - a|x / a|a / x|x ** a|x @ a|x == a|x != a|x < a|a > x|x // a|x % a|x[a]|x[a:]|x[a, ...]|x[..., a]
torch.tensor(a)|torch.as_tensor(a)|torch.tensor([a])|torch.zeros(a)|torch.full((2,), a)|torch.ones(2, dtype=a)|x.reshape(a)
x.view(a)|x.sum(a)|x.to(a)|x.type(a)|x.add(a)|torch.add(x, 1, alpha=a)|x.clamp(a)|x.clamp(max=a)|torch.where(x > 1, a, 2.0)
x.expand(a)|x.repeat(a)|torch.arange(a)|torch.stack(a)|torch.cat([x, a])|x.fill_(a)|x.mul_(a)|torch.maximum(x, a)
torch.is_tensor(a)|a in x|x.index_select(0, a)|x.flip(a)|torch.nn.functional.dropout(x, a)|x.softmax(a)|x.std(unbiased=a)
torch.Size([a])|x if a else x * 2|x.masked_fill(x > 1, a)|x.split(a)|x.size(a)|x.topk(a)|torch.result_type(x, a)|float(a) * x
int(a) * x|bool(a) * x|x * (a == 2)|x * len(a)|x * (a is None)|getattr(x, a)|getattr(x, a, 7)|hasattr(x, a)
"""
CALLS = """
a()|a(1)|a(2, 3)|a('a')|a(x)|a(*(1, 2))|a(a)|print(a)|print(1, sep=a)|print(1, end=a)|exec(a)|eval(a)|getattr(shared, a)
getattr(2, a, 7)|hasattr('abc', a)|setattr(box, a, 1)|isinstance(a, a)|type(a)('2')|super(a)|iter(a, 2)|next(a, 7)
next(iter(a), 7)|memoryview(a)|locals()['a']|type('C', (), {'a': a}).a|type('C', (a,), {})|type(a, (), {})
a.__class__.__name__|a.__init__()|object.__repr__(a) is None|operator.methodcaller(a)('abc')|list(map(a, [1]))
list(filter(a, [1, 2]))|sorted([2, 1], key=a)|max([1, 2], key=a)|functools.reduce(a, [1, 2])|weakref.ref(a)() is a
inspect_signature(a)|re.match('a', a)|re.match(a, 'a')|json.dumps(a)|textwrap.indent(a, ' ')|math.isclose(a, 2)
"""

def _expressions(text: str) -> list[str]:
    """The expressions of a table. A bar between them is one without spaces; an operator has spaces."""
    found = []
    for line in text.strip().splitlines():
        parts = line.split("|")
        while parts:
            part = parts.pop(0)
            while part.endswith(" ") and parts:                  # `a | b`
                part += "|" + parts.pop(0)
            found.append(part)
    return found


def _of_one() -> list[str]:
    expressions = [e for text in (UNARY, FORMATS, COMPARISONS, MEMBERSHIP, ARITHMETIC, SUBSCRIPTS, OF_TENSORS, CALLS)
                   for e in _expressions(text)]
    expressions += [f"a.{method}" for text in METHODS_OF_A.values() for method in _expressions(text)]
    expressions += [f"{owner}.{method}" if owner[0].isalpha() or owner[0] in "'{[" or owner[:2] == "b'" else f"({owner}).{method}"
                    for owner, text in CALLED_WITH_A.items() for method in _expressions(text)]
    return expressions


# -- of two ------------------------------------------------------------------------------------------------------------

PAIRS = """
a + b|a - b|a * b|a / b|a // b|a % b|a ** b|a @ b|a << b|a >> b|a & b|a | b|a ^ b|a == b|a != b|a < b|a <= b|a > b|a >= b
a is b|a is not b|a in b|a not in b|a and b|a or b|a if b else 1|divmod(a, b)|pow(a, b)|pow(a, b, 7)|isinstance(a, b)
issubclass(a, b)|a[b]|a(b)|a.__eq__(b)|a.__add__(b)|getattr(a, b)|getattr(a, b, 7)|hasattr(a, b)|setattr(a, b, 2)
format(a, b)|f'{a:{b}}'|f'{a}{b}'|str(a) == str(b)|type(a) is type(b)|type(a) == type(b)|(a,) == (b,)|[a] == [b]
(a, b) == (b, a)|{1: a} == {1: b}|{a: 1} == {b: 1}|{a} == {b}|(a, 1) < (b, 2)|[a] < [b]|len({a, b})|{a: 1, b: 2}|{a: 1}[b]
{a: 1}.get(b)|a in (b,)|a in [b]|a in {b}|a in {b: 1}|a in (1, b, 'a')|a not in [b, b]|[a].index(b)|[a].count(b)
(a, b).index(b)|(a, b).count(a)|max(a, b)|min(a, b)|sorted([a, b])|[a, b].remove(b)|sum([a, b])|sum(a, b)|range(a, b)
list(range(a, b))|slice(a, b)|'abcdef'[a:b]|[1, 2, 3][a:b]|(1, 2, 3)[a:b]|round(a, b)|int(a, b)|str(a, b)|bytes(a, b)
complex(a, b)|math.pow(a, b)|math.copysign(a, b)|math.isclose(a, b)|math.gcd(a, b)|math.hypot(a, b)|list(zip(a, b))
list(map(a, b))|list(filter(a, b))|list(enumerate(a, b))|iter(a, b)|next(a, b)|a.append(b)|a.extend(b)|a.insert(0, b)
a.remove(b)|a.index(b)|a.count(b)|a.pop(b)|a.get(b)|a.get(b, 1)|a.setdefault(b, 1)|a.update(b)|a.add(b)|a.discard(b)
a.union(b)|a.intersection(b)|a.issubset(b)|a.issuperset(b)|a.isdisjoint(b)|a.difference(b)|a.startswith(b)|a.endswith(b)
a.split(b)|a.join(b)|a.replace(b, 'x')|a.find(b)|a.strip(b)|a.partition(b)|a.format(b)|a.encode(b)|a.translate(b)
a.fromkeys(b)|a.__contains__(b)|a.__getitem__(b)|a.__lt__(b)|a.send(b)|functools.reduce(a, b)|[*a, *b]|{**a, **b}|{*a, *b}
function(*a, **b)|keyworded(**a, **b)|dict(a, b=b)|operator.concat(a, b)|operator.contains(a, b)|operator.countOf(a, b)
isinstance(a, (b, int))|print(a, b)|print(a, sep=b)|torch.add(x, a, alpha=b)|torch.where(x > 1, a, b)|x.clamp(a, b)|x[a:b]
x[a, b]|x * a + b|torch.full((2,), a, dtype=b)|a == x or b|(a, b)|[a, b]|(a == 2, b == 2)|a == 2 and b == 2
a is None or b is None|[n == b for n in (1, a)]|sorted([2, 1], key=a, reverse=b)|dict.fromkeys([a], b)|{2: a, 'a': 1}.get(b)
{2: a}.setdefault(b, 5)|[a, 1, 2][b]|(a, 1)[b]|operator.itemgetter(a)(b)|operator.attrgetter(a)(b)|itertools.islice(a, b)
list(itertools.chain(a, b))|string.Template(a).substitute(b)|'%s %s' % (a, b)|'{} {}'.format(a, b)
"""


def _statements(text: str) -> list[str]:
    return [part.strip("\n") for part in text.strip("\n").split("\n---\n")]


ONE = [*_of_one(), *_statements(STATEMENTS)]
TWO = [*_expressions(PAIRS), *_statements(PAIR_STATEMENTS)]


def is_expression(text: str) -> bool:
    try:
        ast.parse(text, mode="eval")
    except SyntaxError:
        return False
    return True


# Where the operands come from, and what becomes of an answer.
PLACES = ("argument", "argument", "argument", "keyword", "attribute", "item", "global", "callee", "packed")
USES = ("return", "return", "return", "store", "branch", "twice", "caught", "break", "formatted")


def source(question: str, names: str, place: str, use: str, tensor: bool) -> str:
    """The source of `program`. names: its operands; tensor: it computes something, too."""
    listed = ", ".join(names)
    ask = f"r = {question}" if is_expression(question) else question
    before = {"attribute": "\n".join(f"{name} = box.{name}" for name in names),
              "item": "\n".join(f"{name} = operands[{i}]" for i, name in enumerate(names)),
              "global": "\n".join(f"{name} = given_{name}" for name in names),
              "packed": f"({listed},) = packed"}.get(place, "")
    head = {"argument": f"x, {listed}", "keyword": f"x, *, {listed}", "callee": f"x, {listed}", "packed": "x, *packed"}
    if use == "twice":
        ask = f"{ask}\ns = r\n{ask}\nr = s, r"
    elif use == "caught":
        ask = f"try:\n{textwrap.indent(ask, ' ')}\nexcept Exception as e: r = type(e).__name__, e.args"
    elif use == "break":
        before += "\nopaque()"
    elif use == "branch":
        ask += "\nr = 'true' if r else 'false'"
    elif use == "store":
        ask += "\nlog.append(r)\nbox.answer = r\nr = len(log)"
    elif use == "formatted":
        ask += "\nr = f'{r}', r"
    compute = "y = x + 1\n" if tensor else "y = 1\n"
    if place == "callee":
        return (f"def ask(x, {listed}):\n{textwrap.indent(before + chr(10) + ask, ' ')}\n return r\n"
                f"def program({head.get(place, 'x')}):\n {compute} return y, ask(x, {listed})\n")
    body = f"{before}\n{compute}{ask}\nreturn y, r"
    return f"def program({head.get(place, 'x')}):\n{textwrap.indent(body, ' ')}\n"
