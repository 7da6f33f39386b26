// How coordinates change with views.
#include "codegen/index.h"

#include <algorithm>

#include "runtime/errors.h"

namespace magneto::codegen {

int64_t product(c10::IntArrayRef sizes) {
  int64_t result = 1;
  for (int64_t size : sizes) result *= size;
  return result;
}

namespace {

// "(x / 56)" steps of 56 and "(x % 56)" single ones are x.
void join_quotients(std::vector<Term>& terms) {
  auto whole_of = [](const Term& quotient, const Term& rest) -> std::string {
    size_t sign = rest.text.rfind(" % ");
    if (sign == std::string::npos || rest.text.back() != ')' || quotient.varies != rest.varies) return "";
    std::string whole = rest.text.substr(1, sign - 1), size = rest.text.substr(sign + 3, rest.text.size() - sign - 4);
    bool fits = quotient.text == "(" + whole + " / " + size + ")" && quotient.factor == rest.factor * std::stoll(size);
    return fits ? whole : "";
  };
  for (size_t i = terms.size(); i-- > 0;) {
    for (size_t k = 0; k < terms.size(); ++k) {
      std::string whole = k == i ? "" : whole_of(terms[k], terms[i]);
      if (whole.empty()) continue;
      terms[i].text = std::move(whole);
      terms.erase(terms.begin() + static_cast<long>(k));
      i = terms.size();  // what came out may be a rest itself
      break;
    }
  }
}

}  // namespace

std::string Index::Run::number() const {
  if (step == 1 && start == 0) return text;
  std::string scaled = step == 1 ? text : text + " * " + std::to_string(step);
  return "(" + scaled + (start < 0 ? " - " : " + ") + std::to_string(std::abs(start)) + ")";
}

Index Index::at(c10::IntArrayRef rows, c10::IntArrayRef columns) {
  Index index;
  if (!rows.empty()) index.runs_.push_back({kRow, false, Sizes(rows)});
  if (!columns.empty()) index.runs_.push_back({kColumn, true, Sizes(columns)});
  return index;
}

Sizes Index::sizes() const {
  Sizes result;
  for (const Run& run : runs_) result.append(run.sizes.begin(), run.sizes.end());
  return result;
}

void Index::cut(size_t run, size_t at) {
  Run& first = runs_[run];
  Run second{first.text, first.varies, Sizes(first.sizes.begin() + static_cast<long>(at), first.sizes.end())};
  first.sizes.resize(at);
  int64_t tail = product(second.sizes);
  if (product(first.sizes) == 1) {
    first.text = "0";
    first.varies = false;
  } else if (tail == 1) {
    second.text = "0";
    second.varies = false;
  } else {
    second.text = "(" + first.text + " % " + std::to_string(tail) + ")";
    first.text = "(" + first.text + " / " + std::to_string(tail) + ")";
  }
  runs_.insert(runs_.begin() + static_cast<long>(run) + 1, std::move(second));
}

size_t Index::separate(size_t dimension) {
  size_t run = 0, before = 0;
  while (before + runs_[run].sizes.size() <= dimension) before += runs_[run++].sizes.size();
  if (before < dimension) {
    cut(run++, dimension - before);
  }
  if (runs_[run].sizes.size() > 1) cut(run, 1);
  return run;
}

// Runs that the new dimensions do not fit into are counted as one.
void Index::reshape(c10::IntArrayRef sizes) {
  std::vector<Run> runs;
  size_t next = 0;
  for (size_t i = 0; i < runs_.size(); ++i) {
    Run run = std::move(runs_[i]);
    int64_t here = product(run.sizes);
    if (here == 1) continue;
    run.text = run.number();
    run.step = 1, run.start = 0;
    Sizes taken;
    int64_t there = 1;
    while (there != here) {
      if (there < here && next < sizes.size()) {
        there *= sizes[next];
        taken.push_back(sizes[next++]);
        continue;
      }
      MAGNETO_ASSERT(i + 1 < runs_.size());
      if (there > here && here % (there / taken.back()) == 0) {  // some of the new dimensions do fit
        --next;
        there /= taken.back();
        taken.pop_back();
        if (there > 1) {
          std::string tail = std::to_string(here / there);
          runs.push_back({"(" + run.text + " / " + tail + ")", run.varies, std::move(taken)});
          run.text = "(" + run.text + " % " + tail + ")";
          here /= there;
          there = 1;
          taken.clear();
        }
      }
      Run& other = runs_[++i];
      int64_t count = product(other.sizes);
      if (count == 1) continue;
      run.text = "(" + run.text + " * " + std::to_string(count) + " + " + other.number() + ")";
      run.varies |= other.varies;
      here *= count;
    }
    run.sizes = std::move(taken);
    runs.push_back(std::move(run));
  }
  if (next < sizes.size()) runs.push_back({"0", false, Sizes(sizes.begin() + static_cast<long>(next), sizes.end())});
  runs_ = std::move(runs);
}

void Index::permute(c10::IntArrayRef order) {
  bool stays = true;
  for (size_t i = 0; i < order.size(); ++i) stays &= order[i] == static_cast<int64_t>(i);
  if (stays) return;
  for (size_t i = 0; i < order.size(); ++i) separate(i);
  std::vector<Run> runs(runs_.size());
  for (size_t i = 0; i < order.size(); ++i) runs[static_cast<size_t>(order[i])] = std::move(runs_[i]);
  runs_ = std::move(runs);
}

void Index::move(size_t dimension, int64_t step, int64_t start, int64_t size) {
  Run& run = runs_[separate(dimension)];
  run.start = run.start * step + start;
  run.step *= step;
  run.sizes[0] = size;
}

void Index::insert(size_t dimension, int64_t coordinate, int64_t size) {
  size_t run = dimension < sizes().size() ? separate(dimension) : runs_.size();
  runs_.insert(runs_.begin() + static_cast<long>(run), {std::to_string(coordinate), false, Sizes{size}});
}

void Index::broadcast(c10::IntArrayRef to) {
  Sizes from = sizes();
  size_t extra = from.size() - to.size();
  for (size_t i = 0; i < to.size(); ++i) {
    if (to[i] != from[extra + i]) runs_[separate(extra + i)] = {"0", false, Sizes{1}};
  }
  for (size_t dropped = 0; dropped < extra;) {
    size_t here = runs_.front().sizes.size();
    if (dropped + here > extra) cut(0, here = extra - dropped);
    runs_.erase(runs_.begin());
    dropped += here;
  }
}

std::string Index::coordinate(size_t dimension) { return runs_[separate(dimension)].number(); }

void Index::set(size_t dimension, std::string text, int64_t size) {
  Run& run = runs_[separate(dimension)];
  run = {std::move(text), run.varies, Sizes{size}};
}

bool Index::varies() const {
  return std::any_of(runs_.begin(), runs_.end(), [](const Run& run) { return run.varies; });
}

bool Index::is_row(int64_t rows) const {
  bool found = rows == 1;
  for (const Run& run : runs_) {
    if (product(run.sizes) == 1) continue;
    if (found || run.text != kRow || run.step != 1 || run.start != 0) return false;
    found = true;
  }
  return found;
}

Offset Index::offset(c10::IntArrayRef strides) {
  // Dimensions that do not follow each other in memory are taken apart.
  for (size_t run = 0, before = 0; run < runs_.size(); before += runs_[run++].sizes.size()) {
    const Sizes& sizes = runs_[run].sizes;
    for (size_t k = 0, last = sizes.size(); k < sizes.size(); ++k) {
      if (sizes[k] == 1) continue;
      if (last < sizes.size() && strides[before + last] != strides[before + k] * sizes[k]) {
        cut(run, k);
        break;
      }
      last = k;
    }
  }
  Offset offset;
  size_t dimension = 0;
  for (const Run& run : runs_) {
    // The stride of the last dimension that is more than one.
    int64_t stride = 0;
    for (size_t k = 0; k < run.sizes.size(); ++k, ++dimension) {
      if (run.sizes[k] != 1) stride = strides[dimension];
    }
    if (run.sizes.size() == 1) stride = strides[dimension - 1];
    offset.constant += run.start * stride;
    if (run.text != "0" && stride) offset.terms.push_back({run.text, run.step * stride, run.varies});
  }
  join_quotients(offset.terms);
  return offset;
}

// Dimensions of one element do not count.
std::string Index::key() const {
  std::string key;
  for (const Run& run : runs_) {
    if (product(run.sizes) == 1) continue;
    key += run.number();
    for (int64_t size : run.sizes) {
      if (size != 1) key += "," + std::to_string(size);
    }
    key += ";";
  }
  return key;
}

}  // namespace magneto::codegen
