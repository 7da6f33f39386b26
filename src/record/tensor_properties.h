// Metadata of any tensor as Python constants, read without torch's Python getters, which run the user's overrides.
#pragma once
#include <Python.h>

#include <string>
#include <vector>

namespace magneto::record {

// Empty unless asking this tensor for its metadata would run Python code or raise.
std::string why_not_checked(PyObject* tensor);

const std::vector<std::string>& property_names();
// A new reference; null, without an error, if the tensor cannot tell.
PyObject* property_of(PyObject* tensor, size_t index);

}  // namespace magneto::record
