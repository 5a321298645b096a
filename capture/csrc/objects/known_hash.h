// Functions of `capture._C` on dicts and sets that take the hash of a key as given, so that no `__hash__` runs.
#pragma once
#include "python_ref.h"

namespace capture {

// `container[key] = value` of a dict, or `container.add(key)` of a set, of a key with this hash that is there or equals none. Compares
// nothing. -1 with an exception.
int put_entry(PyObject* container, PyObject* key, PyObject* value, Py_hash_t hash);

void init_known_hash(PyObject* module);

}  // namespace capture
