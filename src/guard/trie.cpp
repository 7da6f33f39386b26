// Runs of reads, their words, and the way through them.
#include "guard/trie.h"

#include <algorithm>

#include "cpython/cpython.h"
#include "guard/names.h"

namespace magneto::guard {

bool Entry::holds() const {
  return (!global_state || global_state->holds()) && tensors.checks->first_mismatch(tensors.objects.data()) < 0;
}

std::string Entry::explain() const {
  if (global_state && !global_state->holds()) return global_state->explain();
  ptrdiff_t bad = tensors.checks->first_mismatch(tensors.objects.data());
  if (bad < 0) return "";
  auto index = static_cast<size_t>(bad);
  return "a parameter, buffer or other tensor in use is " + tensors.checks->explain(index, tensors.objects[index]);
}

// Reads that are always checked together: nothing stands between them.
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

// Looks at no object: whether they live is not known here.
void Run::compile() {
  words_.clear(), read_of_word_.clear();
  words_.reserve(reads.size());
  read_of_word_.reserve(reads.size());
  next_.assign(reads.size(), kEnd);
  PointerMap<uint32_t> newest;          // read of a dict or class
  PointerMap<PyObject*> vouching;       // from a value to the dict or class whose version says that it still lives
  auto versioned = [&](size_t index, const void* address) {
    if (!address) return add_word(&kUnversioned, kUnknown, index);
    auto [last, is_new] = newest.insert(reads[index].owner);
    if (is_new) add_word(address, kUnknown, index);
    else next_[*last] = static_cast<uint32_t>(index);
    *last = static_cast<uint32_t>(index);
    if (reads[index].value) *vouching.insert(reads[index].value).first = reads[index].owner;
  };
  auto joins_version = [&](size_t index) {
    PyObject* const* by = reads[index].fixed ? vouching.find(reads[index].owner) : nullptr;
    if (!by) return false;
    PyObject* owner = *by;
    auto [last, is_new] = newest.insert(owner);
    next_[*last] = static_cast<uint32_t>(index);
    *last = static_cast<uint32_t>(index);
    if (reads[index].value && reads[index].access == Access::Field) *vouching.insert(reads[index].value).first = owner;
    return true;
  };
  for (size_t i = 0; i < reads.size(); ++i) {
    const Read& read = reads[i];
    switch (read.access) {
      case Access::Field:
      case Access::Number:
        if (joins_version(i)) break;
        add_word(reinterpret_cast<char*>(read.owner) + read.offset, reinterpret_cast<uint64_t>(read.value), i);
        break;
      case Access::Key:
      case Access::Items: versioned(i, mg_dict_version_word(read.owner)); break;
      case Access::Name:
      case Access::Specials: versioned(i, mg_type_version_word((PyTypeObject*)read.owner)); break;
      case Access::List: {
        auto* list = (PyListObject*)read.owner;
        add_container_words(i, &list->ob_base.ob_size, &list->ob_item);
        break;
      }
      case Access::Set: {
        auto* set = (PySetObject*)read.owner;
        add_container_words(i, &set->used, &set->table);
        break;
      }
      default: add_word(&kUnversioned, kUnknown, i);
    }
  }
}

// The size, the memory that holds the items, and the items. The last two are not known before the first check.
void Run::add_container_words(size_t index, const void* size, const void* buffer) {
  const Contents& contents = *reads[index].contents;
  add_word(size, contents.items.size(), index);
  add_word(buffer, kUnknown, index);
  for (PyObject* item : contents.items) add_word(&kUnversioned, reinterpret_cast<uint64_t>(item), index);
}

size_t Run::recheck(size_t word) {
  for (uint32_t index = read_of_word_[word]; index != kEnd; index = next_[index])
    if (!reads[index].verify()) return index;
  refresh(word);
  return kAll;
}

void Run::refresh(size_t word) {
  const Read& read = reads[read_of_word_[word]];
  if (read.access == Access::List || read.access == Access::Set) {
    size_t first = word;
    while (first && read_of_word_[first - 1] == read_of_word_[word]) --first;
    words_[first + 1].expected = reinterpret_cast<uint64_t>(read.contents->buffer);
    for (size_t i = 0; i < read.contents->places.size(); ++i)
      words_[first + 2 + i].address = reinterpret_cast<const uint64_t*>(read.contents->places[i]);
    return;
  }
  bool is_class = read.access == Access::Name || read.access == Access::Specials;
  bool has_version = !is_class || mg_type_version((PyTypeObject*)read.owner);
  if (words_[word].address != &kUnversioned && has_version) words_[word].expected = *words_[word].address;
}

void Run::split(size_t index) {
  auto at = reads.begin() + static_cast<ptrdiff_t>(index);
  auto tail = std::make_unique<Run>(
      std::vector<Read>(std::make_move_iterator(at), std::make_move_iterator(reads.end())), this);
  reads.erase(at, reads.end());
  compile();
  tail->children.swap(children);
  tail->entries.swap(entries);
  for (auto& child : tail->children) child->parent = tail.get();
  for (auto& entry : tail->entries) entry->run_ = tail.get();
  children.push_back(std::move(tail));
}

namespace {

// From the root to `run`.
std::vector<Run*> path_to(Run* run) {
  std::vector<Run*> path;
  for (; run; run = run->parent) path.insert(path.begin(), run);
  return path;
}

template <class List>
void move_to_front(List& list, size_t index) {
  auto at = list.begin() + static_cast<ptrdiff_t>(index);
  if (index) std::rotate(list.begin(), at, at + 1);
}

// Finds the run at the end of `reads`, making it if need be.
Run* grow(Run* run, std::vector<Read> reads) {
  for (size_t i = 0;;) {
    size_t shared = 0;
    while (shared < run->reads.size() && i < reads.size() && run->reads[shared].same_as(reads[i])) ++shared, ++i;
    if (shared < run->reads.size()) run->split(shared);
    if (i == reads.size()) return run;
    auto next = std::find_if(run->children.begin(), run->children.end(),
                             [&](const auto& child) { return child->reads.front().same_as(reads[i]); });
    if (next == run->children.end()) {
      reads.erase(reads.begin(), reads.begin() + static_cast<ptrdiff_t>(i));
      run->children.insert(run->children.begin(), std::make_unique<Run>(std::move(reads), run));
      return run->children.front().get();
    }
    run = next->get();
  }
}

std::shared_ptr<Entry> find_behind(Run& run, const std::vector<const Entry*>& tried,
                                   bool (*holds)(const Entry& entry)) {
  if (run.first_failure() != Run::kAll) return nullptr;
  for (size_t i = 0; i < run.entries.size(); ++i) {
    const Entry* entry = run.entries[i].get();
    if (std::find(tried.begin(), tried.end(), entry) != tried.end() || !holds(*entry)) continue;
    move_to_front(run.entries, i);
    return run.entries.front();
  }
  for (size_t i = 0; i < run.children.size(); ++i) {
    auto entry = find_behind(*run.children[i], tried, holds);
    if (!entry) continue;
    move_to_front(run.children, i);
    return entry;
  }
  return nullptr;
}

int traverse_run(const Run& run, visitproc visit, void* arg) {
  for (const Read& read : run.reads)
    if (int stop = read.traverse(visit, arg)) return stop;
  for (const auto& child : run.children)
    if (int stop = traverse_run(*child, visit, arg)) return stop;
  return 0;
}

}  // namespace

Trie::Trie() : root_(std::make_unique<Run>(std::vector<Read>(), nullptr)) {}
Trie::~Trie() = default;
Trie::Trie(Trie&&) noexcept = default;
Trie& Trie::operator=(Trie&&) noexcept = default;

bool Trie::insert(std::shared_ptr<Entry> entry, std::vector<Read> reads, const RootNames& roots, std::string* why) {
  entry->run_ = grow(root_.get(), std::move(reads));
  entry->run_->entries.insert(entry->run_->entries.begin(), entry);
  *why = explain(*entry, roots);
  if (why->empty()) return true;
  remove(*entry);
  return false;
}

void Trie::remove(const Entry& entry) {
  Run* run = entry.run_;
  std::erase_if(run->entries, [&](const auto& candidate) { return candidate.get() == &entry; });
  while (run->parent && run->entries.empty() && run->children.empty()) {
    Run* empty = std::exchange(run, run->parent);
    std::erase_if(run->children, [&](const auto& child) { return child.get() == empty; });
  }
}

bool Trie::empty() const { return root_->children.empty() && root_->entries.empty(); }

std::shared_ptr<Entry> Trie::find(const std::vector<const Entry*>& tried) {
  return find_behind(*root_, tried, [](const Entry& entry) { return entry.holds(); });
}

std::string Trie::explain(const Entry& entry, const RootNames& roots) {
  std::vector<const Read*> before;
  for (Run* run : path_to(entry.run_)) {
    size_t failed = run->first_failure();
    for (size_t i = 0; i < std::min(failed, run->reads.size()); ++i) before.push_back(&run->reads[i]);
    if (failed != Run::kAll) return Names(before, roots).describe_failure(run->reads[failed]);
  }
  return entry.explain();
}

size_t Trie::size(const Entry& entry) const {
  size_t count = entry.tensors.objects.size();
  for (const Run* run : path_to(entry.run_)) count += run->reads.size();
  return count;
}

void Trie::describe(const Entry& entry, std::vector<std::string>* lines) const {
  std::vector<const Read*> reads;
  for (const Run* run : path_to(entry.run_))
    for (const Read& read : run->reads) reads.push_back(&read);
  describe_reads(reads, lines);
  if (size_t count = entry.tensors.objects.size())
    lines->push_back(std::to_string(count) + " parameters, buffers and other tensors match");
  if (entry.global_state) lines->push_back("torch's global state is unchanged");
}

int Trie::traverse(visitproc visit, void* arg) const { return traverse_run(*root_, visit, arg); }

}  // namespace magneto::guard
