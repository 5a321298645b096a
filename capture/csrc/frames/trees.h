// The guard trees of one compiled function.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "frames/code_cache.h"

namespace capture {

// By code object: normally one, more when `__code__` was assigned.
class Trees final : public TreeOwner {
 public:
  Trees() = default;
  Trees(const Trees&) = delete;
  Trees& operator=(const Trees&) = delete;
  ~Trees() { clear(); }

  void add(PyCodeObject* code, PyObject* tree) {
    code_cache_add(code, this, tree);
    rows_.push_back({code, Ref::borrow(tree)});
  }
  void forget_tree(PyObject* tree) noexcept override {
    auto row = std::find_if(rows_.begin(), rows_.end(), [&](const Row& r) { return r.tree.get() == tree; });
    if (row == rows_.end()) return;
    Ref keep = std::move(row->tree);  // released last: its death may run code
    rows_.erase(row);
  }
  void clear() noexcept {
    std::vector<Row> rows = std::move(rows_);
    rows_.clear();
    for (const Row& row : rows) code_cache_remove(row.code, this);
  }
  int traverse(visitproc visit, void* arg) const {
    for (const Row& row : rows_) Py_VISIT(row.tree.get());
    return 0;
  }

 private:
  struct Row {
    PyCodeObject* code;  // borrowed: the code object tells us when it dies
    Ref tree;
  };
  std::vector<Row> rows_;
};

}  // namespace capture
