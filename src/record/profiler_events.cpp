// Events for torch's profiler, as user scopes.
#include "record/profiler_events.h"

#include <ATen/record_function.h>

#include <string>

#include "runtime/state.h"

namespace magneto::record {

namespace {

void* begin_event(const char* name, const char* detail) {
  auto listeners = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
  if (!listeners) [[likely]]
    return nullptr;
  auto* event = new at::RecordFunction(std::move(*listeners));
  event->before(detail ? std::string(name) + ": " + detail : std::string(name));
  return event;
}

void end_event(void* event) { delete static_cast<at::RecordFunction*>(event); }

}  // namespace

void install_profiler_events() {
  auto& state = runtime::process_state();
  state.begin_event = begin_event;
  state.end_event = end_event;
}

}  // namespace magneto::record
