// Where a step of an executor finds its arguments.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>

namespace magneto::runtime {

// A tensor. A slot belongs to one run, a constant to the graph.
struct Operand {
  enum Kind : uint8_t { Absent, Slot, LastUse, Constant };
  Kind kind = Absent;
  uint32_t index = 0;
};

struct ArgSource {
  enum Kind : uint8_t { Constant, Tensor, List, OptionalList, Sized };
  Kind kind = Constant;
  uint32_t index = 0;  // among constants, operands or what depends on symbols
  uint32_t count = 0;  // of list items
};

// Those of one step in one run, by position. Tensors stay where they are.
class StepArguments {
 public:
  StepArguments(const ArgSource* sources, const Operand* operands, const c10::IValue* constants,
                const at::Tensor* slots, const at::Tensor* constant_tensors)
      : sources_(sources),
        operands_(operands),
        constants_(constants),
        slots_(slots),
        constant_tensors_(constant_tensors) {}

  const at::Tensor& operand(uint32_t index) const {
    const Operand& from = operands_[index];
    return from.kind == Operand::Constant ? constant_tensors_[from.index] : slots_[from.index];
  }
  const c10::IValue& constant(size_t position) const { return constants_[sources_[position].index]; }
  const at::Tensor& tensor(size_t position) const { return operand(sources_[position].index); }
  at::Tensor optional_tensor(size_t position) const {
    return sources_[position].kind == ArgSource::Tensor ? tensor(position) : at::Tensor();
  }
  c10::SmallVector<at::Tensor, 4> list(size_t position) const {
    c10::SmallVector<at::Tensor, 4> tensors;
    const ArgSource& source = sources_[position];
    for (uint32_t i = 0; i < source.count; ++i) tensors.push_back(operand(source.index + i));
    return tensors;
  }

 private:
  const ArgSource* sources_;
  const Operand* operands_;
  const c10::IValue* constants_;
  const at::Tensor* slots_;
  const at::Tensor* constant_tensors_;
};

}  // namespace magneto::runtime
