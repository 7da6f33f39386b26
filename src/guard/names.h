// Names for people: how the user's program would write what a read found, and what changed there.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "guard/reads.h"

namespace magneto::guard {

// What the user calls the objects that reads start from: the function, "self", the arguments.
using RootNames = std::vector<std::pair<PyObject*, std::string>>;

class Names {
 public:
  // `reads` hold and lead from the roots to what is asked for, so that their owners may be looked at.
  Names(const std::vector<const Read*>& reads, const RootNames& roots) : reads_(reads), roots_(roots) {}

  // "`self.layers[3].training` is False, was True"
  std::string describe_failure(const Read& failed) const;
  // What a read that holds relies on: "self.layers[3].training", "== False". Its value may be gone.
  std::pair<std::string, std::string> describe(const Read& read) const;
  std::string name_of(PyObject* object, int depth = 0) const;

 private:
  std::string place(const Read& read, int depth) const;
  std::string key_place(PyObject* dict, PyObject* key, int depth) const;
  std::string cell_name(const Read& read, int depth) const;
  const Read* source_of(PyObject* object) const;

  const std::vector<const Read*>& reads_;
  const RootNames& roots_;
};

// An atom as Python would write it; of other objects only the class, because a repr runs the user's code.
std::string shown(PyObject* value);
// nn.Module keeps its parts in dicts of these names and shows them as attributes: `.layers`, `[3]`.
bool is_module_dict(const std::string& name);
std::string module_part(const std::string& key);

// One line for each kind of read, with how many there are.
void describe_reads(const std::vector<const Read*>& reads, std::vector<std::string>* lines);

}  // namespace magneto::guard
