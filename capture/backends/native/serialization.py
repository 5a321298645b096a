"""Artifacts, and other records, as bytes that hold nothing but data: no code runs when they are read.

The format follows from the annotations of the fields of dataclasses and NamedTuples, which say all that a record may hold; anything
else is refused, when it is written and when it is read. The bytes are::

    magic, 8 bytes | length of the header, 8 bytes | header, JSON | sections, one behind the other

The header is [name of the record's class, its value, lengths of the sections]. Sections are the bytes that JSON would make longer:
libraries, graphs, the elements of tensors. What values are in JSON:

- None, bool, int, str: themselves. float: an int, or the text of `float.hex`. dtype, device: their names.
- A tuple: an array. A frozenset: an array, sorted. A dict: an array of [key, value].
- A record: an array of its fields, in order. An `Index`: an array of terms, each the coefficient and then the atoms.
- bytes: the number of a section. A tensor: [dtype, sizes, strides, section], the section being all memory from its first element to
  its last one, so that it comes back with its strides.
- One of several types: null for None; if there are several others, [name of the type, value].
- What is annotated as Any: as above, if it is None, bool, int, str or a tuple; {"float": text}; {"complex": [text, text]}.

The format has no checksum: whoever keeps the bytes adds one (`disk_cache`, `warm_cache`).
"""
from __future__ import annotations

import dataclasses
import functools
import json
import struct
import types
import typing
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any, TypeVar

import torch

from capture.backends.native.index import Index, SizeAtom, known_span

T = TypeVar("T")

MAGIC = b"CAPDATA\1"
START = struct.Struct("<8sQ")           # magic, length of the header
SCALARS: tuple[Any, ...] = (bool, int, str)
NOT_THEMSELVES = {list, dict, float}    # what JSON gives that stands for something else, or for nothing
DTYPES = {str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.dtype)}

QUANTIZED = {torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4}       # dtypes whose tensors are not plain


class FormatError(ValueError):
    """An object cannot be written, or bytes are not what `encode` has made of such a record; the message says what is wrong."""


def encode(record: Any) -> bytes:
    """A record as bytes: the same for equal records. Raises FormatError for what the annotations of its fields do not allow."""
    sections: list[bytes] = []
    value = _record(type(record)).write(record, sections)
    header = json.dumps([type(record).__name__, value, list(map(len, sections))], separators=(",", ":")).encode()
    return b"".join((START.pack(MAGIC, len(header)), header, *sections))


def decode(cls: type[T], data: bytes) -> T:
    """The record of class `cls` that `encode` made bytes of. Raises FormatError for all other bytes."""
    name, value, sections = _parts(data)
    if name != cls.__name__:
        raise FormatError(f"this is {_shown(name)}, not {cls.__name__}")
    try:
        record, = _record(cls).read([value], sections)
    except _Mismatch as error:
        raise FormatError(f"the header is damaged: it {error}") from None
    return record


def records(cls: type) -> list[type]:
    """The classes of all records, and Index, that a record of class `cls` can consist of, itself among them."""
    found: dict[type, None] = {}
    open_ends: list[_Codec] = [_record(cls)]
    while open_ends:
        codec = open_ends.pop()
        if isinstance(codec, (_Record, _Polynomial)):
            if codec.cls in found:
                continue
            found[codec.cls] = None
        open_ends += codec.parts()
    return list(found)


def _parts(data: bytes) -> tuple[Any, Any, list[bytes]]:
    """The header's first two items, and the sections."""
    if len(data) < START.size or data[:len(MAGIC)] != MAGIC:
        raise FormatError("these bytes do not begin as those of a record do")
    end = START.size + START.unpack_from(data)[1]
    try:
        header = json.loads(data[START.size:end])
    except (ValueError, RecursionError) as error:
        raise FormatError(f"the header is damaged: {error}") from None
    if type(header) is not list or len(header) != 3 or type(header[2]) is not list:
        raise FormatError("the header is damaged: it has not three parts")
    name, value, lengths = header
    sections = []
    for length in lengths:
        if type(length) is not int or not 0 <= length <= len(data) - end:
            raise FormatError("a section is missing")
        sections.append(data[end:end + length])
        end += length
    if end != len(data):
        raise FormatError(f"{len(data) - end} bytes follow the last section")
    return name, value, sections


class _Mismatch(Exception):
    """A value is not of the type that is expected; the message goes on after the name of the field."""

    def __init__(self, value: Any, expected: object) -> None:
        super().__init__(f"holds {_shown(value)}, which is not {expected}")


def _shown(value: Any) -> str:
    return f"{type(value).__name__} {' '.join(f'{value!r:.60}'.split())}"


# --- how values of one type are written and read

class _Codec:
    """For values of one type: `write` gives what stands for a value in JSON, and adds sections. `read` is the reverse, of many
    values at a time, so that loops of C do most of the work. Both raise _Mismatch, or FormatError where it is known in which field.
    parts: the codecs of what such a value consists of."""

    def write(self, value: Any, sections: list[bytes]) -> Any:
        raise NotImplementedError

    def read(self, column: Sequence[Any], sections: Sequence[bytes]) -> Sequence[Any]:
        raise NotImplementedError

    def parts(self) -> list[_Codec]:
        return []


class _Scalar(_Codec):
    """bool, int or str."""

    def __init__(self, cls: type) -> None:
        self.cls = cls

    def write(self, value: Any, sections: list[bytes]) -> Any:
        if type(value) is not self.cls:
            raise _Mismatch(value, f"of type {self.cls.__name__}")
        return value

    def read(self, column: Sequence[Any], sections: Sequence[bytes]) -> Sequence[Any]:
        _check(column, self.cls)
        return column


class _Float(_Codec):
    def write(self, value: Any, sections: list[bytes]) -> Any:
        if type(value) is float:
            return value.hex()
        if type(value) is int:          # which type checkers take for a float, too
            return value
        raise _Mismatch(value, "of type float")

    def read(self, column: Sequence[Any], sections: Sequence[bytes]) -> Sequence[Any]:
        return [data if type(data) is int else _float(data) for data in column]


class _Bytes(_Codec):
    def write(self, value: Any, sections: list[bytes]) -> Any:
        if type(value) is not bytes:
            raise _Mismatch(value, "of type bytes")
        sections.append(value)
        return len(sections) - 1

    def read(self, column: Sequence[Any], sections: Sequence[bytes]) -> Sequence[Any]:
        _check(column, int)
        for data in column:
            if not 0 <= data < len(sections):
                raise _Mismatch(data, "the number of a section")
        return [sections[data] for data in column]


class _Dtype(_Codec):
    def write(self, value: Any, sections: list[bytes]) -> Any:
        if type(value) is not torch.dtype:
            raise _Mismatch(value, "a dtype")
        return str(value).removeprefix("torch.")

    def read(self, column: Sequence[Any], sections: Sequence[bytes]) -> Sequence[Any]:
        _check(column, str)
        for data in column:
            if data not in DTYPES:
                raise _Mismatch(data, "the name of a dtype")
        return [DTYPES[data] for data in column]


class _Device(_Codec):
    def write(self, value: Any, sections: list[bytes]) -> Any:
        if type(value) is not torch.device:
            raise _Mismatch(value, "a device")
        return str(value)

    def read(self, column: Sequence[Any], sections: Sequence[bytes]) -> Sequence[Any]:
        _check(column, str)
        return list(map(_device, column))


def _device(name: str) -> torch.device:
    try:
        found = torch.device(name)
    except RuntimeError:
        raise _Mismatch(name, "the name of a device") from None
    if str(found) != name:
        raise _Mismatch(name, "the name of a device")
    return found


class _Tensor(_Codec):
    """Plain tensors on the processor."""

    def write(self, value: Any, sections: list[bytes]) -> Any:
        if type(value) is not torch.Tensor or value.layout is not torch.strided or value.device.type != "cpu" \
                or value.is_quantized or value.is_conj() or value.is_neg() or value.requires_grad:
            raise _Mismatch(value, "a plain tensor on the processor")
        memory = torch.as_strided(value, (known_span(value.shape, value.stride()),), (1,)).contiguous()
        sections.append(memory.view(torch.uint8).numpy().tobytes())
        return [DTYPE.write(value.dtype, sections), list(value.shape), list(value.stride()), len(sections) - 1]

    def read(self, column: Sequence[Any], sections: Sequence[bytes]) -> Sequence[Any]:
        return [_tensor(*fields) for fields in TENSOR.read(column, sections)]


def _tensor(dtype: torch.dtype, sizes: tuple[int, ...], strides: tuple[int, ...], memory: bytes) -> torch.Tensor:
    if len(sizes) != len(strides) or min((0, *sizes, *strides)) < 0 or known_span(sizes, strides) * dtype.itemsize != len(memory):
        raise _Mismatch((sizes, strides), f"how a tensor lies in {len(memory)} bytes")
    if dtype in QUANTIZED:
        raise _Mismatch(dtype, "the dtype of a plain tensor")
    elements = torch.empty(len(memory), dtype=torch.uint8, device="cpu")
    elements.numpy()[:] = memoryview(memory)
    tensor = torch.empty(0, dtype=dtype, device="cpu")
    return tensor.set_(elements.untyped_storage(), 0, sizes, strides)       # which is no view, as results are that are given away


class _Collection(_Codec):
    """A tuple, frozenset or dict of any length, whose items (of a dict, pairs) have one type."""

    def __init__(self, cls: type, item: _Codec) -> None:
        self.cls, self.item = cls, item

    def write(self, value: Any, sections: list[bytes]) -> Any:
        if type(value) is not self.cls:
            raise _Mismatch(value, f"of type {self.cls.__name__}")
        items = [self.item.write(item, sections) for item in (value.items() if self.cls is dict else value)]
        return sorted(items, key=str) if self.cls is frozenset else items

    def read(self, column: Sequence[Any], sections: Sequence[bytes]) -> Sequence[Any]:
        _check(column, list)
        flat = list(chain.from_iterable(column))
        read = self.item.read(flat, sections) if flat else flat         # types that hold each other end here
        if read is flat:                                                # all items stand for themselves
            return list(map(self.cls, column))
        items = iter(read)
        return [self.cls(islice(items, len(row))) for row in column]

    def parts(self) -> list[_Codec]:
        return [self.item]


class _Row(_Codec):
    """A tuple whose items have a type each."""

    def __init__(self, items: Sequence[_Codec]) -> None:
        self.items = items

    def write(self, value: Any, sections: list[bytes]) -> Any:
        if type(value) is not tuple or len(value) != len(self.items):
            raise _Mismatch(value, f"a tuple of {len(self.items)}")
        return [codec.write(item, sections) for codec, item in zip(self.items, value, strict=True)]

    def read(self, column: Sequence[Any], sections: Sequence[bytes]) -> Sequence[Any]:
        turned = _turned(column, len(self.items))
        return list(zip(*(codec.read(items, sections) for codec, items in zip(self.items, turned, strict=True)), strict=True))

    def parts(self) -> list[_Codec]:
        return list(self.items)


class _Union(_Codec):
    """One of several types. alone: the only one besides None."""

    def __init__(self, members: dict[str, tuple[type, _Codec]], optional: bool) -> None:
        self.members, self.optional = members, optional
        self.alone = next(iter(members.values()))[1] if optional and len(members) == 1 else None
        self.names = {cls: name for name, (cls, _) in members.items()}

    def write(self, value: Any, sections: list[bytes]) -> Any:
        if value is None and self.optional:
            return None
        if self.alone is not None:
            return self.alone.write(value, sections)
        name = self.names.get(type(value))
        if name is None:
            raise _Mismatch(value, f"of type {' or '.join(self.members)}")
        return [name, self.members[name][1].write(value, sections)]

    def read(self, column: Sequence[Any], sections: Sequence[bytes]) -> Sequence[Any]:
        given = [data for data in column if data is not None] if self.optional else column
        if not given:
            return column
        if self.alone is not None:
            items = iter(self.alone.read(given, sections))
            return [None if data is None else next(items) for data in column]
        names, _ = _turned(given, 2)
        _check(names, str)
        if unknown := set(names) - self.members.keys():
            raise _Mismatch(unknown.pop(), " or ".join(self.members))
        found = {name: iter(self.members[name][1].read([value for one, value in given if one == name], sections))
                 for name in set(names)}
        return [None if data is None else next(found[data[0]]) for data in column]

    def parts(self) -> list[_Codec]:
        return [codec for _, codec in self.members.values()]


class _Record(_Codec):
    """A dataclass or NamedTuple."""

    def __init__(self, cls: type, names: Sequence[str]) -> None:
        self.cls, self.names = cls, names

    @functools.cached_property
    def fields(self) -> list[tuple[str, _Codec]]:
        """Names and codecs, found when they are first needed, since records may hold records of their own class."""
        hints = typing.get_type_hints(self.cls)
        return [(name, _codec(hints[name])) for name in self.names]

    def write(self, value: Any, sections: list[bytes]) -> Any:
        if type(value) is not self.cls:
            raise _Mismatch(value, f"of type {self.cls.__name__}")
        written = []
        for name, codec in self.fields:
            try:
                written.append(codec.write(getattr(value, name), sections))
            except _Mismatch as error:
                raise FormatError(f"this cannot be kept as bytes: {self.cls.__name__}.{name} {error}") from None
        return written

    def read(self, column: Sequence[Any], sections: Sequence[bytes]) -> Sequence[Any]:
        columns = []
        turned = _turned(column, len(self.fields))
        for (name, codec), items in zip(self.fields, turned, strict=True):
            try:
                columns.append(codec.read(items, sections))
            except _Mismatch as error:
                raise FormatError(f"a {self.cls.__name__} is damaged: its {name} {error}") from None
        return list(map(self.cls, *columns))

    def parts(self) -> list[_Codec]:
        return [codec for _, codec in self.fields]


class _Polynomial(_Codec):
    """An Index of sizes."""

    cls = Index

    @functools.cached_property
    def terms(self) -> _Codec:
        """Coefficients and monomials."""
        return _codec(tuple[tuple[int, tuple[SizeAtom, ...]], ...])

    def write(self, value: Any, sections: list[bytes]) -> Any:
        if type(value) is not Index:
            raise _Mismatch(value, "of type Index")
        return self.terms.write(tuple((coefficient, monomial) for monomial, coefficient in value.terms.items()), sections)

    def read(self, column: Sequence[Any], sections: Sequence[bytes]) -> Sequence[Any]:
        return [Index({monomial: coefficient for coefficient, monomial in terms}) for terms in self.terms.read(column, sections)]

    def parts(self) -> list[_Codec]:
        return [self.terms]


class _Plain(_Codec):
    """What is annotated as Any."""

    def write(self, value: Any, sections: list[bytes]) -> Any:
        cls = type(value)
        if value is None or cls in SCALARS:
            return value
        if cls is tuple:
            return [self.write(item, sections) for item in value]
        if cls is float:
            return {"float": value.hex()}
        if cls is complex:
            return {"complex": [value.real.hex(), value.imag.hex()]}
        raise _Mismatch(value, "plain data")

    def read(self, column: Sequence[Any], sections: Sequence[bytes]) -> Sequence[Any]:
        return column if NOT_THEMSELVES.isdisjoint(map(type, column)) else list(map(_plain, column))


def _plain(data: Any) -> Any:
    cls = type(data)
    if cls is list:
        return tuple(data) if NOT_THEMSELVES.isdisjoint(map(type, data)) else tuple(map(_plain, data))
    if cls is dict and len(data) == 1:
        (kind, value), = data.items()
        if kind == "float":
            return _float(value)
        if kind == "complex" and type(value) is list and len(value) == 2:
            return complex(*map(_float, value))
    if cls in NOT_THEMSELVES:
        raise _Mismatch(data, "plain data")
    return data


def _float(data: Any) -> float:
    try:
        if type(data) is str:
            return float.fromhex(data)
    except (ValueError, OverflowError):
        pass
    raise _Mismatch(data, "the text of a float")


def _check(column: Sequence[Any], cls: type) -> None:
    """Raises _Mismatch unless all items are of this class."""
    if not set(map(type, column)) <= {cls}:
        raise _Mismatch(next(data for data in column if type(data) is not cls), f"of type {cls.__name__}")


def _turned(column: Sequence[Any], length: int) -> Sequence[Sequence[Any]]:
    """Rows of this length as columns."""
    _check(column, list)
    if not set(map(len, column)) <= {length}:
        raise _Mismatch(next(data for data in column if len(data) != length), f"of {length} items")
    return list(zip(*column, strict=True))


# --- from annotations to codecs

DTYPE, BYTES = _Dtype(), _Bytes()
SIMPLE: dict[Any, _Codec] = {**{cls: _Scalar(cls) for cls in SCALARS}, float: _Float(), bytes: BYTES, torch.dtype: DTYPE,
                             torch.device: _Device(), torch.Tensor: _Tensor(), Index: _Polynomial(), Any: _Plain()}
SIZES = _Collection(tuple, SIMPLE[int])
TENSOR = _Row((DTYPE, SIZES, SIZES, BYTES))


def _record(cls: type) -> _Record:
    """The codec of a class of records. Raises FormatError for other classes."""
    codec = _codec(cls)
    if not isinstance(codec, _Record):
        raise FormatError(f"{cls.__name__} is no class of records")
    return codec


@functools.cache
def _codec(annotation: Any) -> _Codec:
    """The codec for values of an annotation. Raises FormatError for one that says too little, or that has no form in bytes."""
    if annotation in SIMPLE:
        return SIMPLE[annotation]
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return _Collection(tuple, _codec(arguments[0]))
        return _Row(list(map(_codec, arguments)))
    if origin is frozenset:
        return _Collection(frozenset, _codec(arguments[0]))
    if origin is dict:
        return _Collection(dict, _Row(list(map(_codec, arguments))))
    if origin in (types.UnionType, typing.Union):
        return _Union({_class(member).__name__: (_class(member), _codec(member)) for member in _members(arguments)},
                      type(None) in arguments)
    if isinstance(annotation, type):
        if dataclasses.is_dataclass(annotation):
            return _Record(annotation, [field.name for field in dataclasses.fields(annotation)])
        if issubclass(annotation, tuple) and hasattr(annotation, "_fields"):
            return _Record(annotation, annotation._fields)
    raise FormatError(f"what is annotated as {annotation} cannot be kept as bytes")


def _members(arguments: Sequence[Any]) -> Iterator[Any]:
    """Those of a union, but for None."""
    seen: dict[str, Any] = {}
    for member in arguments:
        if member is not type(None):
            if seen.setdefault(_class(member).__name__, member) != member:
                raise FormatError(f"{seen[_class(member).__name__]} and {member} cannot be told apart")
            yield member


def _class(annotation: Any) -> type:
    """The class of values of an annotation."""
    return typing.get_origin(annotation) or annotation
