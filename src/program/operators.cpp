// The table of operators.
#include "program/operators.h"

#include <string>

#include "cpython/text.h"

namespace magneto::program {

namespace {

PyObject* power(PyObject* a, PyObject* b) { return PyNumber_Power(a, b, Py_None); }
PyObject* in_place_power(PyObject* a, PyObject* b) { return PyNumber_InPlacePower(a, b, Py_None); }
PyObject* negative(PyObject* a, PyObject*) { return PyNumber_Negative(a); }
PyObject* positive(PyObject* a, PyObject*) { return PyNumber_Positive(a); }
PyObject* invert(PyObject* a, PyObject*) { return PyNumber_Invert(a); }
PyObject* logical_not(PyObject* a, PyObject*) {
  int truth = PyObject_Not(a);
  return truth < 0 ? nullptr : Py_NewRef(truth ? Py_True : Py_False);
}

}  // namespace

const std::array<Operator, 30> kOperators{{{"+", PyNumber_Add},
                                           {"&", PyNumber_And},
                                           {"//", PyNumber_FloorDivide},
                                           {"<<", PyNumber_Lshift},
                                           {"@", PyNumber_MatrixMultiply},
                                           {"*", PyNumber_Multiply},
                                           {"%", PyNumber_Remainder},
                                           {"|", PyNumber_Or},
                                           {"**", power},
                                           {">>", PyNumber_Rshift},
                                           {"-", PyNumber_Subtract},
                                           {"/", PyNumber_TrueDivide},
                                           {"^", PyNumber_Xor},
                                           {"+=", PyNumber_InPlaceAdd},
                                           {"&=", PyNumber_InPlaceAnd},
                                           {"//=", PyNumber_InPlaceFloorDivide},
                                           {"<<=", PyNumber_InPlaceLshift},
                                           {"@=", PyNumber_InPlaceMatrixMultiply},
                                           {"*=", PyNumber_InPlaceMultiply},
                                           {"%=", PyNumber_InPlaceRemainder},
                                           {"|=", PyNumber_InPlaceOr},
                                           {"**=", in_place_power},
                                           {">>=", PyNumber_InPlaceRshift},
                                           {"-=", PyNumber_InPlaceSubtract},
                                           {"/=", PyNumber_InPlaceTrueDivide},
                                           {"^=", PyNumber_InPlaceXor},
                                           {"-", negative},
                                           {"+", positive},
                                           {"~", invert},
                                           {"not", logical_not}}};

PyObject* method_name(uint32_t number, bool reflected) {
  constexpr const char* kNames[] = {"add", "and", "floordiv", "lshift", "matmul",  "mul", "mod",
                                    "or",  "pow", "rshift",   "sub",    "truediv", "xor"};
  static_assert(std::size(kNames) == kFirstInPlace);
  static std::array<PyObject*, 3 * kFirstInPlace> names{};
  uint32_t which = number % kFirstInPlace;
  int form = reflected ? 2 : number >= kFirstInPlace ? 1 : 0;
  PyObject*& name = names[which * 3 + static_cast<uint32_t>(form)];
  constexpr const char* kPrefixes[] = {"", "i", "r"};
  if (!name) name = PyUnicode_InternFromString(("__" + std::string(kPrefixes[form]) + kNames[which] + "__").c_str());
  return name;
}

PyObject* operator_function(const char* name) {
  static PyObject* module = PyImport_ImportModule("_operator");
  return PyDict_GetItemString(PyModule_GetDict(module), name);
}

PyObject* operator_function(uint32_t number) {
  std::string method = py::text(method_name(number, false)), name = method.substr(2, method.size() - 4);
  bool is_keyword = name == "and" || name == "or";
  return operator_function((is_keyword ? name + "_" : name).c_str());
}

}  // namespace magneto::program
