// Arguments of operators that are the same in every call.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <string>

#include "executor/value.h"

namespace capture::executor {

// A literal, as an operator takes it whose schema declares the argument to be of `type`: a number also where that is Tensor. Throws
// ValueError for what cannot be of that type.
c10::IValue literal(const Value& value, const c10::TypePtr& type);

// A dtype, layout or memory format, by its name in Python (`float32`, `strided`, `channels_last`). Throws ValueError for other names.
c10::IValue named_by_torch(const std::string& name);

// A dtype by its name. Throws ValueError for other names.
at::ScalarType dtype_named(const std::string& name);

}  // namespace capture::executor
