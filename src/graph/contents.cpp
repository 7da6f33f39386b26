// How the elements of constants are taken out of memory and put back.
#include "graph/contents.h"

#include <ATen/Functions.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "graph/text.h"
#include "runtime/errors.h"

namespace magneto::graph {
namespace {

constexpr int64_t kMostInline = 16;
constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

// Calls visit(offset in elements) for each element in row-major order.
template <typename Visit>
void walk(c10::IntArrayRef sizes, c10::IntArrayRef strides, Visit visit) {
  c10::SmallVector<int64_t, 8> index(sizes.size(), 0);
  for (int64_t size : sizes) {
    if (size == 0) return;
  }
  for (int64_t offset = 0;;) {
    visit(offset);
    size_t d = sizes.size();
    while (d > 0) {
      --d;
      offset += strides[d];
      if (++index[d] < sizes[d]) break;
      offset -= strides[d] * sizes[d];
      index[d] = 0;
      if (d == 0) return;
    }
    if (sizes.empty()) return;
  }
}

template <typename T>
std::optional<std::string> element_text(const char* bytes) {
  T element;
  std::memcpy(&element, bytes, sizeof element);
  if constexpr (std::is_same_v<T, bool>) {
    return element ? "True" : "False";
  } else if constexpr (std::is_integral_v<T>) {
    return std::to_string(element);
  } else if constexpr (c10::is_complex<T>::value) {
    if (std::isnan(element.real()) || std::isnan(element.imag())) return std::nullopt;
    std::string imaginary = number_text(element.imag());
    return "(" + number_text(element.real()) + (imaginary[0] == '-' ? "" : "+") + imaginary + "j)";
  } else {
    if (std::isnan(static_cast<double>(element))) return std::nullopt;
    return number_text(element);
  }
}

template <typename T>
bool append_number(const c10::IValue& value, std::string& bytes) {
  T element{};
  if constexpr (std::is_same_v<T, bool>) {
    if (!value.isBool()) return false;
    element = value.toBool();
  } else if constexpr (std::is_integral_v<T>) {
    if (!value.isInt()) return false;
    int64_t number = value.toInt();
    if (number < std::numeric_limits<T>::min() || number > std::numeric_limits<T>::max()) return false;
    element = static_cast<T>(number);
  } else if constexpr (c10::is_complex<T>::value) {
    using Part = typename T::value_type;
    if (!value.isComplexDouble()) return false;
    auto number = value.toComplexDouble();
    element = T(static_cast<Part>(number.real()), static_cast<Part>(number.imag()));
  } else {
    if (!value.isDouble() && !value.isInt()) return false;
    double number = value.isInt() ? static_cast<double>(value.toInt()) : value.toDouble();
    if constexpr (std::is_same_v<T, double>) {
      element = number;
    } else {
      element = static_cast<T>(static_cast<float>(number));
    }
  }
  bytes.append(reinterpret_cast<const char*>(&element), sizeof element);
  return true;
}

// Calls visit with a value of the C++ type of `dtype`; `otherwise` for the types that have no numbers as text.
template <typename Result, typename Visit>
Result with_type(c10::ScalarType dtype, Result otherwise, Visit visit) {
  switch (dtype) {
    case c10::ScalarType::Bool: return visit(bool());
    case c10::ScalarType::Byte: return visit(uint8_t());
    case c10::ScalarType::Char: return visit(int8_t());
    case c10::ScalarType::Short: return visit(int16_t());
    case c10::ScalarType::Int: return visit(int32_t());
    case c10::ScalarType::Long: return visit(int64_t());
    case c10::ScalarType::Half: return visit(c10::Half());
    case c10::ScalarType::BFloat16: return visit(c10::BFloat16());
    case c10::ScalarType::Float: return visit(float());
    case c10::ScalarType::Double: return visit(double());
    case c10::ScalarType::ComplexFloat: return visit(c10::complex<float>());
    case c10::ScalarType::ComplexDouble: return visit(c10::complex<double>());
    default: return otherwise;
  }
}

}  // namespace

std::string element_bytes(const at::Tensor& tensor) {
  at::Tensor held = (tensor.device().is_cpu() ? tensor : tensor.cpu()).resolve_conj().resolve_neg();
  size_t width = held.element_size();
  std::string bytes;
  bytes.reserve(static_cast<size_t>(held.numel()) * width);
  const char* first = static_cast<const char*>(held.const_data_ptr());
  walk(held.sizes(), held.strides(),
       [&](int64_t offset) { bytes.append(first + offset * static_cast<int64_t>(width), width); });
  return bytes;
}

at::Tensor tensor_of_bytes(const Value& value, std::string_view bytes) {
  size_t width = c10::elementSize(value.dtype);
  int64_t count = 1, extent = 1;
  for (size_t d = 0; d < value.sizes.size(); ++d) {
    bool fits = !__builtin_mul_overflow(count, value.sizes[d], &count);
    int64_t reach = 0;
    fits = fits && !__builtin_mul_overflow(std::max<int64_t>(value.sizes[d] - 1, 0), value.strides[d], &reach);
    fits = fits && value.strides[d] >= 0 && !__builtin_add_overflow(extent, reach, &extent);
    if (!fits) throw UserError("expected the sizes and strides of a tensor");
  }
  if (bytes.size() / width != static_cast<size_t>(count) || bytes.size() % width != 0) {
    throw UserError("expected " + std::to_string(count) + " elements");
  }
  // Dense memory is filled whole; gaps between elements are zeros.
  constexpr int64_t kMostGaps = 1 << 20;
  if (count > 0 && extent / count > kMostGaps) throw UserError("expected strides with smaller gaps");
  auto options = at::TensorOptions().dtype(value.dtype);
  at::Tensor memory = at::zeros({count == 0 ? 0 : extent}, options);
  char* first = static_cast<char*>(memory.mutable_data_ptr());
  size_t next = 0;
  walk(value.sizes, value.strides, [&](int64_t offset) {
    std::memcpy(first + static_cast<size_t>(offset) * width, bytes.data() + next, width);
    next += width;
  });
  if (!value.device.is_cpu()) memory = memory.to(value.device);
  return memory.as_strided(value.sizes, value.strides);
}

std::string to_base64(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    size_t count = std::min<size_t>(3, bytes.size() - i);
    for (size_t k = 0; k < 3; ++k) group = group << 8 | (k < count ? static_cast<uint8_t>(bytes[i + k]) : 0u);
    for (size_t k = 0; k < 4; ++k) text += k <= count ? kDigits[group >> (18 - 6 * k) & 63] : '=';
  }
  return text;
}

std::optional<std::string> from_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  size_t end = text.size();
  while (end > 0 && text.size() - end < 2 && text[end - 1] == '=') --end;
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  uint32_t group = 0;
  int bits = 0;
  for (char c : text.substr(0, end)) {
    const char* digit = c ? std::strchr(kDigits, c) : nullptr;
    if (!digit) return std::nullopt;
    group = (group << 6 | static_cast<uint32_t>(digit - kDigits)) & 0xffffff;
    bits += 6;
    if (bits >= 8) bytes += static_cast<char>(group >> (bits -= 8) & 0xff);
  }
  return bytes;
}

std::optional<std::string> elements_text(const at::Tensor& tensor) {
  if (tensor.numel() > kMostInline) return std::nullopt;
  std::string bytes = element_bytes(tensor), text;
  size_t width = tensor.element_size();
  for (size_t i = 0; i < bytes.size(); i += width) {
    auto element = with_type(tensor.scalar_type(), std::optional<std::string>(),
                             [&](auto type) { return element_text<decltype(type)>(&bytes[i]); });
    if (!element) return std::nullopt;
    text += (i ? ", " : "") + *element;
  }
  return tensor.dim() == 0 ? text : "[" + text + "]";
}

bool append_element(c10::ScalarType dtype, const c10::IValue& element, std::string& bytes) {
  return with_type(dtype, false, [&](auto type) { return append_number<decltype(type)>(element, bytes); });
}

}  // namespace magneto::graph
