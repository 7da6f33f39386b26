// Compilers of parts that are written in Python.
#pragma once
#include <Python.h>

#include <memory>

#include "autograd/backward.h"

namespace magneto::autograd {

// What a compiler made of a part. The GIL is taken where it is needed; an error in Python is thrown as torch throws it.
class CompiledPart {
 public:
  // Lets a compiler, made by `factory`, see the operators of the part, with the inputs of a run.
  CompiledPart(PyObject* factory, const Part& part, const runtime::Slots& slots, const SymbolValues& values);

  // In place of the executor.
  void run(const Part& part, const runtime::Slots& slots, const SymbolValues& values,
           const runtime::Executor::Sink& sink) const;

 private:
  py::SharedObject wrapper_, compiled_;
};

}  // namespace magneto::autograd
