// A program side by side with its source: what became of each bytecode instruction of a watched call, for people.
//
// It is kept only where somebody asks for it. Nothing of the watch knows about it: before and after each instruction
// the listing looks how much was noted, and what is new belongs to that instruction.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cpython/cpython.h"
#include "cpython/ref.h"
#include "guard/names.h"
#include "guard/reads.h"
#include "program/program.h"

namespace magneto::trace {

class Watch;

// What a watch notes, by number, and a program is written from.
enum class Noted : uint8_t { Read, Effect, Node, Truth, Length, SettledRegister, Operation };

class Listing {
 public:
  explicit Listing(Watch& watch);

  // Whether somebody asks for listings now.
  static bool is_wanted();

  // Around an instruction of a watched frame, `depth` calls deep.
  void begin(PyCodeObject* code, int index, size_t depth);
  void end();
  // What was noted since belongs to the innermost instruction.
  void take();

  // Instructions of the program from this register on are written for what was noted so; otherwise for the instruction
  // that was executed last. Gives what `write_for` needs to go back.
  uint32_t write_for(Noted what, size_t number, uint32_t first_register);
  void write_for(uint32_t step, uint32_t first_register);

  // A stretch is complete, with the guards that are left; another one begins.
  std::string text(const program::Program& program, const std::vector<guard::Read>& reads,
                   const std::vector<std::string>& arguments);
  void start();

 private:
  static constexpr uint32_t kLast = UINT32_MAX;
  static constexpr size_t kKinds = static_cast<size_t>(Noted::Operation) + 1;

  struct Guard {
    guard::Access access;
    PyObject* owner;  // only its address counts
    PyObject* key;
    int32_t offset;
    std::string place, state;
  };
  // An instruction that was executed.
  struct Step {
    py::Ref code;
    int index;
    size_t depth;
    std::vector<Guard> guards;
    size_t first_operation = 0, operations = 0;
  };
  // One that is being executed, and its step in this stretch, if it has one yet.
  struct Open {
    py::Ref code;
    int index;
    size_t depth;
    uint32_t step;
  };
  // Which step noted what, from the number on that the stretch began with.
  struct Track {
    size_t first = 0;
    std::vector<uint32_t> steps;
  };

  class Page;
  std::array<size_t, kKinds> counts() const;
  uint32_t step_of(Open& open);
  void take_guards(Step& step, size_t first);
  const std::string& source_line(PyCodeObject* code, int line);
  void print(Page& page, const Step& step, const std::vector<std::string>& written);
  std::vector<std::vector<std::string>> written_by_step(const program::Program& program,
                                                        const std::vector<guard::Read>& reads);

  Watch& watch_;
  guard::RootNames names_;  // of the roots, and of what programs hold
  std::vector<Step> steps_;
  std::vector<Open> open_;
  std::array<Track, kKinds> tracks_;
  std::vector<std::pair<uint32_t, uint32_t>> writing_;  // from this register on, for that step
  uint32_t writes_for_ = kLast;
  bool is_first_ = true;                                     // of the stretches
  std::map<std::string, std::vector<std::string>> sources_;  // by file name
};

}  // namespace magneto::trace
