// Why a check failed, in words.
#pragma once

#include <string>

namespace capture {

// "expected `expected`, got `found`"; `subject` names what differs where no path of the program does.
struct Difference {
  std::string expected, found, subject;
};

}  // namespace capture
