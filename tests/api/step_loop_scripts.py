"""Scripts with a loop that makes training steps (STEP), and does something else besides; by name."""
from __future__ import annotations

STEP = "opt.zero_grad(); loss = fit(x, y); loss.backward(); opt.step()"


def scripts(text: str) -> dict[str, str]:
    """The scripts of a text, by what stands behind `###` above each."""
    parts = (part.partition("\n") for part in text.split("### ")[1:])
    return {name: body.strip().replace("STEP", STEP) for name, _, body in parts}


# These are run as the code of a script, and as that of a function.
BODIES = scripts(r"""
### continue
for i, (x, y) in enumerate(data):
    STEP
    if i % 2: continue
    print(i, weights())
print(i)

### break
for i, (x, y) in enumerate(data):
    STEP
    if i == 5: break
else:
    print('else')
print(i, weights())

### else
for i, (x, y) in enumerate(data):
    STEP
    if i == 50: break
else:
    print('else')
print(i, weights())

### while
i = 0
while i < 8:
    x, y = data[i]
    i += 1
    STEP
    if i == 4: continue
    print(i)
print(weights())

### for ever
i = 0
while True:
    x, y = data[i]
    i += 1
    STEP
    if i == 8: break
print(weights())

### bound late
for i, (x, y) in enumerate(data):
    STEP
    if i == 6:
        late = i
print(late, weights())

### read unbound
try:
    for i, (x, y) in enumerate(data):
        STEP
        if i == 6: print(late)
        if i == 9: late = 1
except NameError as e:
    print(e, type(e), i)

### deleted
for i, (x, y) in enumerate(data):
    STEP
    was = i
    if i < 7: del was
print(was)

### deleted at last
was = 0
for i, (x, y) in enumerate(data):
    STEP
    if i == 7: del was
try:
    print(was)
except NameError as e:
    print(e)

### handled
for i, (x, y) in enumerate(data):
    try:
        STEP
        if i == 5: raise ValueError(i)
    except ValueError as e:
        print('caught', e)
print(i, weights())

### handled outside
try:
    for i, (x, y) in enumerate(data):
        STEP
        if i == 5: raise ValueError(i)
except ValueError as e:
    print('caught', e, i, weights())
finally:
    print('finally')

### finally
for i, (x, y) in enumerate(data):
    try:
        STEP
        if i == 6: break
    finally:
        print(i)

### with
for i, (x, y) in enumerate(data):
    with torch.enable_grad() as g:
        STEP
        if i == 6: break
    print(i)
print(weights())

### inner loop
for i, (x, y) in enumerate(data):
    STEP
    for j in range(3):
        if j == 2: break
    else:
        print('no')
print(i, j, weights())

### accumulated
for i in range(8):
    for x, y in data[:2]:
        fit(x, y).backward()
    opt.step()
    opt.zero_grad()
print(weights())

### while with a handler that leaves
items = iter(data)
n = 0
while True:
    try:
        x, y = next(items)
    except StopIteration:
        break
    STEP
    n += 1
print(n, weights())

### while in a handler
i = 0
try:
    while True:
        x, y = data[i]
        i += 1
        STEP
except IndexError as e:
    print(e, i, weights())

### handler around the body
i = 0
while i < 8:
    try:
        x, y = data[i]
        i += 1
        STEP
        if i == 7: raise KeyError(i)
    except KeyError:
        raise ValueError(i)

### epochs
for epoch in range(3):
    total = 0.0
    for x, y in data[:4]:
        STEP
        total += loss.item()
    print(epoch, round(total, 4))

### comprehension
for i, (x, y) in enumerate(data):
    STEP
    found = [j * i for j in range(3) if j != i]
print(found)

### walrus
for i, (x, y) in enumerate(data):
    STEP
    if (n := i * 2) > 8: print(n)
print(n)

### import
for i, (x, y) in enumerate(data):
    STEP
    import math
    n = math.floor(i / 2)
print(n, math.pi)

### class
for i, (x, y) in enumerate(data):
    STEP
    class Seen:
        number = i
print(Seen.number)

### definition
made = []
for i, (x, y) in enumerate(data):
    STEP
    def f(n=i): return n
    made.append(f)
print([f() for f in made])

### annotated
for i, (x, y) in enumerate(data):
    STEP
    n: int = i
print(n)

### augmented
total = 0
seen = []
for i, (x, y) in enumerate(data):
    STEP
    total += loss.detach()
    seen += [i]
print(total, seen)

### unpacked
rest = None
for i, (x, y) in enumerate(data):
    STEP
    first, *rest = [i, 2, 3]
print(first, rest)

### assertion
for i, (x, y) in enumerate(data):
    STEP
    assert i < 6, i

### raised in a callee
def check(i):
    if i == 6: raise KeyError(i)
for i, (x, y) in enumerate(data):
    STEP
    check(i)

### exit
for i, (x, y) in enumerate(data):
    STEP
    if i == 6: sys.exit(3)

### chained
for i, (x, y) in enumerate(data):
    STEP
    try:
        {}[i]
    except KeyError as e:
        if i == 6: raise ValueError(i) from e

### match
for i, (x, y) in enumerate(data):
    STEP
    match i % 3:
        case 0: print('zero')
        case n if n > 1: print(n)
        case _: pass

### nested
for epoch in range(2):
    for i, (x, y) in enumerate(data):
        STEP
        if i == 3: break
    else:
        continue
    print(epoch, i)

### frames
def where():
    f = sys._getframe(1)
    return f.f_code.co_name, f.f_lineno, f.f_back.f_code.co_name
for i, (x, y) in enumerate(data):
    STEP
    seen = where()
print(seen)

### variables of the caller
def named(value): return [name for name, other in sys._getframe(1).f_locals.items() if other is value]
def filled(text): return text.format(**sys._getframe(1).f_locals)
for i, (x, y) in enumerate(data):
    STEP
    print(named(loss), filled('{i} {x.shape} {loss:.3f}'))
""")

# What only functions have.
FUNCTIONS = scripts(r"""
### return
def main():
    for i, (x, y) in enumerate(data):
        STEP
        if i == 5: return i
    return -1
print(main(), weights())

### return nothing
def main():
    for i, (x, y) in enumerate(data):
        STEP
        if i == 5: return
print(main(), weights())

### closure
def main():
    total = 0
    def add(n):
        nonlocal total
        total += n
        return i
    for i, (x, y) in enumerate(data):
        STEP
        print(add(i))
    return total
print(main())

### late closure
def main():
    made = []
    for i, (x, y) in enumerate(data):
        STEP
        made.append(lambda: i)
    return [f() for f in made]
print(main())

### global
n = 0
def main():
    global n
    for x, y in data:
        STEP
        n += 1
main()
print(n)

### method
class Trainer:
    __count = 0
    def train(self):
        for x, y in data:
            STEP
            self.__count += 1
        return self.__count
print(Trainer().train())

### arguments
def main(a, /, b, *rest, c=1, **more):
    for i, (x, y) in enumerate(data):
        STEP
        a += b + c + i
    return a, rest, more
print(main(1, 2, 3, c=4, d=5))

### two calls
def epoch(part):
    total = 0
    for x, y in part:
        STEP
        total += loss.item()
    return round(total, 4)
for _ in range(3): print(epoch(data[:4]))

### unbound
def main():
    for i, (x, y) in enumerate(data):
        STEP
        if i == 5: print(late)
        if i > 9: late = 1
main()

### unbound after
def main():
    for i, (x, y) in enumerate(data):
        STEP
        if i > 9: late = 1
    print(late)
main()

### raised
def main():
    for i, (x, y) in enumerate(data):
        STEP
        if i == 5:
            1 / 0
main()

### variables after
def main():
    n = 0
    try:
        for i, (x, y) in enumerate(data):
            STEP
            n += 1
            if i == 5: raise KeyError
            kept = i
    except KeyError:
        print(n, kept, i, round(loss.item(), 4))
        del kept
    print(sorted(locals()))
main()

### finalizers
class Noisy:
    def __init__(self, n): self.n = n
    def __del__(self): print('dead', self.n)
def main():
    for i, (x, y) in enumerate(data):
        noisy = Noisy(i)
        STEP
        print(i)
main()

### recursion
def main(depth):
    for i, (x, y) in enumerate(data[:4]):
        STEP
        if i == 2 and depth: main(depth - 1)
    print(depth, i)
main(2)
""")

# Loops that are left alone.
LEFT = scripts(r"""
### locals
def main():
    for x, y in data:
        STEP
        print(sorted(locals()))
main()

### eval
for i, (x, y) in enumerate(data):
    STEP
    print(eval('i'))

### frame
for i, (x, y) in enumerate(data):
    STEP
    print(sys._getframe().f_code.co_name)

### generator
def main():
    for x, y in data:
        STEP
        yield weights()
print(list(main()))

### class
class Run:
    for x, y in data:
        STEP
print(Run.x)

### super
class A:
    def n(self): return 1
class B(A):
    def run(self):
        for x, y in data:
            STEP
            n = super().n()
        return n
print(B().run())

### return inside of a block
class Block:
    def __enter__(self): return self
    def __exit__(self, *args): pass
def main():
    for i, (x, y) in enumerate(data):
        STEP
        with Block():
            if i == 5: return i
print(main(), weights())

### return inside of a loop
def main():
    for i, (x, y) in enumerate(data):
        STEP
        for j in range(3):
            if i * j == 10: return j
print(main(), weights())

### all names of a module
for i, (x, y) in enumerate(data):
    STEP
    from math import *
print(floor(2.5))

### other names
scope = {}
exec('for x, y in data:\n    STEP', globals(), scope)
print(sorted(scope))
""")
