// `_PyInterpreterFrame`: a frame as the callback sees it, for as long as the callback runs.
#pragma once
#include "cpython/cpython.h"
#include "cpython/ref.h"

namespace magneto::frame {

// A null result: error set.
py::Ref make_frame_view(const mg_fresh_frame& frame);
// The frame goes on or is gone: from now on the view, and every view of a caller reached through it, raises.
void end_frame_view(PyObject* view);

bool make_frame_view_type(const char* module_name);

}  // namespace magneto::frame
