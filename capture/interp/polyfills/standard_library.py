"""Functions of the standard library that compare, call or change their arguments."""
from __future__ import annotations

import _string  # type: ignore[import-not-found]
import bisect
import csv
import hashlib
import heapq
import io
import json
import re
import struct
import sys
import types
from typing import Any

from capture._C import is_a
from capture.interp.core.registry import polyfill
from capture.interp.core.special import is_iterable, is_plain
from capture.interp.polyfills.stand_ins import StandIn, stand_in
from capture.refgraph.identical import LISTS, TEXTS


def always(*args: Any, **kwargs: Any) -> bool:
    return True


# -- heaps and sorted lists --------------------------------------------------------------------------------------------

@polyfill(heapq.heappush, applies=lambda heap, item: is_a(heap, list))
def heappush(heap: Any, item: Any) -> None:
    """`heapq.heappush(heap, item)`."""
    heap.append(item)
    heapq._siftdown(heap, 0, len(heap) - 1)  # type: ignore[attr-defined]


@polyfill(heapq.heappop, applies=lambda heap: is_a(heap, list))
def heappop(heap: Any) -> Any:
    """`heapq.heappop(heap)`."""
    last = heap.pop()
    if not heap:
        return last
    smallest = heap[0]
    heap[0] = last
    heapq._siftup(heap, 0)  # type: ignore[attr-defined]
    return smallest


@polyfill(heapq.heapreplace, applies=lambda heap, item: is_a(heap, list))
def heapreplace(heap: Any, item: Any) -> Any:
    """`heapq.heapreplace(heap, item)`."""
    smallest = heap[0]
    heap[0] = item
    heapq._siftup(heap, 0)  # type: ignore[attr-defined]
    return smallest


@polyfill(heapq.heappushpop, applies=lambda heap, item: is_a(heap, list))
def heappushpop(heap: Any, item: Any) -> Any:
    """`heapq.heappushpop(heap, item)`."""
    if heap and heap[0] < item:
        item, heap[0] = heap[0], item
        heapq._siftup(heap, 0)  # type: ignore[attr-defined]
    return item


@polyfill(heapq.heapify, applies=lambda x: is_a(x, list))
def heapify(x: Any) -> None:
    """`heapq.heapify(x)`."""
    for i in reversed(range(len(x) // 2)):
        heapq._siftup(x, i)  # type: ignore[attr-defined]


@polyfill(heapq._heapify_max, applies=lambda x: is_a(x, list))
def heapify_max(x: Any) -> None:
    """`heapq._heapify_max(x)`."""
    for i in reversed(range(len(x) // 2)):
        heapq._siftup_max(x, i)  # type: ignore[attr-defined]


@polyfill(heapq._heapreplace_max, applies=lambda heap, item: is_a(heap, list))  # type: ignore[attr-defined]
def heapreplace_max(heap: Any, item: Any) -> Any:
    """`heapq._heapreplace_max(heap, item)`."""
    largest = heap[0]
    heap[0] = item
    heapq._siftup_max(heap, 0)  # type: ignore[attr-defined]
    return largest


@polyfill(heapq._heappop_max, applies=lambda heap: is_a(heap, list))  # type: ignore[attr-defined]
def heappop_max(heap: Any) -> Any:
    """`heapq._heappop_max(heap)`."""
    last = heap.pop()
    if not heap:
        return last
    largest = heap[0]
    heap[0] = last
    heapq._siftup_max(heap, 0)  # type: ignore[attr-defined]
    return largest


def is_searched_in_python(a: Any, x: Any, *bounds: Any, key: Any = None, **named: Any) -> bool:
    return key is not None or not (is_plain(a) and is_plain(x))


@polyfill(bisect.bisect_right, applies=is_searched_in_python)
def bisect_right(a: Any, x: Any, lo: Any = 0, hi: Any = None, *, key: Any = None) -> int:
    """`bisect.bisect_right(a, x, lo, hi, key=key)`."""
    if lo < 0:
        raise ValueError("lo must be non-negative")
    if hi is None or hi == -1:
        hi = len(a)
    while lo < hi:
        middle = (lo + hi) // 2
        if x < (a[middle] if key is None else key(a[middle])):
            hi = middle
        else:
            lo = middle + 1
    return lo


@polyfill(bisect.bisect_left, applies=is_searched_in_python)
def bisect_left(a: Any, x: Any, lo: Any = 0, hi: Any = None, *, key: Any = None) -> int:
    """`bisect.bisect_left(a, x, lo, hi, key=key)`."""
    if lo < 0:
        raise ValueError("lo must be non-negative")
    if hi is None or hi == -1:
        hi = len(a)
    while lo < hi:
        middle = (lo + hi) // 2
        if (a[middle] if key is None else key(a[middle])) < x:
            lo = middle + 1
        else:
            hi = middle
    return lo


@polyfill(bisect.insort_right, applies=always)
def insort_right(a: Any, x: Any, lo: Any = 0, hi: Any = None, *, key: Any = None) -> None:
    """`bisect.insort(a, x, lo, hi, key=key)`."""
    place = bisect.bisect_right(a, x if key is None else key(x), lo, hi, key=key)
    a.insert(place, x)


@polyfill(bisect.insort_left, applies=always)
def insort_left(a: Any, x: Any, lo: Any = 0, hi: Any = None, *, key: Any = None) -> None:
    """`bisect.insort_left(a, x, lo, hi, key=key)`."""
    place = bisect.bisect_left(a, x if key is None else key(x), lo, hi, key=key)
    a.insert(place, x)


# -- binary data -------------------------------------------------------------------------------------------------------

def unpacked(format: Any, data: Any) -> list[Any]:
    """All records of a format in data. A model computes them in C."""
    return list(struct.iter_unpack(format, data))


@polyfill(struct.iter_unpack, applies=always)
def iter_unpack(format: Any, buffer: Any) -> Any:
    """`struct.iter_unpack(format, buffer)`."""
    return iter(unpacked(format, buffer))


# -- JSON --------------------------------------------------------------------------------------------------------------

def tokens(text: Any) -> Any:
    """What a JSON text says, objects as tuples of their pairs. A model computes it in C."""
    return frozen_tree(json.loads(text, object_pairs_hook=tuple))


def frozen_tree(tree: Any) -> Any:
    """The same with every array as a list in a tuple of its own, which tells it from an object."""
    if type(tree) is list:
        return ("array", *map(frozen_tree, tree))
    return ("object", *((key, frozen_tree(value)) for key, value in tree)) if type(tree) is tuple else tree


def hooked(tree: Any, hook: Any, of_pairs: bool) -> Any:
    """What a decoder makes of it, whose hook is called for each object, after those inside of it."""
    if type(tree) is not tuple:
        return tree
    if tree[0] == "array":
        return [hooked(item, hook, of_pairs) for item in tree[1:]]
    pairs = [(key, hooked(value, hook, of_pairs)) for key, value in tree[1:]]
    return hook(pairs if of_pairs else dict(pairs))


def calls_hook(s: Any, *, object_hook: Any = None, object_pairs_hook: Any = None) -> bool:
    return type(s) in TEXTS and (object_hook is not None or object_pairs_hook is not None)


@polyfill(json.loads, applies=calls_hook)
def loads(s: Any, *, object_hook: Any = None, object_pairs_hook: Any = None) -> Any:
    """`json.loads(s, object_hook=…)`."""
    of_pairs = object_pairs_hook is not None
    return hooked(tokens(s), object_pairs_hook if of_pairs else object_hook, of_pairs)


def has_python_hook(obj: Any, *, cls: Any = None, default: Any = None, **options: Any) -> bool:
    return type(default) is types.FunctionType or is_a(cls, type) and issubclass(cls, json.JSONEncoder) and (
        cls.default is not json.JSONEncoder.default and cls.encode is json.JSONEncoder.encode)


@polyfill(json.dumps, applies=has_python_hook)
def dumps(obj: Any, *, cls: Any = None, **options: Any) -> Any:
    """`json.dumps(obj, cls=…, default=…)`."""
    return (json.JSONEncoder if cls is None else cls)(**options).encode(obj)


@polyfill(json.encoder.c_make_encoder, applies=lambda *args: len(args) == 9)  # type: ignore[attr-defined]
def make_encoder(markers: Any, default: Any, encoder: Any, indent: Any, key_separator: Any, item_separator: Any, sort_keys: Any,
                 skipkeys: Any, allow_nan: Any) -> Any:
    """The encoder of C, in Python, as the library has it for want of that."""
    number = text_of_number if allow_nan else text_of_finite_number
    return json.encoder._make_iterencode(  # type: ignore[attr-defined]
        markers, default, encoder, indent, number, key_separator, item_separator, sort_keys, skipkeys, True)


def text_of_number(number: Any) -> Any:
    """A float as JSON. A model computes it in C."""
    return json.dumps(float(number))


def text_of_finite_number(number: Any) -> Any:
    """The same of one that is no infinity and no NaN. Raises ValueError for others."""
    return json.dumps(float(number), allow_nan=False)


# -- format strings ----------------------------------------------------------------------------------------------------

def parsed(text: Any) -> Any:
    """The parts of a format string. A model computes them in C."""
    return tuple(_string.formatter_parser(text))


@polyfill(_string.formatter_parser, applies=lambda text: type(text) is str)
def parse_format(text: Any) -> Any:
    """`string.Formatter().parse(text)`."""
    return iter(parsed(text))


def name_and_path(text: Any) -> Any:
    """What a replacement field is about: a name, and attributes and items. A model computes them in C."""
    first, rest = _string.formatter_field_name_split(text)
    return first, tuple(rest)


@polyfill(_string.formatter_field_name_split, applies=lambda text: type(text) is str)
def split_field_name(text: Any) -> Any:
    """The same, as `string.Formatter` asks for it."""
    first, rest = name_and_path(text)
    return first, iter(rest)


# -- regular expressions -----------------------------------------------------------------------------------------------

def matches(pattern: Any, text: Any, *bounds: Any) -> list[Any]:
    """All matches of a compiled pattern. A model computes them in C."""
    return list(pattern.finditer(text, *bounds))


@polyfill(re.Pattern.finditer, applies=lambda self, string, pos=0, endpos=0: type(string) in TEXTS)
def finditer_of_pattern(self: Any, string: Any, pos: Any = 0, endpos: Any = sys.maxsize) -> Any:
    """`pattern.finditer(string, pos, endpos)`."""
    return iter(matches(self, string, pos, endpos))


@polyfill(re.finditer, applies=lambda pattern, string, flags=0: type(string) in TEXTS)
def finditer(pattern: Any, string: Any, flags: Any = 0) -> Any:
    """`re.finditer(pattern, string, flags)`."""
    return iter(matches(re.compile(pattern, flags), string))


def is_replaced_in_python(pattern: Any, repl: Any, string: Any, *rest: Any, **named: Any) -> bool:
    return callable(repl) and type(string) in TEXTS


def substitute(pattern: Any, repl: Any, text: Any, count: Any) -> tuple[Any, int]:
    """`text` with what `repl` makes of each match in its place, and how many there were."""
    parts = []
    at = made = 0
    for match in matches(pattern, text):
        if count and made >= count:
            break
        parts.append(text[at:match.start()])
        replacement = repl(match)
        if replacement is not None:
            parts.append(replacement)
        at = match.end()
        made += 1
    parts.append(text[at:])
    return text[:0].join(parts), made


@polyfill(re.Pattern.sub, applies=is_replaced_in_python)
def sub_of_pattern(self: Any, repl: Any, string: Any, count: Any = 0) -> Any:
    """`pattern.sub(function, string, count)`."""
    return substitute(self, repl, string, count)[0]


@polyfill(re.Pattern.subn, applies=is_replaced_in_python)
def subn_of_pattern(self: Any, repl: Any, string: Any, count: Any = 0) -> Any:
    """`pattern.subn(function, string, count)`."""
    return substitute(self, repl, string, count)


@polyfill(re.sub, applies=is_replaced_in_python)
def sub(pattern: Any, repl: Any, string: Any, count: Any = 0, flags: Any = 0) -> Any:
    """`re.sub(pattern, function, string, count, flags)`."""
    return substitute(re.compile(pattern, flags), repl, string, count)[0]


@polyfill(re.subn, applies=is_replaced_in_python)
def subn(pattern: Any, repl: Any, string: Any, count: Any = 0, flags: Any = 0) -> Any:
    """`re.subn(pattern, function, string, count, flags)`."""
    return substitute(re.compile(pattern, flags), repl, string, count)


# -- digests -----------------------------------------------------------------------------------------------------------

def digest_of(name: str, data: bytes) -> bytes:
    """The digest of data by an algorithm. A model computes it in C."""
    return hashlib.new(name, data, usedforsecurity=False).digest()


@stand_in(type(hashlib.sha256()))
class Hash(StandIn):
    """What `hashlib.sha256()` and its siblings return."""

    __slots__ = ("name", "data")

    def begin(self, name: str, data: Any) -> None:
        self.name, self.data = name, bytes(data)

    def update(self, data: Any) -> None:
        self.data += bytes(data)

    def digest(self) -> bytes:
        return digest_of(self.name, self.data)

    def hexdigest(self) -> str:
        return self.digest().hex()

    def copy(self) -> Hash:
        return Hash(self.name, self.data)

    @property
    def digest_size(self) -> int:
        return len(self.digest())


@polyfill(hashlib.md5, applies=always)
def md5(string: Any = b"", *, usedforsecurity: bool = True) -> Any:
    """`hashlib.md5(string)`."""
    return Hash("md5", string)


@polyfill(hashlib.sha1, applies=always)
def sha1(string: Any = b"", *, usedforsecurity: bool = True) -> Any:
    """`hashlib.sha1(string)`."""
    return Hash("sha1", string)


@polyfill(hashlib.sha256, applies=always)
def sha256(string: Any = b"", *, usedforsecurity: bool = True) -> Any:
    """`hashlib.sha256(string)`."""
    return Hash("sha256", string)


@polyfill(hashlib.sha512, applies=always)
def sha512(string: Any = b"", *, usedforsecurity: bool = True) -> Any:
    """`hashlib.sha512(string)`."""
    return Hash("sha512", string)


# -- tables ------------------------------------------------------------------------------------------------------------

WRITER = type(csv.writer(io.StringIO()))


@polyfill(WRITER.writerow, applies=lambda self, row: type(row) not in LISTS and is_iterable(row))
def write_row(self: Any, row: Any) -> Any:
    """`writer.writerow(row)` of what is no list yet."""
    return self.writerow(list(row))


@polyfill(WRITER.writerows, applies=lambda self, rows: is_iterable(rows))
def write_rows(self: Any, rows: Any) -> None:
    """`writer.writerows(rows)`."""
    for row in rows:
        self.writerow(row)
