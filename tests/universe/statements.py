"""Statements that ask something of `a`, or of `a` and `b`, and leave an answer in `r`; a line of dashes between them."""
from __future__ import annotations

STATEMENTS = """
if a: r = 1
else: r = 2
---
if not a: r = 1
else: r = 2
---
r = 0
while a:
    r += 1
    if r > 2: break
---
r = []
for n in a: r.append(n)
else: r.append('else')
---
r = []
for n in a:
    r.append(n)
    if len(r) > 2: break
---
p, q = a
r = (q, p)
---
p, *q = a
r = (q, p)
---
(p, q), s = a
r = p
---
[p] = a
r = p
---
with a as r: pass
---
a[0] = 1
r = a
---
a['a'] = 5
r = a
---
a[0:1] = [7]
r = a
---
del a[0]
r = a
---
del a['a']
r = a
---
a.spare = 1
r = a.spare
del a.spare
---
a.a = 7
r = a.a
---
try: raise a
except ValueError as e: r = e.args
except TypeError as e: r = str(e)
except Exception as e: r = type(e)
---
try: raise ValueError from a
except ValueError as e: r = e.__cause__
except TypeError as e: r = str(e)
---
try: raise ValueError(a)
except ValueError as e: r = str(e), e.args
---
try: [][1]
except a: r = 1
except (IndexError, TypeError): r = 2
---
assert a
r = 1
---
assert a, 'message'
r = 1
---
assert not a, a
r = 1
---
try: assert not a, a
except AssertionError as e: r = e.args
else: r = None
---
match a:
    case 2: r = 'two'
    case 'a': r = 'text'
    case None: r = 'none'
    case _: r = 'else'
---
match a:
    case True: r = 'true'
    case 1: r = 'one'
    case 2.0: r = 'two'
    case _: r = 'else'
---
match a:
    case Number.TWO: r = 'two'
    case Colour.RED: r = 'red'
    case Text.A: r = 'a'
    case _: r = 'else'
---
match a:
    case []: r = 'empty'
    case [p]: r = p
    case [p, q]: r = (q, p)
    case [p, *q]: r = q
    case _: r = 'else'
---
match a:
    case {'a': p}: r = p
    case {2: p, **q}: r = (p, q)
    case {}: r = 'mapping'
    case _: r = 'else'
---
match a:
    case int(): r = 'int'
    case str(p): r = p
    case float() | complex(): r = 'number'
    case _: r = 'else'
---
match a:
    case Matched(2, p): r = p
    case Data(a=2, b=p): r = p
    case Frozen(): r = 'frozen'
    case Plain(): r = 'plain'
    case _: r = 'else'
---
match a:
    case [2 | 3, p] | [p]: r = p
    case p if p == 2: r = 'guard'
    case (int() | str()) as p: r = p
    case _: r = 'else'
---
match a, 1:
    case 2, 1: r = 'two'
    case [p, q] if p: r = q
    case _: r = 'else'
---
def inner():
    yield from a
r = list(inner())
---
def inner():
    p = yield a
    yield p
g = inner()
r = next(g), g.send(2)
---
def inner(p=a, *, q=a): return p, q
r = inner()
---
def inner(p: a) -> a: return p
r = inner.__annotations__
---
@a
def r(): return 1
---
class C: p = a
r = C.p, C().p
---
class C(a): pass
r = C.__mro__
---
class C(metaclass=a): pass
r = C
---
class C:
    __slots__ = a
r = C.__slots__
---
r = a
r += 1
---
r = a
r += a
---
r = a
r *= 2
---
r = a
r |= {7}
---
r = 1
r += a
---
r = [1]
r += a
---
r = [1]
r *= a
---
r = {1}
r |= a
---
r = 'b'
r += a
---
r = 2.0
r -= a
---
box.p = a
r = box.p
---
box.p = a
r = box.p == 2, type(box.p) is str
---
log.append(a)
r = log[-1], len(log)
---
log.append(f'{a}')
r = log
---
log.extend(a)
r = log
---
log[:] = a
r = log
---
table[a] = 1
r = table
---
table['k'] = a
r = table
---
table['k'] = f'{a}'
r = table['k']
---
del table[a]
---
table.update(a)
r = table
---
members.add(a)
r = len(members)
---
log.append(str(a))
r = log[-1]
---
log.append(iter(a))
r = type(log[-1]).__name__
---
r = f'{a}'
r = r, type(r), r is a
---
r = str(a)
r = r, type(r), r is a
---
r = 1 if f'{a}' else 2
---
r = []
for n in range(a):
    r.append(n)
    if n > 2: break
---
r = type(a) is int and a == 2 or type(a) is str and a == 'a'
---
r = isinstance(a, int) and a > 1
---
r = a == 2 if isinstance(a, float) else a != 2
---
try: r = a.missing
except AttributeError as e: r = e.name, str(e)
---
try: r = a + 1
except TypeError as e: r = str(e)
---
try: r = a[0]
except (TypeError, LookupError) as e: r = type(e).__name__, e.args
---
try: r = int(a)
except (TypeError, ValueError) as e: r = e.args
---
try: r = {2: 1}[a]
except (KeyError, TypeError) as e: r = e.args
---
try: r = len(a)
except TypeError: r = None
---
try: r = hash(a) and 1
except TypeError as e: r = e.args
---
r = locals()
r = r is locals(), sorted(r)
---
p = locals()
q = 5
r = 'q' in p, locals() is p, 'q' in p
---
r = dir(a) == dir(a)
---
r = a == 2, a == 'a', a == 2
---
r = a is None or a == shared or a == function
---
r = (p := a), p
---
r = [*[a], *(1,)]
---
it = iter(a)
r = next(it, None), next(it, None)
---
it = iter(a)
r = it, iter(it) is it
---
async def inner(): return await a
try: inner().send(None)
except StopIteration as e: r = e.value
"""

PAIR_STATEMENTS = """
r = a
r += b
---
r = a
r *= b
---
r = a
r |= b
---
r = a
r -= b
---
r = a
r &= b
---
p = a
p[b] = 1
r = a
---
p = a
del p[b]
r = a
---
a.spare = b
r = a.spare
del a.spare
---
box.p, box.q = a, b
r = box.p == box.q
---
match a:
    case p if p == b: r = 1
    case _: r = 2
---
match (a, b):
    case (2, 2): r = 1
    case (p, 'a') | ('a', p): r = p
    case _: r = 3
---
try: raise a from b
except ValueError as e: r = e.__cause__
except TypeError as e: r = str(e)
---
try: r = a + b
except TypeError as e: r = str(e)
---
try: r = a < b
except TypeError as e: r = str(e)
---
try: r = a[b]
except (TypeError, LookupError) as e: r = type(e), e.args
---
r = 1 if a == b else 2
---
r = 1 if a != b else 2
---
r = 1 if a is b else 2
---
r = 1 if a in b else 2
---
r = 1 if a in (2, b) else 2
---
r = 1 if a < b else 2
---
assert a == b, b
r = 1
---
r = [n for n in a if n == b]
---
table[a] = 1
table[b] = 2
r = table
---
members.add(a)
members.discard(b)
r = len(members)
---
log.append(a)
r = b in log
---
with a as r, b: pass
"""
