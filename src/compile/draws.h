// Random operators whose functional partners do not keep the layout of what they fill.
#pragma once
#include "compile/builder.h"

namespace magneto::compile {

// Appends the functional partner of an operator so that it draws the numbers that the operator would draw.
Builder::Results append_partner(Builder& builder, graph::Op call);

}  // namespace magneto::compile
