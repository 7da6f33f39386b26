// What was found out about classes, good for as long as they have the version they had.
#pragma once
#include <unordered_map>

#include "cpython/cpython.h"

namespace magneto::runtime {

// Versions are never used twice, so that neither a change nor another class at the same address goes unnoticed.
template <class Value>
class ClassCache {
 public:
  // What `find(type)` says, asked again only when the class has changed.
  template <class Find>
  Value get(PyTypeObject* type, Find find) {
    unsigned version = mg_type_version(type);
    auto known = entries_.find(type);
    if (version && known != entries_.end() && known->second.version == version) return known->second.value;
    Value value = find(type);
    if (entries_.size() >= kMaxClasses) entries_.clear();
    entries_[type] = {mg_type_version(type), value};  // a look-up may just have given it one
    return value;
  }

 private:
  static constexpr size_t kMaxClasses = 4096;
  struct Entry {
    unsigned version;
    Value value;
  };
  std::unordered_map<PyTypeObject*, Entry> entries_;
};

}  // namespace magneto::runtime
