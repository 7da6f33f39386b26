// How reads become words, and what happens when a word has changed.
#include "guard/run.h"

#include "cpython/cpython.h"

namespace magneto::guard {

// Looks at no object: whether they live is not known here.
void Run::compile() {
  words_.clear(), read_of_word_.clear(), is_dict_version_.clear(), others_.clear();
  dict_word_count_ = 0;
  epoch_ = 0;
  words_.reserve(reads.size());
  read_of_word_.reserve(reads.size());
  next_.assign(reads.size(), kEnd);
  PointerMap<uint32_t> newest;     // read of a dict or class
  PointerMap<PyObject*> vouching;  // from a value to the dict or class whose version says that it still lives
  PointerSet dicts;                // in fields for dicts alone
  auto versioned = [&](size_t index, const void* address, bool is_dict) {
    if (!address) return add_word(&kUnversioned, kUnknown, index);
    PyObject* owner = reads[index].owner;
    auto [last, is_new] = newest.insert(owner);
    if (is_new && is_dict && !vouching.find(owner) && !dicts.contains(owner))
      add_word(&owner->ob_type, kUnknown, index);  // see the header
    // What was read later from an owner of the same version holds as well.
    if (is_new)
      add_word(address, reads[index].version ? reads[index].version : kUnknown, index, is_dict);
    else
      next_[*last] = static_cast<uint32_t>(index);
    *last = static_cast<uint32_t>(index);
    if (reads[index].value) *vouching.insert(reads[index].value).first = owner;
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
        if (read.only_dicts && read.value) dicts.insert(read.value);
        break;
      case Access::Key:
      case Access::Items:
      case Access::Entry: versioned(i, mg_dict_version_word(read.owner), true); break;
      case Access::Name:
      case Access::Specials: versioned(i, mg_type_version_word((PyTypeObject*)read.owner), false); break;
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
  bool is_class = read.access == Access::Name || read.access == Access::Specials;
  if (read.access == Access::List || read.access == Access::Set) {
    size_t first = word;
    while (first && read_of_word_[first - 1] == read_of_word_[word]) --first;
    words_[first + 1].expected = reinterpret_cast<uint64_t>(read.contents->buffer);
    for (size_t i = 0; i < read.contents->places.size(); ++i)
      words_[first + 2 + i].address = reinterpret_cast<const uint64_t*>(read.contents->places[i]);
  } else if (words_[word].address != &kUnversioned && (!is_class || mg_type_version((PyTypeObject*)read.owner))) {
    words_[word].expected = *words_[word].address;
  } else {
    return;
  }
  if (!is_dict_version_[word]) epoch_ = 0, others_.clear();
}

void Run::hold_since(uint64_t epoch) {
  epoch_ = epoch;
  if (!epoch || !others_.empty()) return;
  word_of_other_.clear();
  for (size_t i = 0; i < words_.size(); ++i) {
    if (is_dict_version_[i]) continue;
    others_.push_back(words_[i]);
    word_of_other_.push_back(static_cast<uint32_t>(i));
  }
}

void Run::split(size_t index) {
  auto at = reads.begin() + static_cast<ptrdiff_t>(index);
  auto tail =
      std::make_unique<Run>(std::vector<Read>(std::make_move_iterator(at), std::make_move_iterator(reads.end())), this);
  reads.erase(at, reads.end());
  compile();
  tail->children.swap(children);
  tail->entries.swap(entries);
  for (auto& child : tail->children) child->parent = tail.get();
  for (auto& entry : tail->entries) entry->run_ = tail.get();
  children.push_back(std::move(tail));
}

}  // namespace magneto::guard
