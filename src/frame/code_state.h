// What is kept with a code object: its cache entries, its frame_state dict, and whether it is skipped.
#pragma once
#include <vector>

#include "cpython/cpython.h"
#include "cpython/ref.h"

namespace magneto::frame {

struct ExtraState;

// `_CacheEntry`: new code for a code object, and the check that says whether a call may use it.
struct CacheEntry {
  PyObject_HEAD
  PyObject* check_fn;  // owned, as are the others
  PyObject* code;      // null once the entry is invalid
  PyObject* compile_id;
  PyObject* original;  // a weak reference to the code that it stands in for
  PyObject* trace_annotation;
  const char* region;  // the text of the annotation
  PyObject* backend;
  mg_code_map* map;   // from the original code to `code`
  ExtraState* state;  // borrowed; null once the entry is in no list
};

// `_ExtraState`: everything about one code object. Once made it stays until the code object dies.
struct ExtraState {
  PyObject_HEAD
  bool skip;
  PyObject* frame_state;             // owned; null: none yet
  std::vector<CacheEntry*> entries;  // owned; the most recently used first
};

// The state of a code object: null if it has none; `need` makes one, and is null with an error set.
ExtraState* find_code_state(PyCodeObject* code);
ExtraState* need_code_state(PyCodeObject* code);

// Makes an entry of what a callback returned and puts it first. A null result: error set.
py::Ref add_entry(PyCodeObject* original, PyObject* guarded_code, PyObject* backend);

// The variables of the frame whose guards are checked, made when first asked for.
class FrameLocals {
 public:
  explicit FrameLocals(const mg_fresh_frame& frame) : frame_(frame) {}
  // Borrowed; null: error set.
  PyObject* get();

 private:
  const mg_fresh_frame& frame_;
  py::Ref locals_;
};

enum class Lookup { Hit, Miss, Error };
// The first entry of this backend (null: of any) whose check holds, which then becomes the first of the list.
Lookup look_up(ExtraState* state, PyObject* backend, const mg_fresh_frame& frame, py::Ref* entry);

// The functions of magneto.eval_frame: null or false with an error set.
PyObject* cache_entry_list(PyObject* code);
bool reset_code(PyObject* code);
bool skip_code(PyObject* code);

bool make_code_state_types(const char* module_name);

}  // namespace magneto::frame
