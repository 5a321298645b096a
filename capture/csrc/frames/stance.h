// Whether compiled code may run: not while `torch.compiler.set_stance` forbids it, or a debugger or a coverage tool traces lines.
#pragma once

#include "python_ref.h"

namespace capture {

// Whether the stance is `"force_eager"`: nothing compiled runs.
bool eager_is_forced();

// Whether the stance is the default one, or none was ever set.
bool stance_is_default();

// Whether a debugger or a tool that measures coverage is at work, which shall see the program's own lines, and not those of mock
// functions, unless these are written to files to be stepped through.
bool program_is_traced();

// step_through_mocks(flag): whether mock functions are such files from now on.
PyObject* step_through_mocks(PyObject*, PyObject* flag);

void init_stance();

}  // namespace capture
