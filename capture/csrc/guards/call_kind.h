// The kind of a call: what of it is static. The number of entries is limited for each kind by itself.
#pragma once

#include <cstdint>

#include "guards/modes.h"
#include "python_ref.h"

namespace capture {

// A number for the modes, and for the types and the structure of the arguments: of tensors also dtype, device, rank and whether
// they require gradients, of modules whether they are in training, of booleans and None the value, of tuples and dicts what they
// hold. Two kinds may have the same number, if rarely; then they share a limit. Runs no Python code.
uint64_t call_kind(PyObject* const* arguments, size_t count, const Modes& modes);

// A cheaper and coarser number, for which there is time in each call: of the modes only those that change most often, and nothing
// of what containers hold.
uint64_t quick_kind(PyObject* const* arguments, size_t count);

void init_call_kind(PyObject* module);

}  // namespace capture
