// The plug that stands in before torch's: no tensors, nothing to record, nothing that can change.
#include "check.h"
#include "runtime/errors.h"
#include "runtime/state.h"
#include "runtime/tensor_plug.h"

using namespace magneto;
using namespace magneto::runtime;

TEST(without_torch_nothing_is_a_tensor) {
  const TensorPlug& plug = tensor_plug();
  CHECK(!plug.is_tensor(Py_None));
  CHECK(plug.classify_call(Py_None) == CallKind::Foreign);
  CHECK(plug.classify_attribute(Py_None, Py_None) == CallKind::Foreign);
  CHECK(!plug.is_immutable(&PyLong_Type));
}

TEST(without_torch_a_recording_is_an_empty_segment_that_runs) {
  const TensorPlug& plug = tensor_plug();
  CHECK_EQ(plug.why_not_record(), "");
  bool failed = false;
  auto recording = plug.record([&](std::string) { failed = true; });
  CHECK(!recording->knows(Py_None));
  CHECK_EQ(recording->op_count(), 0u);
  auto segment = recording->finish({});
  CHECK(segment && !failed);
  CHECK_EQ(segment->op_count(), 0u);
  CHECK_EQ(segment->output_count(), 0u);
  CHECK(segment->run(nullptr, nullptr));
}

TEST(without_torch_a_tensor_is_a_bug) {
  auto recording = tensor_plug().record([](std::string) {});
  CHECK_THROWS(InternalError, recording->add_input(Py_None));
  CHECK_THROWS(InternalError, recording->add_state(Py_None));
  CHECK_THROWS(InternalError, recording->finish({{Py_None}}));
  CHECK_THROWS(InternalError, tensor_plug().tensor_checks()->add(Py_None, {}));
}

TEST(without_torch_the_global_state_always_holds) {
  CHECK(tensor_plug().global_state()->holds());
  CHECK_EQ(tensor_plug().tensor_checks()->first_mismatch(nullptr), -1);
}

TEST(pausing_nests) {
  CHECK_EQ(thread_state().watch_paused, 0);
  {
    PauseWatch outer;
    {
      PauseWatch inner;
      CHECK_EQ(thread_state().watch_paused, 2);
    }
    CHECK_EQ(thread_state().watch_paused, 1);
  }
  CHECK_EQ(thread_state().watch_paused, 0);
}

TEST(counters_count_by_group_and_name) {
  counters().clear();
  count("stats", "calls");
  count("stats", "calls");
  count("eager", "a reason");
  CHECK_EQ(counters()["stats"]["calls"], 2);
  CHECK_EQ(counters()["eager"]["a reason"], 1);
  counters().clear();
}
