// Calls of functions behind functools.lru_cache: what is found there is found there again, as long as its entry stays.
//
// That holds for a result that this very call has put there, too. So nobody has to watch how it was made, once and for
// all: what that did to the world is there before the next call, and what it changed under the watch is noticed at the
// end of the stretch.
#include <algorithm>

#include "cpython/cpython.h"
#include "trace/call_table.h"
#include "trace/known_types.h"
#include "trace/watch.h"

namespace magneto::trace {

namespace {

using Call = Watch::Call;

// Without asking either of them.
bool is_same(PyObject* part, PyObject* arg) {
  if (guard::same_atom(part, arg)) return true;
  if (!PyTuple_CheckExact(part) || !PyTuple_CheckExact(arg) || PyTuple_GET_SIZE(part) != PyTuple_GET_SIZE(arg))
    return false;
  PyObject **parts = ((PyTupleObject*)part)->ob_item, **args = ((PyTupleObject*)arg)->ob_item;
  return std::equal(parts, parts + PyTuple_GET_SIZE(part), args, is_same);
}

// Whether functools makes this key for the call.
bool is_key_of(PyObject* key, const Call& call, const mg_lru_cache& cache) {
  if (!PyTuple_CheckExact(key))
    return call.size() == 1 && call.positional && !cache.typed && is_same(key, call.args[0]);
  std::vector<PyObject*> parts(call.args, call.args + call.positional);
  if (call.keywords()) parts.push_back(cache.mark);
  for (size_t i = 0; i < call.keywords(); ++i) {
    parts.push_back(PyTuple_GET_ITEM(call.keyword_names, i));
    parts.push_back(call.args[call.positional + i]);
  }
  for (size_t i = 0; cache.typed && i < call.size(); ++i) parts.push_back((PyObject*)Py_TYPE(call.args[i]));
  PyObject** items = ((PyTupleObject*)key)->ob_item;
  return std::equal(items, items + PyTuple_GET_SIZE(key), parts.begin(), parts.end(), is_same);
}

// Borrowed; null: there is none, or one that is equal in another way.
PyObject* find_key(const Call& call, const mg_lru_cache& cache) {
  Py_ssize_t position = 0;
  PyObject *key, *value;
  while (PyDict_Next(cache.dict, &position, &key, &value))
    if (is_key_of(key, call, cache)) return key;
  return nullptr;
}

}  // namespace

// As part of a key: it runs no code, and the next call has the same one.
bool Watch::is_lasting_key(PyObject* part) const {
  if (guard::is_atom(part)) return true;
  if (PyTuple_CheckExact(part)) {
    PyObject** items = ((PyTupleObject*)part)->ob_item;
    return std::all_of(items, items + PyTuple_GET_SIZE(part), [this](PyObject* item) { return is_lasting_key(item); });
  }
  return is_hashed_by_address(part) && is_tracked(part) && !is_tensor(part);
}

PyObject* Watch::call_cached(const Call& call) {
  mg_lru_cache cache;
  if (!mg_lru_cache_read(call.callable, &cache))
    give_up("the call runs " + callable_name(call.callable) + ", whose cache is not understood");
  if (!alive() || !cache.keeps_results) return call.make();
  for (size_t i = 0; i < call.size(); ++i) {
    read_deep(call.args[i]);
    use_identity(call.args[i], "lru_cache");
  }
  auto lasts = [this](PyObject* arg) { return is_lasting_key(arg); };
  bool may_fill = !find_key(call, cache) && std::all_of(call.args, call.args + call.size(), lasts);
  auto make_unseen = [&] {
    runtime::PauseWatch pause;
    return call.make();
  };
  py::Ref result = py::Ref::steal(alive() && may_fill ? recording->run_aside(make_unseen) : call.make());
  if (!alive()) return result.release();
  if (!result && may_fill) give_up("a cached function raises an exception", Around::Never);
  if (!result) return nullptr;
  Py_ssize_t misses = cache.misses;
  bool is_hit = mg_lru_cache_read(call.callable, &cache) && cache.misses == misses;
  PyObject* key = find_key(call, cache);
  if (!is_hit && !(key && may_fill))
    give_up("the call fills the cache of " + callable_name(call.callable));
  else
    guards.read_cache(cache.dict, key, result.get());
  saw(result.get());
  return result.release();
}

}  // namespace magneto::trace
