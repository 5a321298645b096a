// Checks on one object: what the kinds of capture/guards/guard.py mean, each with its explanation.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "difference.h"
#include "modes.h"
#include "python_ref.h"

namespace capture {

// In the order of kCheckRows.
enum class Kind : uint8_t {
  Type, Id, Value, Truth, Length, Keys, Present, Absent, NoAttr, Mro, Content, Member, NotMember, Tensor,
  Alias, Distinct, Storage, Modes,  // of several objects, or none: evaluated with the whole tree
};

// What x is compared with. `expected` is borrowed; weak references in it were replaced by what they refer to for
// Type and Id, and stand for it inside of tuples.
struct Check {
  Kind kind;
  uint32_t node;
  uint64_t entries;    // bit mask of the entries that make this check
  PyObject* expected;
  Py_hash_t hash;      // Present, Absent: of the key
  Py_ssize_t number;   // Truth: 0 or 1; Length
  const void* native;  // Tensor: its TensorProperties
};

struct CheckRow {
  const char* name;                            // of the Kind in Python
  bool (*test)(const Check&, PyObject* x);     // runs no Python code
  std::string (*expectation)(const Check&);    // "type(x) is Linear"
  std::string (*finding)(const Check&, PyObject* x);
};

extern const CheckRow kCheckRows[];
constexpr size_t kCheckKinds = 18;

inline const CheckRow& row_of(const Check& check) { return kCheckRows[static_cast<size_t>(check.kind)]; }

// Fills the fields that `kind` derives from `expected`. Throws PythonError for an expectation it cannot use.
void prepare(Check& check);

// Why x does not pass; nothing when it does.
std::optional<Difference> explain_failure(const Check& check, PyObject* x);

// Exact type and value, floats bit for bit, containers recursively; other objects by identity. A weak reference in
// `expected` stands for its referent.
bool same(PyObject* x, PyObject* expected);

// Whether no mutation of an object equal to `expected` in the sense of `same` can change that.
bool is_frozen(PyObject* expected);

// The length of an object of a type that LENGTH and TRUTH know, by the builtin type's own rule; -1 for others.
Py_ssize_t builtin_length(PyObject* x);

// The field that holds that length, for types where it can change; nullptr for others.
const void* length_field(PyObject* x);

// A short text of any object which runs no code of the user.
std::string brief(PyObject* x);

}  // namespace capture
