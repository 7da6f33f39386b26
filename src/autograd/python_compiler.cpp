// The protocol between a captured part and a compiler: begin_capture, end_capture, close; and what a run calls.
#include "autograd/python_compiler.h"

#include "cpython/gil.h"
#include "cpython/ref.h"
#include "runtime/torch_python.h"

namespace magneto::autograd {

namespace {

// The one that is set, or a TypeError.
[[noreturn]] void raise(const std::string& expectation = "") {
  if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, expectation.c_str());
  runtime::throw_set_error();
}

py::Ref checked(PyObject* object) {
  if (!object) raise();
  return py::Ref::steal(object);
}

py::Ref list_of(const std::vector<at::Tensor>& tensors) {
  py::Ref list = checked(PyList_New(0));
  for (at::Tensor tensor : tensors) {
    py::Ref object = checked(runtime::wrap_tensor(std::move(tensor)));
    if (PyList_Append(list.get(), object.get()) < 0) raise();
  }
  return list;
}

py::Ref list_of(const std::vector<int64_t>& numbers) {
  py::Ref list = checked(PyList_New(0));
  for (int64_t number : numbers) {
    py::Ref object = checked(PyLong_FromLongLong(number));
    if (PyList_Append(list.get(), object.get()) < 0) raise();
  }
  return list;
}

// Tensors in a list or tuple, as many as there should be.
std::vector<at::Tensor> tensors_in(PyObject* object, size_t count, const std::string& what) {
  bool is_sequence = PyList_Check(object) || PyTuple_Check(object);
  if (!is_sequence || static_cast<size_t>(PySequence_Fast_GET_SIZE(object)) != count)
    raise(what + " must be a list of " + std::to_string(count) + " tensors");
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < count; ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(object, static_cast<Py_ssize_t>(i));
    if (!PyObject_TypeCheck(item, runtime::tensor_class())) {
      raise(what + " must be a list of tensors, but item " + std::to_string(i) + " is a " + Py_TYPE(item)->tp_name);
    }
    tensors.push_back(runtime::unpack_tensor(item));
  }
  return tensors;
}

// What a run is given: tensors and sizes, each in the order of the sources.
struct Inputs {
  Inputs(const Part& part, const runtime::Slots& slots, const SymbolValues& values) {
    for (size_t i = 0; i < part.sources.size(); ++i) {
      if (const auto* symbol = std::get_if<Symbol>(&part.sources[i].from))
        sizes.push_back(values[symbol->index]);
      else
        tensors.push_back(slots[i]);
    }
  }
  std::vector<at::Tensor> tensors;
  std::vector<int64_t> sizes;
};

// The outputs of the part's operators for these tensors.
std::vector<at::Tensor> run_operators(const Part& part, const std::vector<at::Tensor>& tensors,
                                      const runtime::Slots& real, const SymbolValues& values) {
  runtime::Slots slots(part.executor->slot_count());
  auto next = tensors.begin();
  for (size_t i = 0; i < part.sources.size(); ++i)
    if (!std::holds_alternative<Symbol>(part.sources[i].from)) slots[i] = *next++;
  runtime::Numbers numbers;
  bind_sizes(part, values, real, numbers);
  std::vector<at::Tensor> outputs(part.targets.size());
  runtime::Executor::Sink sink = [&](size_t output, at::Tensor&& tensor) { outputs[output] = std::move(tensor); };
  part.executor->execute(slots, numbers, &sink);
  return outputs;
}

// Closes the compiler, whatever happens.
class Closing {
 public:
  explicit Closing(PyObject* compiler) : compiler_(compiler) {}
  ~Closing() {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    py::Ref closed = py::Ref::steal(PyObject_CallMethod(compiler_, "close", nullptr));
    if (!closed) PyErr_WriteUnraisable(compiler_);
    PyErr_Restore(type, value, traceback);
  }

 private:
  PyObject* compiler_;
};

}  // namespace

CompiledPart::CompiledPart(PyObject* factory, const Part& part, const runtime::Slots& slots,
                           const SymbolValues& values) {
  py::Gil gil;
  Inputs inputs(part, slots, values);
  py::Ref compiler = checked(PyObject_CallNoArgs(factory));
  for (const char* method : {"begin_capture", "end_capture", "close"}) {
    if (!PyObject_HasAttrString(compiler.get(), method))
      raise(std::string("a compiler must have the methods begin_capture, end_capture and close, but ") +
            Py_TYPE(compiler.get())->tp_name + " has no " + method);
  }
  Closing closing(compiler.get());
  py::Ref tensors = list_of(inputs.tensors), sizes = list_of(inputs.sizes);
  py::Ref answer = checked(PyObject_CallMethod(compiler.get(), "begin_capture", "OO", tensors.get(), sizes.get()));
  if (answer.get() != Py_None) {
    if (!PyTuple_Check(answer.get()) || PyTuple_GET_SIZE(answer.get()) != 2)
      raise("begin_capture must return None or (inputs, sizes)");
    inputs.tensors =
        tensors_in(PyTuple_GET_ITEM(answer.get(), 0), inputs.tensors.size(), "what begin_capture returns as inputs");
  }
  py::Ref outputs = list_of(run_operators(part, inputs.tensors, slots, values));
  answer = checked(PyObject_CallMethod(compiler.get(), "end_capture", "O", outputs.get()));
  if (!PyTuple_Check(answer.get()) || PyTuple_GET_SIZE(answer.get()) != 2)
    raise("end_capture must return (runtime_wrapper, compiled_fn)");
  wrapper_ = py::share(PyTuple_GET_ITEM(answer.get(), 0));
  compiled_ = py::share(PyTuple_GET_ITEM(answer.get(), 1));
  if (!PyCallable_Check(wrapper_.get())) raise("the runtime_wrapper that end_capture returns must be callable");
}

void CompiledPart::run(const Part& part, const runtime::Slots& slots, const SymbolValues& values,
                       const runtime::Executor::Sink& sink) const {
  std::vector<at::Tensor> outputs;
  {
    py::Gil gil;
    Inputs inputs(part, slots, values);
    py::Ref tensors = list_of(inputs.tensors), sizes = list_of(inputs.sizes);
    py::Ref scalars = checked(PyList_New(0)), hooks = checked(PyList_New(0));
    py::Ref result = checked(PyObject_CallFunctionObjArgs(wrapper_.get(), compiled_.get(), tensors.get(), sizes.get(),
                                                          scalars.get(), hooks.get(), nullptr));
    outputs = tensors_in(result.get(), part.targets.size(), "the output of runtime_wrapper");
  }
  for (size_t i = 0; i < outputs.size(); ++i) sink(i, std::move(outputs[i]));
}

}  // namespace magneto::autograd
