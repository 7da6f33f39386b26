// Python's operators by number: those of BINARY_OP, which are the same in all versions, then the unary ones.
#pragma once
#include <Python.h>

#include <array>
#include <cstdint>

namespace magneto::program {

constexpr uint32_t kFirstInPlace = 13, kNegative = 26, kPositive = 27, kInvert = 28, kNot = 29;

struct Operator {
  const char* text;
  binaryfunc apply;  // a unary one does not look at its second operand
};

extern const std::array<Operator, 30> kOperators;

// What a class calls its method for a binary one: "__pow__", "__ipow__"; `reflected`: "__rpow__". Borrowed.
PyObject* method_name(uint32_t number, bool reflected);

// The function of Python's module `operator` of this name, or for a binary one; borrowed.
PyObject* operator_function(const char* name);
PyObject* operator_function(uint32_t number);

}  // namespace magneto::program
