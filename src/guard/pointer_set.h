// A set of addresses with open addressing: the tracer asks it once per instruction or so.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace magneto::guard {

class PointerSet {
 public:
  PointerSet() : slots_(kInitialSize, nullptr) {}

  bool contains(const void* pointer) const { return slots_[find(pointer)] == pointer; }

  // False if it was there already.
  bool insert(const void* pointer) {
    size_t slot = find(pointer);
    if (slots_[slot] == pointer) return false;
    slots_[slot] = pointer;
    if (++count_ * 2 > slots_.size()) grow();
    return true;
  }

 private:
  static constexpr size_t kInitialSize = 1024;  // a power of two

  size_t find(const void* pointer) const {
    size_t mask = slots_.size() - 1;
    size_t slot = (reinterpret_cast<uintptr_t>(pointer) >> 4) * 0x9E3779B97F4A7C15ull >> 20 & mask;
    while (slots_[slot] && slots_[slot] != pointer) slot = (slot + 1) & mask;
    return slot;
  }

  void grow() {
    std::vector<const void*> old(slots_.size() * 2, nullptr);
    old.swap(slots_);
    for (const void* pointer : old)
      if (pointer) slots_[find(pointer)] = pointer;
  }

  std::vector<const void*> slots_;
  size_t count_ = 0;
};

}  // namespace magneto::guard
