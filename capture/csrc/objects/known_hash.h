// Functions of `capture._C` on dicts and sets that take the hash of a key as given, so that no `__hash__` runs.
#pragma once
#include "python_ref.h"

namespace capture {

void init_known_hash(PyObject* module);

}  // namespace capture
