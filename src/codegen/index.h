// Where in a tensor a kernel reads or writes: coordinates as texts of C.
#pragma once
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <string>
#include <vector>

namespace magneto::codegen {

using Sizes = c10::SmallVector<int64_t, 4>;

int64_t product(c10::IntArrayRef sizes);

// The variables that every kernel has: the row, and the column within it that a lane is at.
inline constexpr const char* kRow = "r";
inline constexpr const char* kColumn = "c";

// One summand of an offset in memory.
struct Term {
  std::string text;
  int64_t factor;
  bool varies;  // from column to column
};

struct Offset {
  std::vector<Term> terms;
  int64_t constant = 0;
};

// The coordinates of one element, in runs of dimensions: those of a run follow from one number by division. Neighbours
// stay together as long as nothing takes them apart, so that a reshaped tensor costs no division.
class Index {
 public:
  // The element in that row and column, counted in row-major order.
  static Index at(c10::IntArrayRef rows, c10::IntArrayRef columns);

  // Each takes the coordinates in what a view operator returns to those in what it was given.
  void reshape(c10::IntArrayRef sizes);
  void permute(c10::IntArrayRef order);  // dimension i is order[i] of the given one
  void move(size_t dimension, int64_t step, int64_t start, int64_t size);
  void insert(size_t dimension, int64_t coordinate, int64_t size);
  void broadcast(c10::IntArrayRef sizes);  // from the sizes that these were expanded to

  std::string coordinate(size_t dimension);
  void set(size_t dimension, std::string text, int64_t size);
  bool varies() const;
  bool is_row(int64_t rows) const;  // just the row, and nothing else
  Offset offset(c10::IntArrayRef strides);
  std::string key() const;

 private:
  struct Run {
    std::string text;
    bool varies;
    Sizes sizes;
    // Of a single dimension: its coordinate is text * step + start.
    int64_t step = 1, start = 0;

    std::string number() const;
  };

  size_t separate(size_t dimension);  // the run that holds this dimension alone
  void cut(size_t run, size_t at);
  Sizes sizes() const;

  std::vector<Run> runs_;
};

}  // namespace magneto::codegen
