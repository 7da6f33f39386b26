// A place in the text of a graph, and the words there.
#pragma once
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "graph/text.h"
#include "runtime/errors.h"

namespace magneto::graph {

class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) {}

  [[noreturn]] void fail(const std::string& what, size_t at) const {
    std::string_view before = text_.substr(0, at);
    size_t line = 1 + static_cast<size_t>(std::count(before.begin(), before.end(), '\n'));
    size_t start = before.rfind('\n') + 1;  // npos + 1 is 0
    throw UserError("graph text, line " + std::to_string(line) + ", column " + std::to_string(at - start + 1) + ": " +
                    what);
  }
  [[noreturn]] void fail(const std::string& what) const { fail(what, at_); }
  [[noreturn]] void expected(const std::string& what) const {
    std::string_view rest = text_.substr(at_, text_.find('\n', at_) - at_);
    constexpr size_t kShown = 20;
    std::string found = rest.empty() ? "the end of the line" : in_quotes(rest.substr(0, kShown));
    fail("expected " + what + ", found " + found);
  }

  size_t at() const { return at_; }
  void go_to(size_t at) { at_ = at; }
  bool at_end() const { return at_ == text_.size(); }
  char peek() const { return at_end() ? '\0' : text_[at_]; }
  void skip_spaces() {
    while (peek() == ' ' || peek() == '\t' || peek() == '\r') ++at_;
  }

  // Takes `token` if it comes next; a word must end there.
  bool take(std::string_view token) {
    skip_spaces();
    if (text_.substr(at_, token.size()) != token) return false;
    if (is_word(token.back()) && is_word(at_ + token.size() < text_.size() ? text_[at_ + token.size()] : ' ')) {
      return false;
    }
    at_ += token.size();
    return true;
  }
  bool take_letters(std::string_view letters) {
    if (text_.substr(at_, letters.size()) != letters) return false;
    at_ += letters.size();
    return true;
  }
  void need(std::string_view token, const char* what) {
    if (!take(token)) expected(what);
  }

  template <typename Accept>
  std::string_view run_of(Accept accept) {
    skip_spaces();
    size_t start = at_;
    while (!at_end() && accept(text_[at_])) ++at_;
    return text_.substr(start, at_ - start);
  }
  std::string_view word() { return run_of(is_word); }
  std::string_view line_rest() {
    return run_of([](char c) { return c != '\n'; });
  }

  int64_t integer(const char* what) {
    skip_spaces();
    int64_t number = 0;
    auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), number);
    if (error == std::errc::result_out_of_range) fail("expected an integer of 64 bits");
    if (error != std::errc()) expected(what);
    at_ = static_cast<size_t>(end - text_.data());
    return number;
  }

  std::string string() {
    need("'", "a string in single quotes");
    std::string result;
    while (peek() != '\'') {
      if (at_end() || peek() == '\n') expected("the closing quote");
      auto c = character();
      if (!c) expected("n, \\, ' or x and two hexadecimal digits behind \\");
      result += *c;
    }
    ++at_;
    return result;
  }

  // One that may be escaped; none if it is escaped in an unknown way.
  std::optional<char> character() {
    char c = text_[at_++];
    if (c != '\\') return c;
    char kind = peek();
    if (kind == 'n' || kind == '\\' || kind == '\'') return ++at_, kind == 'n' ? '\n' : kind;
    unsigned code = 0;
    const char* digits = text_.data() + at_ + 1;
    if (kind == 'x' && text_.size() - at_ > 2 && std::from_chars(digits, digits + 2, code, 16).ptr == digits + 2) {
      at_ += 3;
      return static_cast<char>(code);
    }
    return std::nullopt;
  }

  std::string_view slice(size_t from, size_t to) const { return text_.substr(from, to - from); }
  size_t length() const { return text_.size(); }

 private:
  static bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace magneto::graph
