// Nodes of autograd for each of the results of one node.
#pragma once

#include "python_ref.h"

namespace capture {

void init_own_nodes(PyObject* module);

}  // namespace capture
