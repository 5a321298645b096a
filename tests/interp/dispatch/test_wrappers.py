"""Callables that only wrap another one: what a program calls is what they wrap, whatever attributes they were given."""
from __future__ import annotations

import functools
import reprlib

import torch
import torch._dynamo

from tests.programs import Programs

X = torch.tensor([1.0, -2.0, 3.0])
INTEGERS = torch.tensor([2, 3, 4])
programs = Programs()


@programs.add(X, INTEGERS)
def references_that_promote_types(x, y):
    refs = torch._refs
    return refs.remainder(x, y), refs.fmod(y, x.double()), refs.eq(x, y), refs.remainder(y, 3)


def named_as(x):
    return x - 100


hidden = functools.wraps(named_as)(torch._disable_dynamo(lambda x: x * 2))


@programs.add(X)
def hidden_from_dynamo_under_the_name_of_another(x):
    return hidden(x), hidden.__wrapped__(x), hidden.__name__


library = torch._dynamo.disable(torch.nn.functional.relu)


@functools.wraps(library)
def like_the_library(x):
    return library(x) - 5


@programs.add(X)
def attributes_of_a_function_that_dynamo_wraps(x):
    return library(x), like_the_library(x)


class Named:
    item = None

    @functools.wraps(named_as)
    @reprlib.recursive_repr()
    def __repr__(self):
        return f"<{self.item!r}>"


@programs.add(X)
def representation_under_the_name_of_another(x):
    one = Named()
    one.item = [one]
    return x * 2, repr(one)


test_wrappers = programs.test()
