// The way through the runs of a trie, and how it grows.
#include "guard/trie.h"

#include <algorithm>

#include "guard/run.h"

namespace magneto::guard {

std::string Entry::explain() const {
  if (global_state && !global_state->holds()) return global_state->explain();
  ptrdiff_t bad = tensors.checks->first_mismatch(tensors.objects.data());
  if (bad < 0) return "";
  auto index = static_cast<size_t>(bad);
  return "a parameter, buffer or other tensor in use is " + tensors.checks->explain(index, tensors.objects[index]);
}

int Entry::traverse(visitproc visit, void* arg) const {
  for (const py::Ref& tensor : tensors.roots) Py_VISIT(tensor.get());
  return 0;
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

// Behind a run that holds. Null: there is none.
Entry* find_behind(Run& run, const std::vector<const Entry*>& tried) {
  for (size_t i = 0; i < run.entries.size(); ++i) {
    const Entry* entry = run.entries[i].get();
    if (std::find(tried.begin(), tried.end(), entry) != tried.end() || !entry->holds()) continue;
    move_to_front(run.entries, i);
    return run.entries.front().get();
  }
  for (size_t i = 0; i < run.children.size(); ++i) {
    if (run.children[i]->first_failure() != Run::kAll) continue;
    Entry* entry = find_behind(*run.children[i], tried);
    if (!entry) continue;
    move_to_front(run.children, i);
    return entry;
  }
  return nullptr;
}

int traverse_run(const Run& run, visitproc visit, void* arg) {
  for (const Read& read : run.reads)
    if (int stop = read.traverse(visit, arg)) return stop;
  for (const auto& entry : run.entries)
    if (int stop = entry->traverse(visit, arg)) return stop;
  for (const auto& child : run.children)
    if (int stop = traverse_run(*child, visit, arg)) return stop;
  return 0;
}

}  // namespace

Trie::Trie() : root_(std::make_unique<Run>(std::vector<Read>(), nullptr)) {}
Trie::~Trie() = default;
Trie::Trie(Trie&&) noexcept = default;
Trie& Trie::operator=(Trie&&) noexcept = default;

void Trie::insert(Held<Entry> entry, std::vector<Read> reads) {
  if (empty())
    root_ = std::make_unique<Run>(std::move(reads), nullptr), entry->run_ = root_.get();
  else
    entry->run_ = grow(root_.get(), std::move(reads));
  entry->run_->entries.insert(entry->run_->entries.begin(), std::move(entry));
}

void Trie::remove(const Entry& entry) {
  Run* run = entry.run_;
  std::erase_if(run->entries, [&](const auto& candidate) { return candidate.get() == &entry; });
  while (run->parent && run->entries.empty() && run->children.empty()) {
    Run* empty = std::exchange(run, run->parent);
    std::erase_if(run->children, [&](const auto& child) { return child.get() == empty; });
  }
  if (empty()) root_ = std::make_unique<Run>(std::vector<Read>(), nullptr);  // nobody vouches for its reads any more
}

bool Trie::empty() const { return root_->children.empty() && root_->entries.empty(); }

Entry* Trie::find(const std::vector<const Entry*>& tried) {
  Run& root = *root_;
  if (root.first_failure() != Run::kAll) return nullptr;
  bool is_first = tried.empty() && !root.entries.empty() && root.entries.front()->holds();
  return is_first ? root.entries.front().get() : find_behind(root, tried);
}

std::vector<Held<Entry>> Trie::find_all() {
  std::vector<Held<Entry>> found;
  std::vector<const Entry*> tried;
  while (Entry* entry = find(tried)) {
    tried.push_back(entry);
    found.emplace_back(entry);
  }
  return found;
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

const Read* Trie::first_failure(const Entry& entry) {
  for (Run* run : path_to(entry.run_)) {
    size_t failed = run->first_failure();
    if (failed != Run::kAll) return &run->reads[failed];
  }
  return nullptr;
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
