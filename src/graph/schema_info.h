// What an operator's schema, tags and kernels say about it, worked out once per operator.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <string>
#include <vector>

namespace magneto::graph {

// What an operator returns besides tensors.
enum class Answer : uint8_t {
  None,      // tensors only
  Metadata,  // numbers that follow from shapes, dtypes and global state
  Number,    // one number that is the content of a tensor (aten::_local_scalar_dense)
  Value,     // anything else that follows from the contents of tensors
};

struct SchemaInfo {
  std::string name;           // "aten::add.Tensor"
  std::vector<bool> written;  // per argument: the schema says that it is written
  Answer answer = Answer::None;
  bool writes = false;
  bool returns_view = false;
  bool tracks_views = false;   // its autograd kernel keeps version counters or views
  bool hidden_writes = false;  // writes arguments that its schema does not mark
  bool foreign = false;        // not one of torch's own: its schema may be wrong, and it may lack tags
  bool random = false;         // draws from a generator
  bool kept = false;           // runs even if nobody uses its results: it writes, draws, checks, or is not known well
  bool may_raise = true;       // the contents of its arguments may make it raise an error
  bool divides = false;        // may_raise, too, if the result is integral
  bool dynamic_shape = false;  // the sizes of its results follow from the contents of tensors
  bool indexing = false;       // aten::index.Tensor: dynamic only with a mask
  bool copies = false;         // aten::clone
  bool detaches = false;       // aten::detach_
  bool lifts = false;          // turns a tensor that was filled by hand into one that may be seen (aten::lift_fresh)
  bool allocates = false;      // returns memory that nobody has written yet
  bool reads_metadata_only = false;  // takes only sizes and types from its tensor arguments, or makes a view
  bool initialises = true;           // an argument that it writes has defined contents afterwards
  bool composite_cpu = false;        // no kernel of its own: made of other operators
  bool composite_cuda = false;
};

// Any thread; the reference stays valid forever.
const SchemaInfo& schema_info(const c10::OperatorHandle& op);

}  // namespace magneto::graph
