// Which line of the user's program is running.
#pragma once
#include <Python.h>

#include <c10/util/flat_hash_map.h>

#include <array>
#include <optional>
#include <vector>

#include "cpython/cpython.h"
#include "cpython/ref.h"
#include "graph/graph.h"

namespace magneto::record {

class Lines {
 public:
  Lines() = default;
  ~Lines();
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;

  // The innermost line of this thread that is not torch's own, as an index into `lines`, which may grow; Op::kNoLine if
  // there is none. With or without the GIL.
  uint32_t current(std::vector<graph::Line>& lines);

  // Until it is let go, the frame that is innermost now neither goes on nor ends.
  void hold();
  void let_go() { held_ = nullptr; }

 private:
  struct Place {
    PyCodeObject* code;
    int instruction;
    bool operator==(const Place&) const = default;
  };
  struct HashPlace {
    size_t operator()(const Place& place) const {
      return reinterpret_cast<size_t>(place.code) * 31 + static_cast<size_t>(place.instruction);
    }
  };
  bool is_torchs(PyCodeObject* code) {
    const Seen& seen = recent_[slot(code)];
    return seen.code == code ? seen.is_torchs : look_up(code);
  }
  bool look_up(PyCodeObject* code);
  uint32_t line_of(mg_frame* frame, std::vector<graph::Line>& lines);

  // Each operator asks about every frame out to the user's, and these are few.
  struct Seen {
    PyCodeObject* code = nullptr;
    bool is_torchs = false;
  };
  static size_t slot(PyCodeObject* code) { return reinterpret_cast<uint64_t>(code) * 0x9e3779b97f4a7c15u >> 58; }

  mg_frame* held_ = nullptr;
  std::optional<uint32_t> held_line_;  // once it was asked for
  std::array<Seen, 64> recent_;
  ska::flat_hash_map<PyCodeObject*, bool> torchs_;
  ska::flat_hash_map<Place, uint32_t, HashPlace> known_;
  std::vector<py::Ref> codes_;  // keeps the addresses from being used again
};

}  // namespace magneto::record
