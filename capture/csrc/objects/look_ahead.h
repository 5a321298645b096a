// What C iterators will yield, found without moving them: `_C.has_item`, `_C.peek`, `_C.skip`, `_C.can_look_ahead`.
#pragma once

#include "python_ref.h"

namespace capture {

void init_look_ahead(PyObject* module);

}  // namespace capture
