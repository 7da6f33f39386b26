// The dispatch keys that recordings use.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace magneto::record {

// Below autograd, and one that torch leaves to others. Torch turns both off while it fills memory by hand.
constexpr c10::DispatchKey kNoteKey = c10::DispatchKey::Fake;
// Above autograd.
constexpr c10::DispatchKey kGateKey = c10::DispatchKey::DeferredInit;
constexpr c10::DispatchKeySet kBothKeys = c10::DispatchKeySet({kNoteKey, kGateKey});

// Runs the operator as if we were not there; `key` is the one that it arrived on.
inline void run_below(const c10::OperatorHandle& op, c10::DispatchKey key, c10::DispatchKeySet keys,
                      c10::Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard off(kBothKeys);
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, key), stack);
}

}  // namespace magneto::record
