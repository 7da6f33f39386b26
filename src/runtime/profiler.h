// Events for torch's profiler, from layers that know nothing of torch; free when there is no profiler.
#pragma once
#include "runtime/state.h"

namespace magneto::runtime {

// One event, as long as this object lives: "name", or "name: detail".
class ProfilerEvent {
 public:
  explicit ProfilerEvent(const char* name, const char* detail = nullptr) {
    if (auto begin = process_state().begin_event) event_ = begin(name, detail);
  }
  ~ProfilerEvent() {
    if (event_) process_state().end_event(event_);
  }
  ProfilerEvent(const ProfilerEvent&) = delete;
  ProfilerEvent& operator=(const ProfilerEvent&) = delete;

 private:
  void* event_ = nullptr;  // null: nobody profiles
};

}  // namespace magneto::runtime
