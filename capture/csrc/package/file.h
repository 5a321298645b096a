// The file that `capture/packages.py` writes, mapped into memory.
#pragma once

#include <cstddef>
#include <string>

#include "executor/value.h"

namespace capture::package {

class File {
 public:
  // Throws Error for a file that cannot be read, or is no package.
  explicit File(const std::string& path);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const executor::Value& description() const { return description_; }

  // The bytes of a part, at (offset, length) of the data behind the description. Throws ValueError where there are none.
  char* data(const executor::Value& offset, const executor::Value& length) const;

 private:
  char* begin_ = nullptr;
  size_t length_ = 0;
  size_t data_ = 0;  // where that begins
  executor::Value description_;
};

}  // namespace capture::package
