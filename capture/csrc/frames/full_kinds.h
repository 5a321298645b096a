// The kinds of calls (`call_kind`) that get no more entries in one compiled function, since they have as many as they may have.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "guards/guard_tree.h"

namespace capture {

// What was found of a kind is forgotten as soon as entries of any function come or go.
class FullKinds {
 public:
  void add(uint64_t kind) {
    if (since_ != guard_tree_changes()) kinds_.clear();
    since_ = guard_tree_changes();
    kinds_.push_back(kind);
  }
  bool empty() const { return kinds_.empty() || since_ != guard_tree_changes(); }
  bool has(uint64_t kind) const { return std::find(kinds_.begin(), kinds_.end(), kind) != kinds_.end(); }

 private:
  std::vector<uint64_t> kinds_;
  uint64_t since_ = 0;
};

}  // namespace capture
