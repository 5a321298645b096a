// Functions of `capture._C` on dicts and sets whose keys have a hash that is known, and so is not asked for again.
#pragma once
#include "python_ref.h"

namespace capture {

void init_known_hash(PyObject* module);

}  // namespace capture
