// The kinds of guards, a row each: what those of capture/refgraph/requirements.py mean, with explanations.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "guards/difference.h"
#include "guards/modes.h"
#include "guards/steps.h"
#include "python_ref.h"

namespace capture {

// A kind of guard is a row of kCheckRows; this is its position there.
using Kind = uint8_t;

// What a kind expects: as `Form` in Python, which says more of each.
enum class Form : uint8_t {
  Object, Key, Value, Plain, Properties,
  Path, Other, Sides, Places, Modes,  // of several objects, or none: a relation, evaluated with the whole tree
};
constexpr const char* kFormNames[] = {"OBJECT", "KEY", "VALUE", "PLAIN", "PROPERTIES", "PATH", "OTHER", "SIDES", "PLACES", "MODES"};
constexpr bool is_relation(Form form) { return form >= Form::Path; }

// What tells that the answer of a check may have changed since the last walk.
enum class Watched : uint8_t {
  // What a watch of the same node, or of its base, covers.
  Identity,  // of a pinned value, which does not change
  Keys,      // the version of the dict
  Order,     // … which does not tell of the order of an OrderedDict
  Class,     // the version of the class
  Tensor,    // a watch of tensors
  Nothing,   // relations: evaluated each time
  // A watch of its own.
  Type, Truth, Length, Value, Members,
};
constexpr bool has_watch(Watched watched) { return watched >= Watched::Type; }

// What x is compared with. `expected` is borrowed; a weak reference was replaced by what it refers to for forms Object and Key, and
// stands for it inside of tuples.
struct Check {
  Kind kind;
  Watched watched;
  uint32_t node;
  uint64_t entries;    // bit mask of the entries that make this check
  PyObject* expected;
  KeyHash hash;        // of form Key
  Py_ssize_t number;   // TRUTH: 0 or 1; LENGTH
  const void* native;  // TENSOR: its TensorProperties
};

struct CheckRow {
  const char* name;                            // as in capture/refgraph/requirements.py
  Form form;
  Watched watched;
  void (*prepare)(Check&);                     // fills what is derived from `expected`; nullptr: nothing is
  bool (*test)(const Check&, PyObject* x);     // runs no Python code
  std::string (*expectation)(const Check&);    // "type(x) is Linear"
  std::string (*finding)(const Check&, PyObject* x);
};

extern const CheckRow kCheckRows[];
extern const size_t kCheckKinds;

inline const CheckRow& row_of(Kind kind) { return kCheckRows[kind]; }
inline const CheckRow& row_of(const Check& check) { return row_of(check.kind); }

// A check against `expected`, as the entry holds it; hash: of a key. Throws PythonError for an expectation that the kind cannot use.
Check make_check(Kind kind, uint32_t node, uint64_t entries, PyObject* expected, const KeyHash& hash);

// Whether two checks of one kind ask the same.
bool expects_the_same(const Check& left, const Check& right);

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
