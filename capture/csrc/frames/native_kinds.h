// The kinds of calls (`call_kind`) of one compiled function that run natively where no entry fits, without a question to Python.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "guards/guard_tree.h"

namespace capture {

// Whether a call that no entry fits has Python decide about it: now, not before some more calls, or never.
enum class Asks { Python, Later, Never };

// What was found of a kind is forgotten as soon as entries of any function come or go.
class NativeKinds {
 public:
  static constexpr uint64_t kAll = std::numeric_limits<uint64_t>::max();

  // The next `calls` of a kind are to run natively, or all.
  void add(uint64_t kind, uint64_t calls) {
    if (since_ != guard_tree_changes()) rows_.clear();
    since_ = guard_tree_changes();
    std::erase_if(rows_, [&](const Row& row) { return row.kind == kind; });
    if (calls > 0) rows_.push_back({kind, calls});
  }
  bool empty() const { return rows_.empty() || since_ != guard_tree_changes(); }
  // What a call of this kind does, now that no entry fits it. Counts it as `calls` calls.
  Asks count(uint64_t kind, uint64_t calls) {
    auto row = std::find_if(rows_.begin(), rows_.end(), [&](const Row& r) { return r.kind == kind; });
    if (row == rows_.end()) return Asks::Python;
    if (row->calls == kAll) return Asks::Never;
    row->calls -= std::min(row->calls, calls);
    if (row->calls == 0) rows_.erase(row);
    return Asks::Later;
  }

 private:
  struct Row {
    uint64_t kind;
    uint64_t calls;
  };
  std::vector<Row> rows_;
  uint64_t since_ = 0;
};

}  // namespace capture
