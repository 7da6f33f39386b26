// What a program knows from its last run: numbers that it finds in older dicts and cells, and what follows from them.
//
// A program reads such numbers, computes with them and checks what comes out. As long as the dicts have the versions
// and the cells the contents that they had, all of that holds, and what the rest of the program needs is still at hand.
#pragma once
#include <utility>
#include <vector>

#include "guard/run.h"
#include "program/program.h"

namespace magneto::program {

class Memo {
 public:
  // Null: there is nothing to remember.
  static std::unique_ptr<Memo> of(const Program& program);

  // Whether nothing has changed since what was noted.
  bool holds() const;
  bool has_values() const { return has_values_; }
  // Fills the registers that others than `rest` would fill.
  void recall(PyObject** registers) const;
  // Before a run, then, if that found all as it must be, after it.
  void note_versions();
  void note_values(PyObject* const* registers);

  void note_hit() { misses_ = 0; }
  void note_miss() { ++misses_; }
  // It never helps: what it relies on is different in each run.
  bool is_useless() const { return misses_ > kPatience; }

  Steps rest;  // what has to be done in any case
  // The registers that a run with `rest` fills; empty: perhaps any, there is a cut.
  std::vector<uint32_t> filled;

 private:
  static constexpr int kPatience = 32;  // misses in a row

  bool has_values_ = false;
  int misses_ = 0;
  std::vector<guard::Word> versions_;
  std::vector<std::pair<PyObject*, py::Ref>> cells_;  // with their contents
  std::vector<std::pair<uint32_t, py::Ref>> values_;  // registers that `rest` and what follows need
};

}  // namespace magneto::program
