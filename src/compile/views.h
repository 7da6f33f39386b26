// Writing through views without writing: what the viewed tensor looks like once a view of it has other contents.
#pragma once
#include <optional>

#include "compile/builder.h"

namespace magneto::compile {

// A new value: `viewed` with `contents` in the place that `view`, one of whose results is `place`, shows. It need not
// have the strides of `viewed`, and may share memory with `contents`. Nothing: no operator does the inverse of this
// view.
std::optional<graph::ValueId> put_back(Builder& builder, const graph::Op& view, const graph::TensorRef& place,
                                       graph::ValueId viewed, graph::ValueId contents);

}  // namespace magneto::compile
