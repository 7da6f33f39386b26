// References that are counted without atomics, for objects that belong to the GIL and have a field `holders`.
#pragma once
#include <type_traits>
#include <utility>

namespace magneto::guard {

template <class T>
class Held {
 public:
  Held() = default;
  explicit Held(T* object) : object_(object) {
    if (object) ++object->holders;
  }
  Held(const Held& other) : Held(other.object_) {}
  Held(Held&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  template <class Derived>
    requires std::is_base_of_v<T, Derived>
  Held(const Held<Derived>& other) : Held(other.get()) {}
  Held& operator=(Held other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Held() {
    if (object_ && --object_->holders == 0) delete object_;
  }

  T* get() const { return object_; }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }
  explicit operator bool() const { return object_ != nullptr; }
  bool operator==(const Held& other) const { return object_ == other.object_; }
  bool operator==(const T* other) const { return object_ == other; }

 private:
  T* object_ = nullptr;
};

}  // namespace magneto::guard
