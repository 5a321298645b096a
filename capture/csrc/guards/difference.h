// Why a check failed, in words.
#pragma once

#include <string>

namespace capture {

// "expected `expected`, got `found`"; `subject` names what differs where no path of the program does, `aspect` which property of a
// tensor.
struct Difference {
  std::string expected, found, subject, aspect;
};

}  // namespace capture
