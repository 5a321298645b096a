"""Artifacts as bytes: all classes of which they consist come back as they were, and other bytes or objects are refused."""
from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
import pickle
import types
import typing
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from capture.backends.native import artifact, nvrtc
from capture.backends.native.artifact import Artifact, Compiled, Frozen
from capture.backends.native.index import Div, Index, Mod, Symbol, Value, Var, index
from capture.backends.native.job import Modes
from capture.backends.native.numbers import Domain
from capture.backends.native.plan import ExternStep, KernelStep, LaunchStep, Plan, Slot
from capture.backends.native.serialization import START, FormatError, decode, encode, records
from capture.backends.native.signature import Check, Input, Part, Result, Signature, Tangent

N, M = Symbol("n"), Symbol("m", 5)
SIZES = [0, 7, -1, index(N), N * index(M) + 3, (index(N) + 1) // 2 * 3, (index(N) * M) % 8, (index(N) // 3 + M) % (index(M) + 1)]
# Values of each type that fields are annotated with, besides records, tuples and unions of these.
EXAMPLES: dict[Any, list[Any]] = {
    bool: [True, False], int: [0, -1, 2**70], str: ["", "text \N{BLACK STAR}\0\"", "\udc80"], bytes: [b"", b"\0\xff" * 3],
    float: [0.5, -0.0, math.inf, 5e-324, 3], torch.dtype: [torch.float32, torch.complex64], torch.device: [torch.device("cuda:1")],
    torch.Tensor: [torch.arange(6.0).reshape(2, 3)], Index: [size for size in SIZES if isinstance(size, Index)],
    Any: [None, True, -5, "x", 0.1, 1e400, complex(-0.0, 2), (1, ("a", (), (0.5, (None, 1j))))], type(None): [None],
}


class Holder(NamedTuple):
    """A record for one value of any kind."""

    value: Any


def examples(annotation: Any, depth: int = 0) -> Iterator[Any]:
    """Values of an annotation: each of EXAMPLES, each member of a union, and tuples of several lengths."""
    arguments = typing.get_args(annotation)
    if annotation in EXAMPLES:
        yield from EXAMPLES[annotation]
    elif isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        for member in arguments:
            yield from examples(member, depth)
    elif typing.get_origin(annotation) in (tuple, frozenset):
        make = typing.get_origin(annotation)
        if make is frozenset or arguments[1:] == (...,):
            items = list(examples(arguments[0], depth + 1))
            yield from (make(items[:length]) for length in (0, 1, len(items)))
        else:
            columns = [list(examples(argument, depth + 1)) for argument in arguments]
            yield from zip(*([column[i % len(column)] for i in range(max(map(len, columns)))] for column in columns), strict=True)
    elif typing.get_origin(annotation) is dict:
        yield dict(zip(examples(arguments[0]), itertools.cycle(examples(arguments[1])), strict=False))
    elif annotation in (Div, Mod):
        yield annotation(index(N), index(M))
    elif isinstance(annotation, type) and hasattr(annotation, "__annotations__"):
        hints = typing.get_type_hints(annotation)
        columns = [list(examples(hint, depth + 1)) for hint in hints.values()]
        for i in range(1 if depth > 1 else max(map(len, columns))):
            yield annotation(*(column[i % len(column)] for column in columns))
    else:
        raise AssertionError(f"there are no examples of {annotation}: add some")


@pytest.mark.parametrize("cls", [cls for cls in records(Artifact) if cls is not Index], ids=lambda cls: cls.__name__)
def test_every_class_of_an_artifact_comes_back_as_it_was(cls: type) -> None:
    """With each of its fields in all forms that the annotation allows."""
    count = 0
    for count, value in enumerate(examples(cls), 1):
        data = encode(value)
        found = decode(cls, data)
        assert exact(found) == exact(value) and encode(found) == data
    assert count


def exact(value: Any) -> Any:
    """Something that is equal for values of equal types only: 1, True and 1.0 differ, 0.0 and -0.0, and so do strides."""
    if isinstance(value, torch.Tensor):
        return "tensor", value.dtype, value.shape, value.stride(), value.tolist()
    if dataclasses.is_dataclass(value):
        return type(value), [exact(getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, (tuple, dict)):
        return type(value), list(map(exact, value.items() if isinstance(value, dict) else value))
    return type(value), value if isinstance(value, (Index, frozenset)) else repr(value)


def test_all_classes_of_an_artifact_are_found() -> None:
    found = set(records(Artifact))
    assert found >= {Artifact, Compiled, Frozen, Plan, Slot, KernelStep, LaunchStep, ExternStep, Signature, Input, Result, Tangent,
                     Check, Part, Modes, Index, Symbol, Div, Mod}
    assert found.isdisjoint({Var, Value})
    assert records(nvrtc.Cubin) == [nvrtc.Cubin, nvrtc.Usage]


def test_cubins_come_back() -> None:
    cubin = nvrtc.Cubin(b"\0code", {"k1": nvrtc.Usage(1, 2, 3, 4, 5), "k2": nvrtc.Usage(0, 0, 0, 0, 0)}, "log")
    assert decode(nvrtc.Cubin, encode(cubin)) == cubin


# --- sizes

POSITIVE = [index(2), index(9), index(N), index(M), index(N) * M + 1]
steps = st.tuples(st.sampled_from(["+", "*", "//", "%"]), st.integers(-2**40, 2**40), st.sampled_from(POSITIVE))
sizes = st.builds(lambda steps: functools.reduce(calculated, steps, index(N)), st.lists(steps, max_size=5))


def calculated(size: Index, step: tuple[str, int, Index]) -> Index:
    """The size after one step of a calculation."""
    operation, number, positive = step
    return {"+": lambda: size + positive * number, "*": lambda: size * positive, "//": lambda: (size + number) // positive,
            "%": lambda: (size + number) % positive}[operation]()


@given(sizes)
def test_sizes_come_back(size: Index) -> None:
    tangent = Tangent(0, (size,), (), torch.float32, torch.device("cpu"))
    found = decode(Tangent, encode(tangent))
    assert found == tangent and repr(found.sizes[0]) == repr(size) and found.sizes[0] + 1 == size + 1


@pytest.mark.parametrize("atom", [Var("i", 5), Value("x", 5)])
def test_what_only_kernels_know_is_refused(atom: Any) -> None:
    with pytest.raises(FormatError, match=r"^this cannot be kept as bytes: Tangent.sizes holds \w+ .*, which is not of type Sym"):
        encode(Tangent(0, (index(N) + atom,), (), torch.float32, torch.device("cpu")))


# --- tensors

@pytest.mark.parametrize("tensor", [
    torch.tensor(2.5), torch.empty(0), torch.empty(3, 0, 2), torch.randn(3, 4).t(), torch.randn(5).expand(4, 5),
    torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.tensor([True, False]), torch.arange(10)[1::3],
    torch.randn(2, 2, dtype=torch.complex128), torch.tensor([[math.nan, -0.0, math.inf]]), torch.arange(3, dtype=torch.uint8),
    torch.randn(3, dtype=torch.bfloat16)])
def test_tensors_come_back(tensor: torch.Tensor) -> None:
    compiled = Compiled(Plan((), (), 1, (), (), (), (), 0), None, (tensor,), 0, "")
    found, = decode(Compiled, encode(compiled)).constants
    assert (found.dtype, found.shape, found.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
    assert found.numpy(force=True).tobytes() == tensor.numpy(force=True).tobytes() if tensor.dtype is not torch.bfloat16 else \
        torch.equal(found, tensor)
    assert not found._is_view() and found.is_leaf
    assert found.data_ptr() % 64 == 0 or not tensor.numel()      # as torch aligns what it allocates


@pytest.mark.parametrize(("dtype", "sizes", "message"), [
    ("qint8", "[1],[1]", "torch.qint8, which is not the dtype of a plain tensor"), ("int9", "[1],[1]", "not the name of a dtype"),
    ("int8", "[2],[1]", "not how a tensor lies in 1 bytes"), ("int8", "[1],[-1]", "not how a tensor lies"),
    ("int8", "[1],[]", "not how a tensor lies"), ("int16", "[1],[1]", "not how a tensor lies")])
def test_tensors_that_do_not_fit_are_not_made(dtype: str, sizes: str, message: str) -> None:
    header = f'["Compiled",[[[],[],1,[],[],[],[],0],null,[["{dtype}",{sizes},0]],0,"","cpu"],[1]]'.encode()
    with pytest.raises(FormatError, match=f"^a Compiled is damaged: its constants holds .*{message}"):
        decode(Compiled, START.pack(b"CAPDATA\1", len(header)) + header + b"x")


@pytest.mark.parametrize("tensor", [
    torch.nn.Parameter(torch.ones(2)), torch.ones(2, requires_grad=True), torch.ones(2, device="meta"), torch.eye(2).to_sparse(),
    torch.ones(2, dtype=torch.complex64).conj()])
def test_other_tensors_are_refused(tensor: torch.Tensor) -> None:
    with pytest.raises(FormatError, match="Compiled.constants holds .* which is not a plain tensor on the processor"):
        encode(Compiled(Plan((), (), 1, (), (), (), (), 0), None, (tensor,), 0, ""))


# --- what is refused

@pytest.mark.parametrize("value", [[1], {1: 2}, {1}, b"x", object(), len, torch.float32, torch.Size((1,)), range(3), (1, [2])])
def test_what_is_no_plain_data_is_refused(value: Any) -> None:
    with pytest.raises(FormatError, match="^this cannot be kept as bytes: Holder.value holds .*, which is not plain data$"):
        encode(Holder(value))


@pytest.mark.parametrize(("record", "message"), [
    (Input(True), "Input.index holds bool True, which is not of type int"),
    (Frozen(b"", [1], ()), r"Frozen.frozen holds list \[1\], which is not of type tuple"),
    (Frozen(b"", (1,), (1, "2")), "Frozen.kept holds str '2', which is not of type int"),
    (Frozen("text", (1,), ()), "Frozen.graph holds str 'text', which is not of type bytes")])
def test_values_of_other_types_than_annotated_are_refused(record: Any, message: str) -> None:
    with pytest.raises(FormatError, match=f"^this cannot be kept as bytes: {message}$"):
        encode(record)


class Callback(NamedTuple):
    """A record that holds what has no form in bytes."""

    function: typing.Callable[[], None]


class Ambiguous(NamedTuple):
    """A record with a field of two types that look alike."""

    value: tuple[int, ...] | tuple[str, ...]


@pytest.mark.parametrize(("record", "message"), [
    (Callback(print), r"what is annotated as .*Callable.* cannot be kept as bytes"), (Ambiguous((1,)), "cannot be told apart"),
    (3, "int is no class of records")])
def test_records_without_a_form_in_bytes(record: Any, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        encode(record)


# --- bytes that are no artifact

def test_no_flipped_byte_does_more_than_to_be_refused() -> None:
    """Or to be read as other data, if it lies in a section or in a number: the checksum of who keeps the bytes finds that."""
    data = encode(Frozen(b"graph", (1, 22), (333,)))
    for place, bit in itertools.product(range(len(data)), range(8)):
        damaged = bytearray(data)
        damaged[place] ^= 1 << bit
        try:
            found = decode(Frozen, bytes(damaged))
        except FormatError as error:
            assert "\n" not in str(error)
        else:
            assert type(found) is Frozen and exact(found) != exact(decode(Frozen, data))


WRONG = [None, True, -1, 7, 10**30, 1.5, "", "cpu:-1", [], [[]], [1, 2], ["Symbol", []], {}, {"float": "?"}, {"complex": ["1", 2]}]


@pytest.mark.parametrize("cls", [Tangent, Plan, Compiled, Domain])
def test_no_other_value_in_a_header_does_more_than_to_be_refused(cls: type) -> None:
    """In the place of each value, the whole and the lists within included."""
    data = encode(max(examples(cls), key=lambda value: len(encode(value))))
    end = START.size + START.unpack_from(data)[1]
    outcomes: Counter[str] = Counter()
    for place, wrong in itertools.product(range(values_in(json.loads(data[START.size:end]))), WRONG):
        header = json.dumps(replaced(json.loads(data[START.size:end]), iter(range(-place, 10**9)), wrong)).encode()
        try:
            assert type(decode(cls, START.pack(b"CAPDATA\1", len(header)) + header + data[end:])) is cls
            outcomes["read"] += 1
        except FormatError as error:
            assert "\n" not in str(error)
            outcomes["refused"] += 1
    assert outcomes["refused"] > outcomes["read"] > 0


def values_in(value: Any) -> int:
    return 1 + (sum(map(values_in, value)) if isinstance(value, list) else 0)


def replaced(value: Any, numbers: Iterator[int], wrong: Any) -> Any:
    """The value with the part that gets number 0 replaced."""
    if next(numbers) == 0:
        return wrong
    return [replaced(item, numbers, wrong) for item in value] if isinstance(value, list) else value


def test_every_part_that_is_cut_off_is_missed() -> None:
    data = encode(Frozen(b"graph", (1,), ()))
    for length in range(len(data)):
        with pytest.raises(FormatError):
            decode(Frozen, data[:length])
    with pytest.raises(FormatError, match="1 bytes follow the last section"):
        decode(Frozen, data + b"x")


@pytest.mark.parametrize(("value", "message"), [
    ("[]", "it has not three parts"), ('["Frozen",[],[]]', "of 3 items"), ('["Input",[1],[]]', "this is str 'Input', not Frozen"),
    ('["Frozen",[0,[],[]],[]]', "its graph holds int 0, which is not the number of a section"),
    ('["Frozen",[0,[],[]],[1]]', "a section is missing"), ('["Frozen",[0,[],[]],[-1]]', "a section is missing"),
    ('["Frozen",[0,[1.5],[]],[0]]', "its frozen holds float 1.5, which is not of type int"),
    ('["Frozen",[0,{},[]],[0]]', "its frozen holds dict {}, which is not of type list"),
    ("[" * 100_000, "the header is damaged"), ("\xff", "the header is damaged")])
def test_headers_that_are_none(value: str, message: str) -> None:
    text = value.encode("latin-1")
    with pytest.raises(FormatError, match=message):
        decode(Frozen, START.pack(b"CAPDATA\1", len(text)) + text)


def test_other_formats_are_refused() -> None:
    for data in b"", b"\x7fELF" + bytes(100), pickle.dumps(Frozen(b"", (), ())), json.dumps(["Frozen"]).encode() * 10:
        with pytest.raises(FormatError, match="do not begin as those of a record do"):
            artifact.read(data)
