// A run of reads: the part of the guards that is always checked together, as words.
#pragma once
#include <memory>
#include <vector>

#include "guard/reads.h"

namespace magneto::guard {

class Entry;

// Eight bytes at an address, and the value they had.
struct Word {
  const uint64_t* address;
  uint64_t expected;
};

class Run {
 public:
  explicit Run(std::vector<Read> found, Run* before) : parent(before), reads(std::move(found)) { compile(); }

  // The index of the first read that does not hold, or kAll.
  size_t first_failure() {
    const Word* words = words_.data();
    for (size_t i = 0, count = words_.size(); i < count; ++i) {
      if (*words[i].address == words[i].expected) [[likely]]
        continue;
      size_t failed = recheck(i);
      if (failed != kAll) return failed;
    }
    return kAll;
  }

  // Moves the reads from `index` on, and all that follows, into a run of its own behind this one.
  void split(size_t index);

  static constexpr size_t kAll = SIZE_MAX;

  Run* parent;
  std::vector<Read> reads;
  std::vector<std::unique_ptr<Run>> children;
  std::vector<std::shared_ptr<Entry>> entries;

 private:
  static constexpr uint32_t kEnd = UINT32_MAX;
  static constexpr uint64_t kUnknown = UINT64_MAX;   // no dict and no class has this version
  static constexpr uint64_t kUnversioned = 0;        // stands for a word of reads that have none; never as expected

  void compile();
  void add_word(const void* address, uint64_t expected, size_t read) {
    words_.push_back({static_cast<const uint64_t*>(address), expected});
    read_of_word_.push_back(static_cast<uint32_t>(read));
  }
  void add_container_words(size_t index, const void* size, const void* buffer);
  size_t recheck(size_t word);
  void refresh(size_t word);

  std::vector<Word> words_;
  std::vector<uint32_t> read_of_word_;  // the first of its reads
  std::vector<uint32_t> next_;          // by read: the next one of the same version
};

}  // namespace magneto::guard
