// Draws graphs: as DOT, and as SVG with a small layered layout of its own.
//
// Parameters, buffers and constants are named in the operators that use them, as edges to them would hide the flow.
// Ranks are longest paths. An edge over several ranks passes through one point in each, which takes part in the
// ordering, so it runs around the boxes between; one over more than kLongest ranks would drag points through half the
// picture and ends in its name instead, which keeps the work linear in the number of operators.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "graph/graph.h"
#include "graph/text.h"

namespace magneto::graph {
namespace {

struct Node {
  std::vector<std::string> lines;
  std::string tip;
  const char* fill = "#ffffff";
  bool is_argument = false;
  size_t rank = 0;
  double x = 0, y = 0, width = 0, height = 0;  // x, y: the centre
};

struct Edge {
  size_t from, to;
  ValueId value;
};

// Operators and arguments, and which uses which.
struct Picture {
  std::vector<Node> nodes;
  std::vector<Edge> edges;
};

constexpr const char* kArgumentFill = "#d9ead3";
constexpr const char* kReturnFill = "#d9d2e9";
constexpr const char* kWriteFill = "#fce5cd";
constexpr const char* kViewFill = "#eeeeee";
constexpr const char* kOpFill = "#dbe8f6";

std::string shortened(const std::string& text) {
  constexpr size_t kMost = 56;
  if (text.size() <= kMost) return text;
  size_t end = kMost - 3;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;  // not inside a UTF-8 character
  return text.substr(0, end) + "...";
}

Picture picture_of(const Graph& graph) {
  Picture picture;
  constexpr size_t kNoNode = SIZE_MAX;
  std::vector<size_t> maker(graph.values.size(), kNoNode);  // the last node that made or returned the value
  for (ValueId id : graph.inputs) {
    const Value& value = graph.values[id];
    std::string name = value.name.empty() ? "%" + std::to_string(id) : value.name;
    maker[id] = picture.nodes.size();
    picture.nodes.push_back({{shortened(name), to_text(value)}, "argument " + name, kArgumentFill, true});
  }
  auto connect = [&](ValueId id) {
    if (maker[id] == kNoNode) return;
    Edge edge{maker[id], picture.nodes.size() - 1, id};
    bool known = !picture.edges.empty() && picture.edges.back().from == edge.from && picture.edges.back().to == edge.to;
    if (!known) picture.edges.push_back(edge);
  };
  for (const Op& op : graph.ops) {
    OpWords words = op_words(graph, op);
    const char* fill = op.info->writes ? kWriteFill : op.info->returns_view ? kViewFill : kOpFill;
    Node node{{words.name}, to_text(graph, op), fill};
    if (!words.arguments.empty()) node.lines.push_back(shortened(words.arguments));
    if (!words.results.empty()) node.lines.push_back(shortened(words.results));
    picture.nodes.push_back(std::move(node));
    for (const TensorRef& tensor : op.tensors) connect(tensor.value);
    for (const TensorRef& result : op.results) maker[result.value] = picture.nodes.size() - 1;
  }
  picture.nodes.push_back({{"return"}, "return", kReturnFill});
  for (ValueId output : graph.outputs) connect(output);
  return picture;
}

// ---- layout

class Layout {
 public:
  explicit Layout(const Picture& picture) : nodes_(picture.nodes), boxes_(picture.nodes.size()) {
    measure();
    rank(picture.edges);
    route(picture.edges);
    order();
    place();
  }

  static constexpr size_t kLongest = 10;
  static constexpr double kLetter = 6.65, kLine = 14, kPadding = 8, kGap = 18, kRankGap = 30;

  const std::vector<Node>& nodes() const { return nodes_; }
  size_t boxes() const { return boxes_; }
  // Points from the top to the bottom: a box, places on the way, a box.
  const std::vector<std::vector<size_t>>& routes() const { return routes_; }
  const std::vector<Edge>& cut() const { return cut_; }
  double width() const { return width_; }
  double height() const { return height_; }

 private:
  using Links = std::vector<std::vector<size_t>>;

  void measure() {
    for (Node& node : nodes_) {
      size_t longest = 0;
      for (const std::string& line : node.lines) longest = std::max(longest, line.size());
      node.width = static_cast<double>(longest) * kLetter + 2 * kPadding;
      node.height = static_cast<double>(node.lines.size()) * kLine + kPadding;
    }
  }

  // Edges lead from earlier nodes to later ones.
  void rank(const std::vector<Edge>& edges) {
    std::vector<bool> depends(nodes_.size(), false);  // on an argument
    Links uses(nodes_.size());
    for (const Edge& edge : edges) {
      nodes_[edge.to].rank = std::max(nodes_[edge.to].rank, nodes_[edge.from].rank + 1);
      depends[edge.to] = depends[edge.to] || depends[edge.from] || nodes_[edge.from].is_argument;
      uses[edge.from].push_back(edge.to);
    }
    // Arguments, and what is made of state alone, stand just above their first use.
    for (size_t i = nodes_.size(); i-- > 0;) {
      if (depends[i] || uses[i].empty()) continue;
      size_t first = SIZE_MAX;
      for (size_t use : uses[i]) first = std::min(first, nodes_[use].rank);
      nodes_[i].rank = first - 1;
    }
    for (size_t i = 0; i + 1 < nodes_.size(); ++i) {
      nodes_.back().rank = std::max(nodes_.back().rank, nodes_[i].rank + 1);
    }
  }

  void route(const std::vector<Edge>& edges) {
    for (const Edge& edge : edges) {
      size_t span = nodes_[edge.to].rank - nodes_[edge.from].rank;
      if (span > kLongest) {
        cut_.push_back(edge);
        continue;
      }
      std::vector<size_t> points{edge.from};
      for (size_t step = 1; step < span; ++step) {
        points.push_back(nodes_.size());
        Node point;
        point.rank = nodes_[edge.from].rank + step;
        nodes_.push_back(point);
      }
      points.push_back(edge.to);
      routes_.push_back(std::move(points));
    }
    above_.resize(nodes_.size());
    below_.resize(nodes_.size());
    for (const auto& points : routes_) {
      for (size_t i = 1; i < points.size(); ++i) {
        below_[points[i - 1]].push_back(points[i]);
        above_[points[i]].push_back(points[i - 1]);
      }
    }
    ranks_.resize(nodes_[boxes_ - 1].rank + 1);
    for (size_t i = 0; i < nodes_.size(); ++i) ranks_[nodes_[i].rank].push_back(i);
  }

  // Sorts each rank by where its neighbours stand, downwards and upwards in turn.
  void order() {
    std::vector<double> position(nodes_.size());
    auto note = [&](const std::vector<size_t>& rank) {
      for (size_t i = 0; i < rank.size(); ++i) position[rank[i]] = static_cast<double>(i);
    };
    for (const auto& rank : ranks_) note(rank);
    auto sort = [&](std::vector<size_t>& rank, const Links& links) {
      std::vector<std::pair<double, size_t>> keyed;
      for (size_t node : rank) {
        double sum = 0;
        for (size_t other : links[node]) sum += position[other];
        keyed.emplace_back(links[node].empty() ? position[node] : sum / static_cast<double>(links[node].size()), node);
      }
      std::stable_sort(keyed.begin(), keyed.end(), [](auto& a, auto& b) { return a.first < b.first; });
      for (size_t i = 0; i < rank.size(); ++i) rank[i] = keyed[i].second;
      note(rank);
    };
    constexpr int kSweeps = 4;
    for (int sweep = 0; sweep < kSweeps; ++sweep) {
      for (auto& rank : ranks_) sort(rank, above_);
      for (size_t r = ranks_.size(); r-- > 0;) sort(ranks_[r], below_);
    }
  }

  // Each node wants to stand in the middle of its neighbours. Packing from the left and packing from the right both
  // keep the order and the distances, and so does the mean of the two.
  void settle(const std::vector<size_t>& rank, const Links& links) {
    std::vector<double> wish, left, right(rank.size());
    for (size_t node : rank) {
      double sum = 0;
      for (size_t other : links[node]) sum += nodes_[other].x;
      wish.push_back(links[node].empty() ? nodes_[node].x : sum / static_cast<double>(links[node].size()));
    }
    auto distance = [&](size_t i) { return (nodes_[rank[i]].width + nodes_[rank[i + 1]].width) / 2 + kGap; };
    for (size_t i = 0; i < rank.size(); ++i)
      left.push_back(i ? std::max(wish[i], left[i - 1] + distance(i - 1)) : wish[i]);
    for (size_t i = rank.size(); i-- > 0;) {
      right[i] = i + 1 < rank.size() ? std::min(wish[i], right[i + 1] - distance(i)) : wish[i];
    }
    for (size_t i = 0; i < rank.size(); ++i) nodes_[rank[i]].x = (left[i] + right[i]) / 2;
  }

  void place() {
    constexpr int kSweeps = 6;
    for (const auto& rank : ranks_) settle(rank, above_);
    for (int sweep = 0; sweep < kSweeps; ++sweep) {
      for (size_t r = ranks_.size(); r-- > 0;) settle(ranks_[r], below_);
      for (const auto& rank : ranks_) settle(rank, above_);
    }
    double first = 0;
    for (const Node& node : nodes_) first = std::min(first, node.x - node.width / 2);
    for (Node& node : nodes_) {
      node.x += kGap - first;
      width_ = std::max(width_, node.x + node.width / 2 + kGap);
    }
    double y = kGap;
    for (const auto& rank : ranks_) {
      double tallest = 0;
      for (size_t node : rank) tallest = std::max(tallest, nodes_[node].height);
      for (size_t node : rank) {
        nodes_[node].y = y + tallest / 2;
        if (node >= boxes_) nodes_[node].height = tallest;  // an edge runs straight down beside the boxes of a rank
      }
      y += tallest + kRankGap;
    }
    height_ = y - kRankGap + kGap;
  }

  std::vector<Node> nodes_;  // boxes, then the points of edges
  const size_t boxes_;
  std::vector<std::vector<size_t>> routes_;
  std::vector<Edge> cut_;
  Links above_, below_, ranks_;
  double width_ = 0, height_ = 0;
};

// ---- output

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

std::string for_xml(const std::string& text) {
  std::string result;
  for (char c : text) {
    switch (c) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '"': result += "&quot;"; break;
      default: result += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
    }
  }
  return result;
}

std::string for_dot(const std::string& text) {
  std::string result;
  for (char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return result;
}

std::string box(const Node& node) {
  std::string svg = "<g><title>" + for_xml(node.tip) + "</title><rect x=\"" + number(node.x - node.width / 2) +
                    "\" y=\"" + number(node.y - node.height / 2) + "\" width=\"" + number(node.width) + "\" height=\"" +
                    number(node.height) + "\" fill=\"" + node.fill + "\"/>";
  double y = node.y - node.height / 2 + Layout::kPadding / 2 + 11;
  for (size_t i = 0; i < node.lines.size(); ++i, y += Layout::kLine) {
    svg += std::string("<text") + (i == 0 ? " class=\"name\"" : "") + " x=\"" + number(node.x) + "\" y=\"" + number(y) +
           "\">" + for_xml(node.lines[i]) + "</text>";
  }
  return svg + "</g>\n";
}

std::string curve(const Layout& layout, const std::vector<size_t>& points) {
  const auto& nodes = layout.nodes();
  auto top = [&](size_t i) { return nodes[i].y - nodes[i].height / 2; };
  auto bottom = [&](size_t i) { return nodes[i].y + nodes[i].height / 2; };
  std::string path = "M" + number(nodes[points[0]].x) + " " + number(bottom(points[0]));
  for (size_t i = 1; i < points.size(); ++i) {
    const Node &from = nodes[points[i - 1]], &to = nodes[points[i]];
    double middle = (bottom(points[i - 1]) + top(points[i])) / 2;
    path += "C" + number(from.x) + " " + number(middle) + " " + number(to.x) + " " + number(middle) + " " +
            number(to.x) + " " + number(top(points[i]));
    if (i + 1 < points.size()) path += "V" + number(bottom(points[i]));
  }
  return "<path d=\"" + path + "\" marker-end=\"url(#tip)\"/>\n";
}

// The end of an edge that comes from far away.
std::string stub(const Node& to, const std::string& name, size_t index) {
  double x = to.x - to.width / 2 + Layout::kPadding + 24 * static_cast<double>(index);
  double y = to.y - to.height / 2;
  return "<path d=\"M" + number(x) + " " + number(y - 10) + "V" + number(y) +
         "\" marker-end=\"url(#tip)\"/><text class=\"far\" x=\"" + number(x) + "\" y=\"" + number(y - 12) + "\">" +
         for_xml(name) + "</text>\n";
}

std::string name_of(const Graph& graph, ValueId id) {
  const std::string& name = graph.values[id].name;
  return name.empty() ? "%" + std::to_string(id) : name;
}

}  // namespace

std::string to_dot(const Graph& graph) {
  Picture picture = picture_of(graph);
  std::string dot =
      "digraph magneto {\n  node [shape=box, style=filled, fontname=monospace, fontsize=10];\n"
      "  edge [fontname=monospace, fontsize=9];\n";
  for (size_t i = 0; i < picture.nodes.size(); ++i) {
    const Node& node = picture.nodes[i];
    std::string label;
    for (const std::string& line : node.lines) label += (label.empty() ? "" : "\\n") + for_dot(line);
    dot += "  n" + std::to_string(i) + " [label=\"" + label + "\", tooltip=\"" + for_dot(node.tip) +
           "\", fillcolor=\"" + node.fill + "\"];\n";
  }
  for (const Edge& edge : picture.edges) {
    dot += "  n" + std::to_string(edge.from) + " -> n" + std::to_string(edge.to) + " [label=\"" +
           for_dot(name_of(graph, edge.value)) + "\"];\n";
  }
  return dot + "}\n";
}

std::string to_svg(const Graph& graph) {
  Layout layout(picture_of(graph));
  std::string width = number(layout.width()), height = number(layout.height());
  std::string svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + width + "\" height=\"" + height +
                    "\" viewBox=\"0 0 " + width + " " + height +
                    "\">\n<style>text{font:11px monospace;text-anchor:middle;fill:#222}.name{font-weight:bold}"
                    ".far{font-size:9px;fill:#777}rect{stroke:#666;rx:4px}path{fill:none;stroke:#888}"
                    "#tip path{fill:#888;stroke:none}g:hover rect{stroke:#000;stroke-width:2}</style>\n"
                    "<defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" "
                    "markerHeight=\"7\" orient=\"auto\"><path d=\"M0 0L8 4L0 8z\"/></marker></defs>\n"
                    "<rect width=\"100%\" height=\"100%\" style=\"fill:#fff;stroke:none\"/>\n";
  for (const auto& points : layout.routes()) svg += curve(layout, points);
  size_t index = 0, last = SIZE_MAX;
  for (const Edge& edge : layout.cut()) {
    index = edge.to == last ? index + 1 : 0;
    last = edge.to;
    svg += stub(layout.nodes()[edge.to], name_of(graph, edge.value), index);
  }
  for (size_t i = 0; i < layout.boxes(); ++i) svg += box(layout.nodes()[i]);
  return svg + "</svg>\n";
}

}  // namespace magneto::graph
