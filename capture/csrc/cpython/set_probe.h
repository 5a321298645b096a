// In which slots CPython looks for a hash in the table of a set, in order (set_lookkey of its Objects/setobject.c).
#pragma once
#include <Python.h>

#include <cstddef>

namespace capture {

// Calls `visit(slot)` for each, as long as that returns true. mask: the size of the table, less 1.
template <typename Visit>
void probe_set(size_t mask, Py_hash_t hash, Visit visit) {
  constexpr size_t linear_probes = 9, perturb_shift = 5;
  size_t perturb = hash, at = perturb & mask;
  while (true) {
    for (size_t slot = at; slot <= at + (at + linear_probes <= mask ? linear_probes : 0); ++slot)
      if (!visit(slot)) return;
    perturb >>= perturb_shift;
    at = (at * 5 + 1 + perturb) & mask;
  }
}

}  // namespace capture
