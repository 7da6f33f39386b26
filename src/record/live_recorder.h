// Recordings of operators that really run: the kernels do their work and are noted.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "record/recorder.h"
#include "runtime/tensor_plug.h"

namespace magneto::record {

class LiveRecorder final : public Recorder {
 public:
  explicit LiveRecorder(RecorderOptions options) : Recorder(std::move(options)) {}
  bool is_live() const override { return true; }

 private:
  void execute(const c10::OperatorHandle& op, const graph::SchemaInfo& info, c10::DispatchKey key,
               c10::DispatchKeySet keys, c10::Stack* stack) override;
};

// For a watched call: everything that a graph cannot express goes to `on_fail`, and the call goes on.
std::unique_ptr<runtime::Recording> start_recording(std::function<void(std::string reason)> on_fail);

}  // namespace magneto::record
