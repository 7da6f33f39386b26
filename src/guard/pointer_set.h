// Sets and maps of addresses with open addressing: the tracer asks them once per instruction or so.
#pragma once
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace magneto::guard {

// `Entry` is constructible without arguments, and then is_free(); key() tells what it stands for.
template <class Key, class Entry>
class OpenTable {
 public:
  const Entry* find(Key key) const {
    if (slots_.empty()) return nullptr;
    const Entry& entry = slots_[slot_of(key)];
    return entry.is_free() ? nullptr : &entry;
  }

  // Makes room for so many entries.
  void reserve(size_t count) {
    if (count * 2 > slots_.size()) resize(std::max(kFirstSize, std::bit_ceil(count * 2)));
  }

  // The entry for `key`, and whether it is new.
  std::pair<Entry*, bool> insert(Key key) {
    if ((count_ + 1) * 2 > slots_.size()) grow();
    Entry& entry = slots_[slot_of(key)];
    if (!entry.is_free()) return {&entry, false};
    entry = Entry(key);
    ++count_;
    return {&entry, true};
  }

  void erase(Key key) {
    if (!find(key)) return;
    size_t mask = slots_.size() - 1, hole = slot_of(key);
    // Whoever was put behind it because its own place was taken moves up.
    for (size_t next = (hole + 1) & mask; !slots_[next].is_free(); next = (next + 1) & mask) {
      size_t home = hash(slots_[next].key()) >> 20 & mask;
      if (((next - home) & mask) < ((next - hole) & mask)) continue;
      slots_[hole] = std::exchange(slots_[next], Entry());
      hole = next;
    }
    slots_[hole] = Entry();
    --count_;
  }

  void clear() {
    slots_.clear();
    slots_.shrink_to_fit();
    count_ = 0;
  }

 private:
  static constexpr size_t kFirstSize = 64;  // a power of two

  static size_t hash(const void* p) { return (reinterpret_cast<uintptr_t>(p) >> 4) * 0x9E3779B97F4A7C15ull; }
  static size_t hash(const std::pair<const void*, const void*>& p) { return hash(p.first) * 31 + hash(p.second); }

  size_t slot_of(const Key& key) const {
    size_t mask = slots_.size() - 1;
    size_t slot = hash(key) >> 20 & mask;
    while (!slots_[slot].is_free() && slots_[slot].key() != key) slot = (slot + 1) & mask;
    return slot;
  }

  void grow() { resize(slots_.empty() ? kFirstSize : slots_.size() * 4); }

  void resize(size_t size) {
    std::vector<Entry> old(size);
    old.swap(slots_);
    for (const Entry& entry : old)
      if (!entry.is_free()) slots_[slot_of(entry.key())] = entry;
  }

  std::vector<Entry> slots_;
  size_t count_ = 0;
};

struct PointerEntry {
  PointerEntry() = default;
  explicit PointerEntry(const void* p) : pointer(p) {}
  bool is_free() const { return !pointer; }
  const void* key() const { return pointer; }
  const void* pointer = nullptr;
};

class PointerSet {
 public:
  bool contains(const void* pointer) const { return table_.find(pointer) != nullptr; }
  bool insert(const void* pointer) { return table_.insert(pointer).second; }  // false if it was there already
  void erase(const void* pointer) { table_.erase(pointer); }
  void reserve(size_t count) { table_.reserve(count); }
  void clear() { table_.clear(); }

 private:
  OpenTable<const void*, PointerEntry> table_;
};

using PointerPair = std::pair<const void*, const void*>;

struct PointerPairEntry {
  PointerPairEntry() = default;
  explicit PointerPairEntry(PointerPair p) : pair(p) {}
  bool is_free() const { return !pair.first; }
  PointerPair key() const { return pair; }
  PointerPair pair{nullptr, nullptr};
};

class PointerPairSet {
 public:
  bool contains(const void* first, const void* second) const { return table_.find({first, second}) != nullptr; }
  bool insert(const void* first, const void* second) { return table_.insert({first, second}).second; }
  void reserve(size_t count) { table_.reserve(count); }
  void clear() { table_.clear(); }

 private:
  OpenTable<PointerPair, PointerPairEntry> table_;
};

// From a pair of addresses to a small value.
template <class Value>
class PointerPairMap {
 public:
  const Value* find(const void* first, const void* second) const {
    const Entry* entry = table_.find({first, second});
    return entry ? &entry->value : nullptr;
  }
  // The value, and whether it is new.
  std::pair<Value*, bool> insert(const void* first, const void* second) {
    auto [entry, is_new] = table_.insert({first, second});
    return {&entry->value, is_new};
  }
  void clear() { table_.clear(); }

 private:
  struct Entry : PointerPairEntry {
    using PointerPairEntry::PointerPairEntry;
    Value value{};
  };
  OpenTable<PointerPair, Entry> table_;
};

// From an address to a small value.
template <class Value>
class PointerMap {
 public:
  const Value* find(const void* pointer) const {
    const Entry* entry = table_.find(pointer);
    return entry ? &entry->value : nullptr;
  }
  // The value, and whether it is new.
  std::pair<Value*, bool> insert(const void* pointer) {
    auto [entry, is_new] = table_.insert(pointer);
    return {&entry->value, is_new};
  }
  void clear() { table_.clear(); }

 private:
  struct Entry : PointerEntry {
    using PointerEntry::PointerEntry;
    Value value{};
  };
  OpenTable<const void*, Entry> table_;
};

}  // namespace magneto::guard
