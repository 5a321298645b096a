// Which kind of call a call is: what is static in it. Calls of one kind have a limit of entries of their own.
#pragma once

#include <cstdint>

#include "guards/modes.h"
#include "python_ref.h"

namespace capture {

// A number for the modes, and for the types and the structure of the arguments: of tensors also type of numbers, device, rank and whether
// they require gradients, of modules whether they are in training, of booleans and None the value, of tuples and dicts what they hold.
// Two kinds may have the same number, if rarely; then they share a limit. Runs no Python code.
uint64_t call_kind(PyObject* const* arguments, size_t count, const Modes& modes);

// The same at a glance, to be asked of each call: of the modes those alone that most often change, of what containers hold nothing.
uint64_t quick_kind(PyObject* const* arguments, size_t count);

void init_call_kind(PyObject* module);

}  // namespace capture
