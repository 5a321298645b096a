"""Modules of the standard library that only compute: JSON, regular expressions, binary formats, decimal numbers, dates."""
from __future__ import annotations

import base64
import binascii
import bisect
import cmath
import datetime
import decimal
import difflib
import html
import json
import os.path
import pprint
import re
import shlex
import string
import struct
import sys
import textwrap
import types
import unicodedata
import urllib.parse
import zlib
from collections.abc import Iterable
from typing import Any

from capture._C import is_a
from capture.interp.core.registry import MODELS, PURE
from capture.interp.function_models.effects import effect
from capture.interp.function_models.scalars import plain
from capture.interp.polyfills.standard_library import (
    digest_of,
    matches,
    name_and_path,
    parsed,
    text_of_finite_number,
    text_of_number,
    tokens,
    unpacked,
)
from capture.refgraph.lookup import UNBOUND_IN_C
from capture.refgraph.value_types import RECORDS


def methods_of(cls: type) -> Iterable[Any]:
    """The C methods of an immutable type."""
    others = ("__new__", "__init__", "__getattribute__", "__iter__", "release")
    return (fn for name, fn in vars(cls).items() if type(fn) in UNBOUND_IN_C and name not in others)


def functions_of(module: types.ModuleType, *names: str) -> Iterable[Any]:
    return (getattr(module, name) for name in names)


PURE.update(
    *(methods_of(cls) for cls in RECORDS),
    [cls for cls in RECORDS if cls is not re.Match],
    functions_of(datetime.datetime, "strptime", "fromisoformat", "combine", "fromordinal", "fromisocalendar"),  # type: ignore[arg-type]
    functions_of(datetime.date, "fromisoformat", "fromordinal", "fromisocalendar"),  # type: ignore[arg-type]
    [datetime.time.fromisoformat, decimal.Decimal.from_float],
    functions_of(re, "compile", "match", "fullmatch", "search", "sub", "subn", "split", "findall", "escape"),
    functions_of(bisect, "bisect_left", "bisect_right"),
    [fn for fn in vars(cmath).values() if is_a(fn, types.BuiltinFunctionType)],
    functions_of(struct, "pack", "unpack", "unpack_from", "calcsize"),
    functions_of(binascii, "a2b_base64", "b2a_base64", "a2b_hex", "b2a_hex", "hexlify", "unhexlify", "crc32", "crc_hqx"),
    functions_of(zlib, "compress", "decompress", "crc32", "adler32"),
    functions_of(base64, "b64encode", "b64decode", "b32encode", "b32decode", "b16encode", "b16decode"),
    functions_of(base64, "urlsafe_b64encode", "urlsafe_b64decode"),
    functions_of(textwrap, "dedent", "indent", "wrap", "fill", "shorten"), functions_of(html, "escape", "unescape"),
    functions_of(urllib.parse, "quote", "unquote", "quote_plus", "unquote_plus", "urlencode"),
    functions_of(shlex, "split", "quote", "join"),
    functions_of(unicodedata, "normalize", "category", "name", "lookup", "numeric", "digit", "decimal", "east_asian_width"),
    [compile, types.CodeType.replace, sys.intern, string.capwords, difflib.get_close_matches, pprint.pformat, json.loads, matches,
     digest_of, tokens, unpacked, parsed, name_and_path, text_of_number, text_of_finite_number],
    functions_of(json.encoder, "encode_basestring", "encode_basestring_ascii"),
    functions_of(os.path, "join", "split", "splitext", "basename", "dirname", "normpath", "isabs", "commonprefix", "commonpath"),
    functions_of(os.path, "splitroot") if sys.version_info >= (3, 12) else ())

# What it writes of other data may follow from the program's own code, which runs anew on every hit.
plain(json.dumps)
effect(json.dumps, returns=str)
for _function in PURE:
    if _function not in MODELS:
        plain(_function)
