// The table of operators.
#include "program/operators.h"

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

PyObject* operator_function(const char* name) {
  static PyObject* module = PyImport_ImportModule("_operator");
  return PyDict_GetItemString(PyModule_GetDict(module), name);
}

}  // namespace magneto::program
