// Rules for fresh tensors: copies, tensors like another one, tensors from sizes, and joined tensors.
#include "record/rules_common.h"

namespace magneto::record::rules {
namespace {

// What the options of a factory ask for: dtype, layout, device, pinned memory, in this order in every schema.
struct Options {
  Options(Args args, size_t first, ScalarType default_type, Device default_device)
      : covered((args[first + 1].isNone() || args[first + 1].toLayout() == c10::kStrided) && !flag(args[first + 3])),
        type(type_of(args[first]).value_or(default_type)),
        device(args[first + 2].isNone() ? default_device : args[first + 2].toDevice()) {
    if (device.is_cpu()) device = c10::kCPU;  // without an index
    // "cuda" is the current one, which only the kernel should ask for.
    covered = covered && (device.is_cpu() || device.has_index()) && !device.is_meta();
  }

  bool covered;
  ScalarType type;
  Device device;
};

// A tensor of the shape of `self` in the format that was asked for; as `self` is, if none was.
bool give_in_format(const at::Tensor& self, const c10::IValue& asked, ScalarType type, Device device, Stack& results) {
  MemoryFormat format = format_of(asked).value_or(MemoryFormat::Preserve);
  if (format == MemoryFormat::ChannelsLast && self.dim() != 4) return false;
  if (format == MemoryFormat::ChannelsLast3d && self.dim() != 5) return false;
  auto sizes = self.sym_sizes();
  auto strides =
      format == MemoryFormat::Preserve ? preserved_strides(sizes, self.sym_strides()) : strides_in(format, sizes);
  return give(results, make_trace(sizes, strides, 0, type, device));
}

// (self, dtype, layout, device, pin_memory, ..., memory_format) with `options` the position of the dtype. `kinds`:
// dtypes that the kernel can fill.
template <size_t options, size_t format, Kinds kinds = kAnyOrComplex>
bool like(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  Options asked(args, options, self.scalar_type(), self.device());
  if (!asked.covered || !is_plain(self) || !is(asked.type, kinds)) return false;
  return give_in_format(self, args[format], asked.type, asked.device, results);
}

bool clone(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  return !self.is_neg() && give_in_format(self, args[1], self.scalar_type(), self.device(), results);
}

std::optional<Sizes> valid_sizes(const c10::IValue& value) {
  Sizes sizes = sizes_of(value);
  for (const SymInt& size : sizes) {
    if (size < 0) return std::nullopt;
  }
  return sizes;
}

ScalarType default_type() { return c10::get_default_dtype_as_scalartype(); }

// (size, dtype, layout, device, pin_memory)
template <size_t options, Kinds kinds = kAny>
bool sized(Args args, Stack& results) {
  auto sizes = valid_sizes(args[0]);
  Options asked(args, options, default_type(), c10::kCPU);
  return sizes && asked.covered && is(asked.type, kinds) && give(results, make(*sizes, asked.type, asked.device));
}

// (n, [m,] dtype, layout, device, pin_memory)
template <size_t options>
bool eye(Args args, Stack& results) {
  SymInt rows = args[0].toSymInt(), columns = args[options - 1].toSymInt();
  Options asked(args, options, default_type(), c10::kCPU);
  if (rows < 0 || columns < 0 || !asked.covered || !is(asked.type, kAny)) return false;
  return give(results, make({rows, columns}, asked.type, asked.device));
}

// ([low,] high, size, dtype, layout, device, pin_memory)
template <size_t size>
bool randint(Args args, Stack& results) {
  auto sizes = valid_sizes(args[size]);
  Options asked(args, size + 1, ScalarType::Long, c10::kCPU);
  return sizes && asked.covered && is(asked.type, kNumber) && give(results, make(*sizes, asked.type, asked.device));
}

// (mean, std, generator), of which at least one is a tensor
bool normal(Args args, Stack& results) {
  Elementwise work;
  for (const c10::IValue& operand : args.slice(0, 2)) {
    if (!operand.isTensor()) continue;
    work.add(operand.toTensor());
  }
  if (!work.broadcast() || !is(work.type(), kFloating)) return false;
  return give(results, make(work.sizes(), work.type(), work.device()));
}

// (mean, std, size, generator, dtype, layout, device, pin_memory)
bool normal_sized(Args args, Stack& results) {
  auto sizes = valid_sizes(args[2]);
  Options asked(args, 4, default_type(), c10::kCPU);
  return sizes && asked.covered && is(asked.type, kFloating) && give(results, make(*sizes, asked.type, asked.device));
}

// (self, generator)
bool poisson(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  return is(self.scalar_type(), kFloating) && give(results, make(self.sym_sizes(), self.scalar_type(), self.device()));
}

// (n, dtype, layout, device, pin_memory)
bool randperm(Args args, Stack& results) {
  c10::SymInt count = args[0].toSymInt();
  Options asked(args, 1, ScalarType::Long, c10::kCPU);
  return count >= 0 && asked.covered && give(results, make({count}, asked.type, asked.device));
}

bool empty(Args args, Stack& results) {
  auto format = format_of(args[5]).value_or(MemoryFormat::Contiguous);
  return format == MemoryFormat::Contiguous && sized<1>(args, results);
}

// The dtype that a number has by itself.
ScalarType type_of_number(const c10::IValue& number) {
  return number.isBool() ? ScalarType::Bool : number.isInt() || number.isSymInt() ? ScalarType::Long : default_type();
}

// (size, fill_value, dtype, ...)
bool full(Args args, Stack& results) {
  auto sizes = valid_sizes(args[0]);
  if (args[1].isComplexDouble()) return false;
  Options asked(args, 2, type_of_number(args[1]), c10::kCPU);
  return sizes && asked.covered && is(asked.type, kAny) && give(results, make(*sizes, asked.type, asked.device));
}

// (self, size, [fill_value,] dtype, ...)
template <size_t options>
bool new_sized(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  auto sizes = valid_sizes(args[1]);
  Options asked(args, options, self.scalar_type(), self.device());
  return sizes && asked.covered && is(asked.type, kAnyOrComplex) &&
         give(results, make(*sizes, asked.type, asked.device));
}

bool new_empty_strided(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  auto sizes = valid_sizes(args[1]), strides = valid_sizes(args[2]);
  Options asked(args, 3, self.scalar_type(), self.device());
  if (!sizes || !strides || sizes->size() != strides->size() || !asked.covered) return false;
  return give(results, make_trace(*sizes, *strides, 0, asked.type, asked.device));
}

bool scalar_tensor(Args args, Stack& results) {
  Options asked(args, 1, default_type(), c10::kCPU);
  return asked.covered && is(asked.type, kAny) && give(results, make({}, asked.type, asked.device));
}

bool arange_of(const c10::IValue& start, const c10::IValue& end, const c10::IValue& step, Args args, size_t options,
               Stack& results) {
  bool whole = true;
  for (const c10::IValue* number : {&start, &end, &step}) {
    if (!number->isInt() && !number->isSymInt() && !number->isDouble()) return false;
    whole = whole && !number->isDouble();
  }
  Options asked(args, options, whole ? ScalarType::Long : default_type(), c10::kCPU);
  if (!asked.covered || !is(asked.type, whole ? kNumber : kFloating)) return false;
  SymInt count;
  if (whole) {
    SymInt first = start.toSymInt(), last = end.toSymInt(), by = step.toSymInt();
    if (by == 0) return false;
    bool down = by < 0;
    SymInt span = down ? first - last : last - first, step = down ? -by : by;
    if (span < 0) return false;
    count = step == 1 ? span : (span + step - 1) / step;
  } else {
    double first = start.toScalar().toDouble(), last = end.toScalar().toDouble(), by = step.toScalar().toDouble();
    if (!(by > 0) || !(last >= first) || !std::isfinite(last - first)) return false;
    count = static_cast<int64_t>(std::ceil((last - first) / by));
  }
  return give(results, make(count, asked.type, asked.device));
}

bool arange(Args args, Stack& results) { return arange_of(0, args[0], 1, args, 1, results); }
bool arange_from(Args args, Stack& results) { return arange_of(args[0], args[1], 1, args, 2, results); }
bool arange_by(Args args, Stack& results) { return arange_of(args[0], args[1], args[2], args, 3, results); }

// --- Joined tensors ---

// The common dtype and device of a list; nothing if there is none that is covered.
std::optional<std::pair<ScalarType, Device>> common_of(const std::vector<at::Tensor>& tensors) {
  if (tensors.empty()) return std::nullopt;
  at::native::ResultTypeState types;
  for (const at::Tensor& tensor : tensors) {
    if (!is_plain(tensor) || !is(tensor.scalar_type(), kAny) || tensor.device() != tensors[0].device())
      return std::nullopt;
    types = at::native::update_result_type_state(tensor, types);
  }
  return std::pair(at::native::result_type(types), tensors[0].device());
}

// A tensor of shape [0] goes with everything.
bool cat_skips(const at::Tensor& tensor) { return tensor.dim() == 1 && tensor.sym_size(0) == 0; }

bool cat(Args args, Stack& results) {
  auto tensors = args[0].toTensorVector();
  auto common = common_of(tensors);
  if (!common) return false;
  MemoryFormat format = suggested_format(tensors[0]);
  for (const at::Tensor& tensor : tensors) {
    if (suggested_format(tensor) != format) format = MemoryFormat::Contiguous;
  }
  Sizes sizes;
  std::optional<int64_t> dim;
  for (const at::Tensor& tensor : tensors) {
    if (cat_skips(tensor)) continue;
    if (!dim) {
      dim = wrap(args[1].toInt(), tensor.dim());
      if (!dim || tensor.dim() == 0) return false;
      sizes = Sizes(tensor.sym_sizes());
      sizes[*dim] = 0;
    }
    if (tensor.dim() != static_cast<int64_t>(sizes.size())) return false;
    for (int64_t i = 0; i < tensor.dim(); ++i) {
      if (i != *dim && tensor.sym_size(i) != sizes[i]) return false;
    }
    sizes[*dim] += tensor.sym_size(*dim);
  }
  return dim && give(results, make_in(format, sizes, common->first, common->second));
}

bool stack(Args args, Stack& results) {
  auto tensors = args[0].toTensorVector();
  auto common = common_of(tensors);
  if (!common) return false;
  auto sizes = tensors[0].sym_sizes();
  auto dim = wrap(args[1].toInt(), tensors[0].dim() + 1);
  if (!dim) return false;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.sym_sizes() != sizes) return false;
  }
  Sizes all(sizes);
  all.insert(all.begin() + *dim, static_cast<int64_t>(tensors.size()));
  return give(results, make(all, common->first, common->second));
}

// (tensors): matrices, of which vectors are rows, down the diagonal of a new one
bool block_diag(Args args, Stack& results) {
  auto tensors = args[0].toTensorVector();
  auto common = common_of(tensors);
  if (!common) return false;
  SymInt rows = 0, columns = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.dim() > 2) return false;
    rows += tensor.dim() == 2 ? tensor.sym_size(0) : SymInt(1);
    columns += tensor.dim() > 0 ? tensor.sym_size(-1) : SymInt(1);
  }
  return give(results, make({rows, columns}, common->first, common->second));
}

bool repeat(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  Sizes sizes = sizes_of(args[1]);
  if (static_cast<int64_t>(sizes.size()) < self.dim() || !is_plain(self)) return false;
  size_t fresh = sizes.size() - self.dim();
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 0) return false;
    if (i >= fresh) sizes[i] *= self.sym_size(static_cast<int64_t>(i - fresh));
  }
  return give(results, make(sizes, self.scalar_type(), self.device()));
}

bool constant_pad(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  Sizes pad = sizes_of(args[1]), sizes(self.sym_sizes());
  if (pad.size() % 2 || pad.size() / 2 > sizes.size() || !is_plain(self) || !is(self.scalar_type(), kAny)) return false;
  bool grows = false;
  for (size_t i = 0; i < pad.size(); ++i) {
    grows = grows || pad[i] > 0;
    sizes[sizes.size() - 1 - i / 2] += pad[i];
  }
  for (const SymInt& size : sizes) {
    if (size <= 0) return false;
  }
  if (!grows) {  // a copy of what is left
    Sizes strides = preserved_strides(sizes, self.sym_strides());
    return give(results, make_trace(sizes, strides, 0, self.scalar_type(), self.device()));
  }
  return give(results, make_in(suggested_format(self), sizes, self.scalar_type(), self.device()));
}

constexpr Row kCopyRules[] = {
    {"aten::clone", clone},
    {"aten::_to_copy", like<1, 6>},
    {"aten::empty_like", like<1, 5>},
    {"aten::zeros_like", like<1, 5>},
    {"aten::ones_like", like<1, 5>},
    {"aten::full_like", like<2, 6>},
    {"aten::rand_like", like<1, 5, kFloating>},
    {"aten::randn_like", like<1, 5, kFloating>},
    {"aten::empty.memory_format", empty},
    {"aten::zeros", sized<1>},
    {"aten::ones", sized<1>},
    {"aten::rand", sized<1, kFloating>},
    {"aten::eye", eye<1>},
    {"aten::eye.m", eye<2>},
    {"aten::randint", randint<1>},
    {"aten::randint.low", randint<2>},
    {"aten::randint_like", like<2, 6, kNumber>},
    {"aten::randint_like.low_dtype", like<3, 7, kNumber>},
    {"aten::normal.Tensor_float", normal},
    {"aten::normal.float_Tensor", normal},
    {"aten::normal.Tensor_Tensor", normal},
    {"aten::normal.float_float", normal_sized},
    {"aten::poisson", poisson},
    {"aten::randperm", randperm},
    {"aten::randn", sized<1, kFloating>},
    {"aten::full", full},
    {"aten::new_empty", new_sized<2>},
    {"aten::new_zeros", new_sized<2>},
    {"aten::new_ones", new_sized<2>},
    {"aten::new_full", new_sized<3>},
    {"aten::new_empty_strided", new_empty_strided},
    {"aten::scalar_tensor", scalar_tensor},
    {"aten::arange", arange},
    {"aten::arange.start", arange_from},
    {"aten::arange.start_step", arange_by},
    {"aten::cat", cat},
    {"aten::stack", stack},
    {"aten::block_diag", block_diag},
    {"aten::repeat", repeat},
    {"aten::constant_pad_nd", constant_pad},
};

}  // namespace

Rows copy_rules() { return kCopyRules; }

}  // namespace magneto::record::rules
