// Walks outwards from the running frame until it leaves torch's own files.
#include "record/lines.h"

#include <algorithm>
#include <string>

#include "cpython/cpython.h"
#include "cpython/gil.h"

namespace magneto::record {
namespace {

std::string text_of(PyObject* text) {
  const char* data = text ? PyUnicode_AsUTF8(text) : nullptr;
  if (!data) PyErr_Clear();
  return data ? data : "";
}

mg_frame* innermost() {
  PyThreadState* thread = PyGILState_GetThisThreadState();
  return thread ? mg_frame_innermost(thread) : nullptr;
}

// "…/site-packages/torch/". GIL held.
std::string package_folder(const char* package) {
  py::Ref module = py::Ref::steal(PyImport_ImportModule(package));
  py::Ref file = module ? py::Ref::steal(PyObject_GetAttrString(module.get(), "__file__")) : py::Ref();
  if (!file) PyErr_Clear();
  std::string path = file ? text_of(file.get()) : "";
  return path.empty() ? std::string(1, '\0') : path.substr(0, path.rfind('/') + 1);
}

}  // namespace

Lines::~Lines() {
  if (codes_.empty()) return;
  py::Gil gil;
  codes_.clear();
}

bool Lines::look_up(PyCodeObject* code) {
  auto found = torchs_.find(code);
  if (found != torchs_.end()) {
    recent_[slot(code)] = {code, found->second};
    return found->second;
  }
  py::Gil gil;
  codes_.push_back(py::Ref::borrow(reinterpret_cast<PyObject*>(code)));
  std::string file = text_of(code->co_filename);
  static const std::string& torch = *new std::string(package_folder("torch"));
  static const std::string& magneto = *new std::string(package_folder("magneto"));
  return torchs_[code] = file.starts_with(torch) || file.starts_with(magneto);
}

uint32_t Lines::current(std::vector<graph::Line>& lines) {
  mg_frame* frame = innermost();
  if (!frame || frame != held_) return line_of(frame, lines);
  if (!held_line_) held_line_ = line_of(frame, lines);
  return *held_line_;
}

void Lines::hold() {
  held_ = innermost();
  held_line_.reset();
}

uint32_t Lines::line_of(mg_frame* frame, std::vector<graph::Line>& lines) {
  while (frame && is_torchs(mg_frame_code(frame))) frame = mg_frame_outward(frame);
  if (!frame) return graph::Op::kNoLine;
  Place place{mg_frame_code(frame), mg_frame_executing(frame)};
  auto found = known_.find(place);
  if (found != known_.end()) return found->second;
  py::Gil gil;
  graph::Line line{text_of(place.code->co_filename), mg_line(place.code, place.instruction),
                   text_of(place.code->co_qualname)};
  auto same = std::find(lines.begin(), lines.end(), line);
  auto index = static_cast<uint32_t>(same - lines.begin());
  if (same == lines.end()) lines.push_back(std::move(line));
  return known_[place] = index;
}

}  // namespace magneto::record
