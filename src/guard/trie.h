// The guards of all compiled forms of a function, as one trie of reads.
//
// A program does the same reads until one of them finds something else: so the forms of a function share their reads
// up to there, and a look-up checks what they have in common once. Reads are kept in runs. The fast check of a run
// goes through its *words*: eight bytes each, at an address, with the value they had. Most reads are a word by
// themselves; those of one dict or one class share the word that holds its version. A word that changed leads back to
// its reads, which are checked one by one; if they hold, the word takes its new value.
// All of it belongs to the GIL. A check never runs Python code and never raises.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "guard/held.h"
#include "guard/names.h"
#include "guard/reads.h"

namespace magneto::guard {

class Run;

// What the guards lead to; compiled forms derive from it.
class Entry {
 public:
  virtual ~Entry() = default;

  StateTensors tensors;
  std::unique_ptr<runtime::GlobalState> global_state;
  int64_t holders = 0;  // see Held

  // What no read covers: torch's state and the tensors.
  bool holds() const {
    return (!global_state || global_state->holds()) &&
           (tensors.objects.empty() || tensors.checks->first_mismatch(tensors.objects.data()) < 0);
  }
  std::string explain() const;
  virtual int traverse(visitproc visit, void* arg) const;

 private:
  friend class Trie;
  friend class Run;

  Run* run_ = nullptr;
};

class Trie {
 public:
  Trie();
  ~Trie();
  Trie(Trie&&) noexcept;
  Trie& operator=(Trie&&) noexcept;

  // `reads` held when they were noted; whether they still do does not matter.
  void insert(Held<Entry> entry, std::vector<Read> reads);
  void remove(const Entry& entry);
  bool empty() const;

  // An entry whose guards hold and that was not tried before, or null; borrowed. The newest hit is looked at first.
  Entry* find(const std::vector<const Entry*>& tried = {});

  // All that hold.
  std::vector<Held<Entry>> find_all();

  // In words, the first thing that keeps this entry from being used; empty if nothing does.
  std::string explain(const Entry& entry, const RootNames& roots);
  // The first read that finds something else than it did; null: none does.
  const Read* first_failure(const Entry& entry);
  size_t size(const Entry& entry) const;  // how many things are guarded
  void describe(const Entry& entry, std::vector<std::string>* lines) const;
  int traverse(visitproc visit, void* arg) const;

 private:
  std::unique_ptr<Run> root_;
};

}  // namespace magneto::guard
