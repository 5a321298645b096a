"""Programs: classes."""
from __future__ import annotations

from dataclasses import dataclass

from tests.interp.programs.base import program


@program
def classes(log):
    x = "enclosing"

    class Meta(type):
        def __new__(meta, name, bases, namespace, **kwargs):
            log.append((name, sorted(k for k in namespace if not k.startswith("__")), kwargs))
            return super().__new__(meta, name, bases, namespace)

        def __prepare__(name, bases, **kwargs):
            return {"prepared": 1}

        def __call__(cls, *args):
            log.append(("making", cls.__name__))
            return super().__call__(*args)

    class Base(metaclass=Meta, flag=1):
        """Doc of Base."""
        y: int = 1
        z: "str"
        own = x
        x = [prepared]
        squares = [i * i for i in range(3)]

        def __init__(self, value):
            self.value = value

        @property
        def double(self):
            return self.value * 2

        @double.setter
        def double(self, new):
            self.value = new / 2

        @staticmethod
        def s(a):
            return a

        @classmethod
        def c(cls, a):
            return cls.__name__, a

        def __repr__(self):
            return f"<{__class__.__name__} {self.value}>"

        del own

        for i in range(2):
            pass

    class Derived(Base):
        def __init__(self, value):
            super().__init__(value + 1)
            super(Derived, self).__init__(self.value)

        @property
        def double(self):
            return super().double + 1

        @classmethod
        def c(cls, a):
            return super().c(a)
    b, d = Base(1), Derived(2)
    b.double = 10
    log.append((b, d, b.double, d.double, d.c(3), Base.s(4), Base.__annotations__, Base.__doc__, Base.squares, Base.x,
                Base.__qualname__))
    try:
        d.double = 3
    except AttributeError as error:
        log.append(type(error).__name__)
    return isinstance(d, Base), [c.__name__ for c in Derived.__mro__], hasattr(Base, "own"), b.i


@program
def descriptors(log):
    class Descriptor:
        def __set_name__(self, owner, name):
            self.name = name

        def __get__(self, instance, owner):
            log.append(("get", self.name, instance is None))
            return 1

        def __set__(self, instance, value):
            log.append(("set", self.name, value))

        def __delete__(self, instance):
            log.append(("delete", self.name))

    class C:
        d = Descriptor()
        __slots__ = ("s", "__dict__")

        def __getattr__(self, name):
            log.append(("getattr", name))
            if name == "bad":
                raise AttributeError("bad!")
            return name

        def __setattr__(self, name, value):
            log.append(("setattr", name))
            object.__setattr__(self, name, value)

        def __delattr__(self, name):
            log.append(("delattr", name))
            super().__delattr__(name)

        def __getitem__(self, key):
            return key

        def __setitem__(self, key, value):
            log.append(("setitem", key, value))

        def __delitem__(self, key):
            log.append(("delitem", key))

        def __call__(self, *args, **kwargs):
            return args, kwargs

        def __len__(self):
            return 0

        def __iter__(self):
            yield from (1, 2)

        def __format__(self, spec):
            return f"<{spec}>"

        def __hash__(self):
            return 5

        def __eq__(self, other):
            log.append("eq")
            return True
    c = C()
    c.d = c.d + 1
    del c.d
    c.s = 2
    c.other = c.s
    log.append((c.s, c.other, c.missing, getattr(c, "bad", "default"), hasattr(c, "bad"), C.d))
    del c.other
    c[1] = c[2:3]
    del c[4]
    log.append((c(1, x=2), bool(c), [*c], f"{c:abc}", c == 1, {c: 1, C(): 2} and 3))
    try:
        c.bad
    except AttributeError as error:
        log.append(str(error))


@program
def dataclass_and_inheritance(log):
    @dataclass
    class D:
        a: int
        b: list = None

    class E(D, dict):
        pass
    e = E(1)
    e["k"] = D(2, [3])
    return e.a, repr(e["k"]), D(1) == D(1), repr(D(5))


@program
def operators_left_to_the_other_operand(log):
    class Half(int):
        def __lt__(self, other):
            log.append("lt")
            return NotImplemented

        def __add__(self, other):
            log.append("add")
            return NotImplemented

        def __eq__(self, other):
            return NotImplemented

        __hash__ = int.__hash__

    class Lone:
        def __mul__(self, other):
            return NotImplemented

        def __eq__(self, other):
            return NotImplemented

        def __lt__(self, other):
            return NotImplemented
    log.append((Half(3) < 4, 4 > Half(3), Half(3) < Half(5) if False else None, Half(3) == 3, 3 == Half(3), Half(3) + 4.5))
    for attempt in (lambda: Lone() * 2, lambda: 2 * Lone(), lambda: Lone() < 2, lambda: [1] * Lone(), lambda: Half(1) + 1):
        try:
            log.append(attempt())
        except TypeError as error:
            log.append(str(error))
    log.append((Lone() == 2, 2 == Lone(), Lone() != "a", Lone() == Lone()))


@program
def containers_that_change_while_they_are_compared(log):
    class Emptying:
        def __init__(self, what):
            self.what = what

        def __eq__(self, other):
            self.what.clear()
            return NotImplemented

        __hash__ = object.__hash__
    first, second = [], []
    first.append(Emptying(second))
    second.append(Emptying(first))
    log.append(first == second)
    one, two = {}, {}
    one[1], two[1] = Emptying(two), Emptying(one)
    log.append((one == two, one, two))
    numbers = [3, 1, 2]

    def key(number):
        log.append(list(numbers))
        numbers.append(number)
        return number
    try:
        numbers.sort(key=key)
    except ValueError as error:
        log.append((str(error), numbers))


@program
def comparisons_by_properties_that_raise(log):
    class Broken:
        @property
        def __eq__(self):
            log.append("asked")
            raise ValueError
        __ne__ = __lt__ = __eq__

    a, b = Broken(), Broken()
    log.append((a == b, a == a, a != b, a == 1, 1 != a))
    try:
        a < b  # noqa: B015
    except TypeError as error:
        log.append(str(error))


@program
def errors_of_attributes_tell_which(log):
    class Raises:
        def __get__(self, obj, cls):
            raise AttributeError

    class Meta(type):
        def __getattr__(cls, name):
            raise AttributeError("of a class")

    class A(metaclass=Meta):
        computed = property(lambda self: self.missing)
        raising = Raises()

        def __getattr__(self, name):
            if name == "other":
                raise ValueError(name)
            raise AttributeError(*([] if name == "bare" else [name, 1]))

    class B(A):
        @property
        def computed(self):
            return super().raising

    a, b = A(), B()
    for obj, name in (a, "missing"), (a, "bare"), (a, "computed"), (a, "raising"), (A, "missing"), (b, "computed"), (a, "other"):
        try:
            getattr(obj, name)
        except Exception as error:
            asked = getattr(error, "obj", None)
            log.append((name, str(error), getattr(error, "name", None), asked is obj, type(asked).__name__))
    try:
        a.gone  # noqa: B018
    except AttributeError as error:
        log.append((error.name, error.obj is a))
    log.append((hasattr(a, "missing"), getattr(a, "bare", 5)))
