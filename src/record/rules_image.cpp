// Rules for what is done to images (and sequences, and volumes) as grids: resizing, padding, sampling, patches.
//
// Where a GPU has kernels of its own, with layouts of their own, the rules are for the CPU only.
#include "record/rules_common.h"

namespace magneto::record::rules {
namespace {

// [batch, channels, ...] with this many dimensions behind.
bool is_grid(const at::Tensor& tensor, size_t spatial) {
  return is(tensor.scalar_type(), kFloating) && tensor.dim() == static_cast<int64_t>(spatial) + 2 &&
         product(tensor.sym_sizes()) != 0;
}

enum class Looks : uint8_t { Contiguous, AsInput };

// In the layout that `like` looks like.
at::Tensor make_as(const at::Tensor& like, SymIntArrayRef sizes) {
  return make_in(suggested_format(like), sizes, like.scalar_type(), like.device());
}

bool all_positive(SymIntArrayRef sizes) {
  return std::all_of(sizes.begin(), sizes.end(), [](const SymInt& size) { return size > 0; });
}

// --- Resizing ---

// (self, output_size, ...)
template <size_t spatial>
bool upsample(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  Sizes to = sizes_of(args[1]), sizes(self.sym_sizes());
  if (!is_grid(self, spatial) || to.size() != spatial || !all_positive(to)) return false;
  std::copy(to.begin(), to.end(), sizes.begin() + 2);
  return give(results, make_as(self, sizes));
}

// (grad_output, output_size, input_size, ...)
template <size_t spatial, Looks looks = Looks::AsInput>
bool upsample_backward(Args args, Stack& results) {
  const at::Tensor& gradient = args[0].toTensor();
  Sizes sizes = sizes_of(args[2]);
  return is_grid(gradient, spatial) && sizes.size() == spatial + 2 && all_positive(sizes) &&
         give(results, looks == Looks::AsInput ? make_as(gradient, sizes) : make_for(gradient, sizes));
}

// The channels, height and width of (self, factor) after pixels went to channels (`apart`) or back.
bool shuffle_pixels(Args args, bool apart, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  const int64_t factor = args[1].toInt();
  if (!self.is_cpu() || self.dim() < 3 || factor <= 0) return false;
  if (!is(self.scalar_type(), kAny) || product(self.sym_sizes()) == 0) return false;
  Sizes sizes(self.sym_sizes());
  SymInt &channels = sizes[sizes.size() - 3], &height = sizes[sizes.size() - 2], &width = sizes[sizes.size() - 1];
  if (apart) {
    if (height % factor != 0 || width % factor != 0) return false;
    channels = channels * (factor * factor);
    height = height / factor;
    width = width / factor;
  } else {
    if (channels % (factor * factor) != 0) return false;
    channels = channels / (factor * factor);
    height = height * factor;
    width = width * factor;
  }
  return give(results, make_as(self, sizes));
}

bool pixel_shuffle(Args args, Stack& results) { return shuffle_pixels(args, /*apart=*/false, results); }
bool pixel_unshuffle(Args args, Stack& results) { return shuffle_pixels(args, /*apart=*/true, results); }

// (self, groups)
bool channel_shuffle(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  const int64_t groups = args[1].toInt();
  if (!self.is_cpu() || self.dim() < 3 || groups <= 0) return false;
  if (!is(self.scalar_type(), kFloating) || product(self.sym_sizes()) == 0) return false;
  return self.sym_size(1) % groups == 0 && give(results, make_as(self, self.sym_sizes()));
}

// --- Padding with what is there ---

enum class Edge : uint8_t { Mirrored, Repeated };

// (self, padding), from the last dimension on; a batch may be missing.
template <size_t spatial, Edge edge>
bool pad(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  Sizes by = sizes_of(args[1]), sizes(self.sym_sizes());
  if (by.size() != 2 * spatial || sizes.size() < spatial + 1 || sizes.size() > spatial + 2) return false;
  if (!self.is_cpu() || !is(self.scalar_type(), kFloating) || product(self.sym_sizes()) == 0) return false;
  for (size_t i = 0; i < by.size(); ++i) {
    SymInt& size = sizes[sizes.size() - 1 - i / 2];
    if (by[i] < 0 || (edge == Edge::Mirrored && by[i] >= self.sym_size(-1 - static_cast<int64_t>(i / 2)))) return false;
    size += by[i];
  }
  return give(results, spatial == 1 ? make_for(self, sizes) : make_as(self, sizes));
}

// (grad_output, self, padding)
template <size_t spatial>
bool pad_backward(Args args, Stack& results) {
  const at::Tensor& self = args[1].toTensor();
  if (!self.is_cpu() || !is(self.scalar_type(), kFloating)) return false;
  if (args[0].toTensor().scalar_type() != self.scalar_type()) return false;
  return give(results, spatial == 1 ? make_for(self, self.sym_sizes()) : make_as(self, self.sym_sizes()));
}

// --- Sampling ---

// Points of a grid are vectors in its last dimension.
bool is_grid_of_points(const at::Tensor& input, const at::Tensor& grid, size_t spatial) {
  return input.is_cpu() && is_grid(input, spatial) && grid.dim() == input.dim() &&
         grid.scalar_type() == input.scalar_type() && grid.sym_size(0) == input.sym_size(0) &&
         grid.sym_size(-1) == static_cast<int64_t>(spatial);
}

// (input, grid, ...)
template <size_t spatial>
bool grid_sample(Args args, Stack& results) {
  const at::Tensor &input = args[0].toTensor(), &grid = args[1].toTensor();
  if (!is_grid_of_points(input, grid, spatial)) return false;
  Sizes sizes(input.sym_sizes());
  for (size_t i = 0; i < spatial; ++i) sizes[2 + i] = grid.sym_size(static_cast<int64_t>(1 + i));
  return give(results, make_for(input, sizes));
}

// (grad_output, input, grid, interpolation_mode, padding_mode, align_corners, output_mask)
template <size_t spatial>
bool grid_sample_backward(Args args, Stack& results) {
  const at::Tensor &input = args[1].toTensor(), &grid = args[2].toTensor();
  if (!is_grid_of_points(input, grid, spatial)) return false;
  bool wanted = args[6].toBoolList()[0];
  return give(results, wanted ? make_for(input, input.sym_sizes()) : at::Tensor(), make_for(grid, grid.sym_sizes()));
}

// --- Patches ---

// How often a window fits, along height and width.
struct Windows {
  Windows(const SymInt& height, const SymInt& width, const c10::IValue& kernel, const c10::IValue& dilation,
          const c10::IValue& padding, const c10::IValue& stride)
      : size(sizes_of(kernel)) {
    Sizes apart = sizes_of(dilation), edge = sizes_of(padding), step = sizes_of(stride), from = {height, width};
    valid = size.size() == 2 && apart.size() == 2 && edge.size() == 2 && step.size() == 2 && all_positive(size) &&
            all_positive(apart) && all_positive(step);
    count = 1;
    for (size_t i = 0; valid && i < 2; ++i) {
      SymInt free = from[i] + edge[i] * 2 - apart[i] * (size[i] - 1) - 1;
      valid = edge[i] >= 0 && free >= 0;
      count = count * (free / step[i] + 1);
    }
  }

  Sizes size;
  SymInt count;
  bool valid;
};

// (self, kernel_size, dilation, padding, stride)
bool im2col(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  if (!is_grid(self, 2)) return false;
  Windows windows(self.sym_size(2), self.sym_size(3), args[1], args[2], args[3], args[4]);
  if (!windows.valid) return false;
  return give(results, make_for(self, {self.sym_size(0), self.sym_size(1) * product(windows.size), windows.count}));
}

// (self, output_size, kernel_size, dilation, padding, stride)
bool col2im(Args args, Stack& results) {
  const at::Tensor& self = args[0].toTensor();
  Sizes to = sizes_of(args[1]);
  if (!is_grid(self, 1) || to.size() != 2 || !all_positive(to)) return false;
  Windows windows(to[0], to[1], args[2], args[3], args[4], args[5]);
  if (!windows.valid || self.sym_size(2) != windows.count) return false;
  SymInt channels = self.sym_size(1), per_window = product(windows.size);
  return channels % per_window == 0 &&
         give(results, make_for(self, {self.sym_size(0), channels / per_window, to[0], to[1]}));
}

constexpr Row kImageRules[] = {
    {"aten::upsample_nearest1d", upsample<1>},
    {"aten::upsample_nearest2d", upsample<2>},
    {"aten::upsample_nearest3d", upsample<3>},
    {"aten::_upsample_nearest_exact1d", upsample<1>},
    {"aten::_upsample_nearest_exact2d", upsample<2>},
    {"aten::_upsample_nearest_exact3d", upsample<3>},
    {"aten::upsample_linear1d", upsample<1>},
    {"aten::upsample_bilinear2d", upsample<2>},
    {"aten::upsample_bicubic2d", upsample<2>},
    {"aten::upsample_trilinear3d", upsample<3>},
    {"aten::_upsample_bilinear2d_aa", upsample<2>},
    {"aten::_upsample_bicubic2d_aa", upsample<2>},
    {"aten::upsample_nearest1d_backward", upsample_backward<1>},
    {"aten::upsample_nearest2d_backward", upsample_backward<2>},
    {"aten::upsample_nearest3d_backward", upsample_backward<3, Looks::Contiguous>},
    {"aten::_upsample_nearest_exact1d_backward", upsample_backward<1>},
    {"aten::_upsample_nearest_exact2d_backward", upsample_backward<2>},
    {"aten::_upsample_nearest_exact3d_backward", upsample_backward<3, Looks::Contiguous>},
    {"aten::upsample_linear1d_backward", upsample_backward<1>},
    {"aten::upsample_bilinear2d_backward", upsample_backward<2>},
    {"aten::upsample_bicubic2d_backward", upsample_backward<2, Looks::Contiguous>},
    {"aten::upsample_trilinear3d_backward", upsample_backward<3>},
    {"aten::_upsample_bilinear2d_aa_backward", upsample_backward<2>},
    {"aten::_upsample_bicubic2d_aa_backward", upsample_backward<2, Looks::Contiguous>},
    {"aten::pixel_shuffle", pixel_shuffle},
    {"aten::pixel_unshuffle", pixel_unshuffle},
    {"aten::channel_shuffle", channel_shuffle},
    {"aten::reflection_pad1d", pad<1, Edge::Mirrored>},
    {"aten::reflection_pad2d", pad<2, Edge::Mirrored>},
    {"aten::reflection_pad3d", pad<3, Edge::Mirrored>},
    {"aten::replication_pad1d", pad<1, Edge::Repeated>},
    {"aten::replication_pad2d", pad<2, Edge::Repeated>},
    {"aten::replication_pad3d", pad<3, Edge::Repeated>},
    {"aten::reflection_pad1d_backward", pad_backward<1>},
    {"aten::reflection_pad2d_backward", pad_backward<2>},
    {"aten::reflection_pad3d_backward", pad_backward<3>},
    {"aten::replication_pad1d_backward", pad_backward<1>},
    {"aten::replication_pad2d_backward", pad_backward<2>},
    {"aten::replication_pad3d_backward", pad_backward<3>},
    {"aten::grid_sampler_2d", grid_sample<2>},
    {"aten::grid_sampler_3d", grid_sample<3>},
    {"aten::grid_sampler_2d_backward", grid_sample_backward<2>},
    {"aten::grid_sampler_3d_backward", grid_sample_backward<3>},
    {"aten::im2col", im2col},
    {"aten::col2im", col2im},
};

}  // namespace

Rows image_rules() { return kImageRules; }

}  // namespace magneto::record::rules
