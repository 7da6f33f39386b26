// The compiled forms of one function: which of them fits a call, and when a call is captured instead.
//
// Everything here belongs to the GIL. A program gives it up while its tensors are computed, so a variant is kept alive
// by a reference of its own while it runs, and nothing is read from the forms afterwards.
#pragma once
#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "frame/capture.h"

namespace magneto::frame {

// The variants that admit the same calls; which of them fits depends on what they read.
struct Group {
  std::shared_ptr<const guard::Arguments> arguments;
  guard::Trie trie;
};

// What somebody wishes for all captures of a function. The callables may be null.
struct Wishes {
  bool whole = false;  // never in several parts: a call that cannot be captured so is an error
  enum class Dynamic : uint8_t {
    Never,
    WhenChanged,
    Always
  } dynamic = Dynamic::WhenChanged;  // which sizes and numbers among the arguments stay open
  py::Ref backend;       // (magneto.Graph) -> callable or None: what runs in place of the recorded operators
  py::Ref guard_export;  // (guards: list[str]) -> None: told what a new form is guarded by
  py::Ref guard_fail;    // (reason: str) -> None: told which guard failed when no form fits

  int traverse(visitproc visit, void* arg) const;
};
// None stands for null.
std::shared_ptr<const Wishes> make_wishes(bool whole, PyObject* backend, PyObject* guard_export, PyObject* guard_fail,
                                          PyObject* dynamic);

struct Forms {
  std::string name;
  std::shared_ptr<const Wishes> wishes = std::make_shared<Wishes>();
  std::vector<Group> groups;                   // most recently used first
  std::vector<guard::Held<Variant>> variants;  // newest first
  bool cannot_open = false;                    // a capture that left sizes or numbers open has failed
  std::vector<std::string> by_content;         // names of arguments that are another object in each call
  bool needs_identity = false;                 // a capture that did not rely on which objects these are has failed
  std::vector<py::Ref> open_keys;  // names of attributes and the like that hold another number or tensor in each call
  bool open_answers = false;       // numbers and sizes that the call asks for are others in each call
  int answers_opened_in_vain = 0;  // captures that were to leave these open, but could not
  std::vector<trace::Detour> detours;  // around what captures did not understand
  std::vector<guard::Opening> pinned;  // sizes and numbers that the function relies on, so that they are not opened
  std::map<std::string, int64_t> failures, misses, breaks;
  std::string last_reason, last_where;  // of a failure
  int64_t captures = 0;
  int64_t failures_in_a_row = 0;
  bool has_told = false;    // that it is captured no more
  int64_t late_misses = 0;  // since recapture_limit was reached
  int64_t late_hits = 0;    // of the variants, when they were last counted

  // Nothing is compiled, and as the settings stand nothing will be.
  bool stays_eager() const { return variants.empty() && has_given_up(); }
  bool has_given_up() const;
  void drop_variants();
  int traverse(visitproc visit, void* arg) const;  // without the wishes, which others may share
};

// The values of the argument nodes and the tensors among them, on the stack for ordinary calls.
class Matched {
 public:
  bool match(const guard::Arguments& arguments, const guard::CallArguments& call) {
    size_t need = arguments.node_count() + arguments.tensor_count();
    if (need > inline_.size()) heap_.resize(need);
    PyObject** base = need > inline_.size() ? heap_.data() : inline_.data();
    values = base;
    tensors = base + arguments.node_count();
    return arguments.match(call, values, tensors);
  }
  PyObject** values = nullptr;
  PyObject** tensors = nullptr;

 private:
  std::array<PyObject*, 64> inline_;
  std::vector<PyObject*> heap_;
};

// The variant that fits and is not among those that were `tried`, or null; borrowed.
Variant* find_variant(Forms& forms, const guard::CallArguments& call, Matched& matched,
                      const std::vector<const guard::Entry*>& tried = {});

// Makes the call: by the program of a variant that fits, or else for real, watched if that may still pay. Null: error
// set. The call may drop the function: whoever makes it keeps the forms alive.
PyObject* call_form(Forms& forms, RealCall& call);

// What belongs to the arguments of a variant.
Group& group_of(Forms& forms, const guard::Arguments& arguments);
size_t op_count(const std::vector<runtime::Segment*>& segments);
// The guards of a variant as a list of texts; null: error set.
py::Ref describe_guards(Forms& forms, const Variant& variant);

}  // namespace magneto::frame
