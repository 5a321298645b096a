"""The reference graph: every object the trace met, what was required of the entry state, and what was changed."""
from __future__ import annotations

import _thread
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Any

from capture._C import is_a
from capture.errors import Break
from capture.refgraph.effects import CallEffect, Position, Replayed, decision, is_foreign
from capture.refgraph.entry_state import BOUND_IN_C, EntryState
from capture.refgraph.identical import Classes, contents_in_c
from capture.refgraph.keys import (
    KeyTable,
    asks_keys,
    hash_kept,
    is_python_key,
    note_keys,
    path_of_entry,
    put,
    require_keys,
    require_reference,
    table,
    take_out,
)
from capture.refgraph.lookup import descriptor_of, has, instance_dict, is_hidden, parts
from capture.refgraph.node import (
    ABSENT,
    SCALARS,
    Build,
    Const,
    DictState,
    ListStart,
    ListState,
    RefNode,
    SetState,
    Shadow,
    WrittenDict,
)
from capture.refgraph.publishing import shown_for_the_first_time
from capture.refgraph.result_types import type_of
from capture.refgraph.set_orders import filled, filling, state_at_entry
from capture.refgraph.source import Attr, Computed, InstanceDict, Item, Literal, Source
from capture.refgraph.state_queries import item_at, keys_of, of_thread, under_reference

COMPOSITES = Classes((tuple, frozenset, types.MethodType))


class RefGraph(EntryState):
    """The trace's knowledge of the heap. One per capture; read-only once sealed."""

    # -- containers --------------------------------------------------------------------------------------------------

    def list_state(self, node: RefNode) -> ListState:
        """The items of a list or deque. Must be called before the first change to an outside one. Raises Break for one of which
        no item is read any more."""
        start = node.state
        if start is None or isinstance(start, ListStart):
            self.touch(node)
            if node.source is None:                 # a call returned it: it holds something else on each hit
                raise decision("what is done with a list", [node])
            require_readable(start)
            source, items = node.source, contents_in_c(node.real)
            known, added = ({}, []) if start is None else (start.known, start.added)
            del items[len(items) if start is None else start.length:]
            self.hold(source, "LENGTH", len(items))
            shadows = [known[i] if i in known else self.external(item, Item(source, i)) for i, item in enumerate(items)]
            node.state = ListState([*shadows, *added])
        return node.state

    def list_start(self, node: RefNode) -> ListStart | None:
        """The state of an outside list or deque whose length has not mattered yet, or None."""
        if node.state is None and node.source is not None and is_a(node.real, (list, deque)):
            self.touch(node)
            node.state = ListStart(list.__len__(node.real) if is_a(node.real, list) else deque.__len__(node.real))
        return node.state if isinstance(node.state, ListStart) else None

    def list_item(self, node: RefNode, index: int) -> Shadow | None:
        """The item at `index` of a list whose length does not matter for that; None where it does. Some were appended."""
        start = self.list_start(node)
        require_readable(start)
        if start is None or index < 0 and -index <= len(start.added):
            return None if start is None else start.added[index]
        at = index if index >= 0 else index + len(start.added)
        if not -start.length <= at < start.length:
            return None
        if at not in start.known:
            path: Source = Item(node.source, at) if at >= 0 else Computed(item_at, (node.source, Literal(at)))
            start.known[at] = self.external(list.__getitem__(node.real, index), path)
            self.require(path, "TYPE", type(list.__getitem__(node.real, index)))        # so that it is there
        return start.known[at]

    def dict_state(self, node: RefNode) -> DictState:
        """What is known of a dict. Raises Break for one of which nothing is known any more."""
        if node.state is None:
            self.touch(node)
            node.state = DictState({}, complete=False)
        if isinstance(node.state, WrittenDict):
            raise Break("opaque-call", "a dict was read in which something was stored under a key that changes from call to call")
        return node.state

    def dict_get(self, node: RefNode, key: Any) -> Shadow:
        """The value under `key` of a dict, or ABSENT. The key must be a constant; call before a change to that key."""
        state = self.dict_state(node)
        if key not in state.items:
            if state.complete:
                return ABSENT
            if node.source is None:
                return self._returned_attribute(node, key)
            if is_a(key, weakref.ref):
                found = require_reference(self, node, key)
                path = None if found is None else Computed(under_reference, found)
                state.items[key] = ABSENT if path is None else self.external(dict.__getitem__(node.real, key), path)
                return state.items[key]
            real = node.real
            if dict.__contains__(real, key):
                if node in self.volatile and key not in self.volatile[node]:
                    raise Break("untracked-mutation", f"{key!r:.80} was read, which a call that is repeated may have changed")
                state.items[key] = self.external(dict.__getitem__(real, key), Item(node.source, key))
                self.require(node.source, "PRESENT", key)
            else:
                state.items[key] = ABSENT
                if not self.is_new_number(key):
                    self.require(node.source, "ABSENT", key)
        return state.items[key]

    def _returned_attribute(self, node: RefNode, name: Any) -> Shadow:
        """An attribute, now, of an object that a call effect returned; `node` is that of its `__dict__`."""
        if is_foreign(node) and isinstance(node.origin, RefNode) and type(node.real.get(name)) in SCALARS and name in node.real:
            call = self.call_effect(Const(object.__getattribute__), (node.origin, Const(name)))
            return Replayed(call, (), None, node.real[name])
        raise Break("untracked-mutation", f"key {name!r:.80} of a new {node.cls.__name__} is not known")

    def dict_keys(self, node: RefNode) -> list[Any]:
        """The keys of a dict now, in order. An outside dict's keys at entry are guarded."""
        state = self.dict_state(node)
        if node in self.volatile:
            raise Break("untracked-mutation", "a dict was looked through, which a call that is repeated may have changed")
        if not state.complete:
            real = node.real
            require_unasking(real)
            keys = tuple(dict_type(node).__iter__(real)) if state.entry_keys is None else state.entry_keys
            require_keys(self, node.source, keys)
            compared = any(map(is_python_key, keys_of(real)))
            known = KeyTable(state.items) if compared else state.items
            state.items = table(keys_of(real), (
                (key, known[key] if key in known else self.external(value, path_of_entry(node.source, i, key, compared)))
                for i, (key, value) in enumerate(dict_type(node).items(real))))
            note_keys(self, node.source, keys)
            state.complete = True
        return [key for key, value in state.items.items() if value is not ABSENT]

    def dict_prepare(self, node: RefNode) -> None:
        """Before a change to a dict's keys by native code: notes the keys at entry."""
        if isinstance(node.state, WrittenDict):
            return
        state = self.dict_state(node)
        if node.source is not None and not state.complete and state.entry_keys is None:
            require_unasking(node.real)
            state.entry_keys = tuple(dict_type(node).__iter__(node.real))

    def dict_set(self, node: RefNode, key: Any, value: Shadow, changing: Shadow | None = None, number: int | None = None) -> None:
        """`dict.__setitem__`, after the real one. changing: the shadow of a key that differs on each call. number: the hash of one
        that Python code hashes or compares with others."""
        where = changing or self.key_shadow(key)
        if changing is not None and not isinstance(node.state, WrittenDict):
            if isinstance(self.dict_state(node).items, KeyTable):
                raise Break("opaque-call", "a key that changes from call to call was stored beside one that Python code hashes")
            node.state = WrittenDict(self.dict_state(node))
        if isinstance(node.state, WrittenDict):
            node.state.writes.append((where, key, value))
        elif number is not None or is_python_key(key):
            state = self.dict_state(node)
            state.items = state.items if isinstance(state.items, KeyTable) else KeyTable(state.items)
            state.items[key] = value
            return self.effect(put, node, self.key_shadow(key), value, Const(number or hash_kept(node.real, key)))
        else:
            self.dict_state(node).items[key] = value
        self.effect(dict_type(node).__setitem__, node, where, value)

    def dict_delete(self, node: RefNode, key: Any, number: int | None = None) -> None:
        """`dict.__delitem__`, after the real one. The key must be known to have been present. number: as for `dict_set`."""
        self.dict_forget(node, key)
        if number is not None:
            self.effect(take_out, node, self.key_shadow(key), Const(number))
        else:
            self.effect(dict_type(node).__delitem__, node, self.key_shadow(key))

    def dict_forget(self, node: RefNode, key: Any) -> None:
        """Notes that an effect has taken a key out."""
        state = self.dict_state(node)
        if state.complete:
            state.items.pop(key, None)
        else:
            state.items[key] = ABSENT

    def key_shadow(self, key: Any) -> Shadow:
        """The shadow of a key that is known as a real object."""
        known = self.find(key) or self.noted_composite(key) or self.number(key)
        return known or (self.composed(key, self.key_shadow) if is_composite(key) else Const(key))

    def composed(self, real: Any, part_of: Callable[[Any], Shadow]) -> Shadow:
        """The shadow of a new composite: the shadows of its parts are what `part_of` returns."""
        cls = type(real)
        if cls is frozenset:
            members = table(real, ((member, part_of(member)) for member in real))
            constant = all(isinstance(shadow, Const) for shadow in members.values())
            return Const(real) if constant else filled(frozenset, filling(real, members))
        return self.build(cls, map(part_of, parts(real)))

    def build(self, cls: type, items: Iterable[Shadow]) -> Build:
        """The shadow of a new composite of a class, perhaps one that the trace has made."""
        return Build(cls, tuple(items), None, self.find(cls) if self.is_made(cls) else None)

    def set_state(self, node: RefNode) -> SetState:
        """The members of a set, guarded as a whole. Must be called before the first change to an outside one."""
        if node.state is None:
            self.touch(node)
            node.state = state_at_entry(self, node)
        return node.state

    def attributes(self, node: RefNode) -> RefNode | None:
        """The node of an instance's `__dict__`, or None when it has none."""
        if node.attrs is None:
            real = node.real
            namespace = instance_dict(real)
            if namespace is None:
                return None
            if node.source is not None:
                source: Any = self.touch(node).source
                path = Computed(of_thread, (source,)) if issubclass(node.cls, _thread._local) else InstanceDict(source)
                node.attrs = self.external(namespace, path)  # type: ignore[assignment]
            else:
                node.attrs = self.find(namespace) or self.create(
                    namespace, DictState({}, complete=not namespace), origin=node)
        return node.attrs

    def slot(self, node: RefNode, name: str, real: Any) -> Shadow:
        """A C-level attribute of `node` whose value is `real` now."""
        if name not in node.slots:
            if is_foreign(node) and type(real) in SCALARS:
                return Replayed(self.call_effect(Const(object.__getattribute__), (node, Const(name))), ())
            if node.source is None:
                raise Break("opaque-call", f"attribute {name!r} of a new {node.cls.__name__} is not known")
            self.touch(node)
            source = Attr(node.source, name)
            self.require(source, "TYPE", type(real))            # so that it is there: a slot or cell may be empty
            node.slots[name] = self.external(real, source)
        return node.slots[name]

    def field(self, node: RefNode, name: str, real: Any) -> Shadow:
        """What C code finds in a field of an object, which is `real` now. Raises Break where the attribute is another one."""
        if is_hidden(node.cls, name):
            raise Break("opaque-call", f"C code reads {name!r} of a {node.cls.__qualname__}, whose class has one of its own")
        return self.slot(node, name, real)

    def set_slot(self, node: RefNode, name: str, value: Shadow) -> None:
        """Assignment to a C-level attribute, after the real one."""
        node.slots[name] = value
        self.effect(object.__setattr__, node, Const(name), value)

    # -- effects -----------------------------------------------------------------------------------------------------

    def call_effect(self, function: Shadow, args: tuple[Shadow, ...], names: tuple[str, ...] = (), shown: tuple[Shadow, ...] = (),
                    early: bool = False, positions: tuple[Position, ...] = (), stream: RefNode | None = None,
                    once: bool = False) -> CallEffect:
        """A call that acts on the world, already done for real."""
        published = shown_for_the_first_time(self, shown)
        effect = CallEffect(function, args, names, shown, stream, self._next(), positions, once)
        self.called(effect, early, published)
        return effect

    def type_of(self, shadow: Shadow) -> type | None:
        """The type that a scalar has on every call, or None where it may have another. What it rests on is guarded."""
        given: dict[Source, type] = {}
        cls = type_of(shadow, given)
        if cls is not None:
            for source, expected in given.items():
                self.require(source, "TYPE", expected)
        return cls


def is_composite(real: Any) -> bool:
    """Whether an object is immutable, and nothing but its parts: a tuple, a frozenset, a bound method."""
    cls = type(real)
    if cls in COMPOSITES or is_a(real, tuple) and has(cls, "_fields"):
        return True
    return is_a(real, BOUND_IN_C) and descriptor_of(real) is not None


def require_readable(start: ListStart | None) -> None:
    """Raises Break if an item of a list was replaced at an index that changes from call to call: its items are not known any
    more."""
    if start is not None and start.writes:
        raise Break("opaque-call", "a list was read in which something was stored at an index that changes from call to call")


def require_unasking(mapping: Any) -> None:
    """Raises Break if the keys of a dict cannot be read in their order without running code of theirs."""
    if asks_keys(mapping):
        raise Break("opaque-call", "an OrderedDict was looked through whose keys Python code hashes")


def dict_type(node: RefNode) -> Any:
    """The builtin type whose methods change a dict: an OrderedDict keeps an order of its own."""
    return OrderedDict if issubclass(node.cls, OrderedDict) else dict
