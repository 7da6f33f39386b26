// The frame hook: while at least one thread watches, every Python frame of the interpreter passes through here.
#pragma once

namespace magneto::frame {

// Installs the hook for its lifetime; nested and concurrent scopes share it. An evaluator that somebody else installed
// earlier is kept, called for frames that are not watched, and put back.
class HookScope {
 public:
  HookScope();
  ~HookScope();
  HookScope(const HookScope&) = delete;
  HookScope& operator=(const HookScope&) = delete;
};

bool hook_installed();

}  // namespace magneto::frame
