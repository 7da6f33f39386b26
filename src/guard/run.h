// A run of reads: the part of the guards that is always checked together, as words.
#pragma once
#include <memory>
#include <vector>

#include "cpython/cpython.h"
#include "guard/reads.h"
#include "guard/trie.h"

namespace magneto::guard {

// Eight bytes at an address, and the value they had.
struct Word {
  const uint64_t* address;
  uint64_t expected;
};

// Most words are versions of dicts. On some CPythons one number, the epoch, tells that no dict at all was made or
// changed since all words held; then only the *others* are looked at. Why that is sound: take the words in order, and
// let those before a version hold. They vouch for the address, so a living object is there. If it is a dict, it is the
// same one, as no other was made, and it has not changed. And it is a dict, not something else in the place of one that
// died: what holds it is a dict or class of an unchanged version, so that it did not die; or a field for dicts alone;
// or else its class is a word, too.
class Run {
 public:
  explicit Run(std::vector<Read> found, Run* before) : parent(before), reads(std::move(found)) { compile(); }

  // The index of the first read that does not hold, or kAll.
  size_t first_failure() {
    if (dict_word_count_ < kManyDictWords) return first_failure_of_all();
    uint64_t epoch = mg_dict_epoch();
    if (epoch && epoch == epoch_) {
      size_t failed = first_failure_of_others();
      if (epoch == epoch_) return failed;
    }
    size_t failed = first_failure_of_all();
    if (failed == kAll) hold_since(epoch);
    return failed;
  }

  // Moves the reads from `index` on, and all that follows, into a run of its own behind this one.
  void split(size_t index);

  static constexpr size_t kAll = SIZE_MAX;

  Run* parent;
  std::vector<Read> reads;
  std::vector<std::unique_ptr<Run>> children;
  std::vector<Held<Entry>> entries;

 private:
  static constexpr uint32_t kEnd = UINT32_MAX;
  static constexpr uint64_t kUnknown = UINT64_MAX;  // no dict and no class has this version
  static constexpr uint64_t kUnversioned = 0;       // stands for a word of reads that have none; never as expected

  // Going through fewer takes no longer than asking for the epoch.
  static constexpr size_t kManyDictWords = 64;

  size_t first_failure_of_all() {
    const Word* words = words_.data();
    for (size_t i = 0, count = words_.size(); i < count; ++i) {
      if (*words[i].address == words[i].expected) [[likely]]
        continue;
      size_t failed = recheck(i);
      if (failed != kAll) return failed;
    }
    return kAll;
  }

  // In the epoch in which all words held. Leaves `epoch_` zero if they must be gone through after all.
  size_t first_failure_of_others() {
    const Word* words = others_.data();
    for (size_t i = 0, count = others_.size(); i < count; ++i) {
      if (*words[i].address == words[i].expected) [[likely]]
        continue;
      size_t failed = recheck(word_of_other_[i]);
      if (failed != kAll || !epoch_) return failed;
    }
    return kAll;
  }

  void compile();
  void hold_since(uint64_t epoch);
  void add_word(const void* address, uint64_t expected, size_t read, bool is_dict_version = false) {
    words_.push_back({static_cast<const uint64_t*>(address), expected});
    read_of_word_.push_back(static_cast<uint32_t>(read));
    is_dict_version_.push_back(is_dict_version);
    dict_word_count_ += is_dict_version;
  }
  void add_container_words(size_t index, const void* size, const void* buffer);
  size_t recheck(size_t word);
  void refresh(size_t word);

  std::vector<Word> words_;
  std::vector<uint32_t> read_of_word_;  // the first of its reads
  std::vector<uint32_t> next_;          // by read: the next one of the same version
  std::vector<bool> is_dict_version_;   // by word
  size_t dict_word_count_ = 0;
  uint64_t epoch_ = 0;        // in which all words held; 0: none, or `others_` is out of date
  std::vector<Word> others_;  // copies of the words that are no version of a dict; empty: out of date
  std::vector<uint32_t> word_of_other_;
};

}  // namespace magneto::guard
