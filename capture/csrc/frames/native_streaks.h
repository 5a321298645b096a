// Streaks of calls of one compiled function that ran natively: when they are long, most further calls do so unasked.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "guards/guard_tree.h"

namespace capture {

// Kinds of calls are told apart by `quick_kind`. After a streak of kPatience calls of a kind that ran natively, the guards are
// asked about every second one, then about every fourth, and so on: once entries fit calls of that kind again, this is found out
// after kLongest calls at the latest. All streaks are forgotten as soon as entries of any function come or go.
class NativeStreaks {
 public:
  bool empty() const { return rows_.empty(); }

  // Whether a call of this kind runs natively without a look at it; counts it as one of those before it.
  bool skips(uint64_t kind) {
    forget_old();
    auto row = find(kind);
    if (row == rows_.end() || row->left == 0) return false;
    row->left--;
    ++*row->counter;
    return true;
  }

  // For how many calls one that is looked at now stands: itself, and those that were skipped before it.
  uint64_t weight(uint64_t kind) {
    forget_old();
    auto row = find(kind);
    return row == rows_.end() ? 1 : row->period;
  }

  // A call of this kind was looked at, and runs natively. `counter` counts such calls; it lives as long as no entries come or go.
  void note_native(uint64_t kind, unsigned long long* counter) {
    forget_old();
    auto row = find(kind);
    if (row == rows_.end()) {
      if (rows_.size() == kMostKinds) rows_.erase(rows_.begin());
      row = rows_.insert(rows_.end(), {kind, counter});
    }
    row->counter = counter;
    if (++row->looks >= kPatience) row->period = std::min(row->period * 2, kLongest);
    row->left = row->period - 1;
  }

  // A call of this kind was a hit, or may be captured.
  void end(uint64_t kind) {
    std::erase_if(rows_, [&](const Row& row) { return row.kind == kind; });
  }

 private:
  static constexpr uint64_t kPatience = 64;
  static constexpr uint64_t kLongest = 64;
  static constexpr size_t kMostKinds = 8;

  struct Row {
    uint64_t kind;
    unsigned long long* counter;
    uint64_t looks = 0;   // calls that were looked at, one after the other
    uint64_t period = 1;  // of so many calls one is looked at
    uint64_t left = 0;    // that are to be skipped now
  };

  std::vector<Row>::iterator find(uint64_t kind) {
    return std::find_if(rows_.begin(), rows_.end(), [&](const Row& row) { return row.kind == kind; });
  }
  void forget_old() {
    if (since_ == guard_tree_changes()) return;
    rows_.clear();
    since_ = guard_tree_changes();
  }

  std::vector<Row> rows_;
  uint64_t since_ = 0;
};

}  // namespace capture
