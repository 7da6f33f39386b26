// A very small unit-test frame: TEST(name) { CHECK(...); CHECK_EQ(a, b); } registers a case that run_units.py runs.
#pragma once
#include <Python.h>

#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace magneto::check {

struct Case {
  std::string name;  // "config.a_wrong_type_is_refused": the file, then the test
  std::function<void()> run;
};
std::vector<Case>& cases();

// Ends the case that is running.
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};
[[noreturn]] void fail(const char* file, int line, const std::string& what);

struct Register {
  Register(const char* file, const char* name, void (*run)());
};

template <class T>
std::string show(const T& value) {
  if constexpr (std::is_convertible_v<T, std::string_view>) {
    return '"' + std::string(std::string_view(value)) + '"';
  } else {
    std::ostringstream out;
    out << std::boolalpha << value;
    return out.str();
  }
}

template <class A, class B>
void check_eq(const char* file, int line, const char* text, const A& actual, const B& expected) {
  if (!(actual == expected)) fail(file, line, std::string(text) + " is " + show(actual) + ", not " + show(expected));
}

// The message of the `Error` that `body` throws; the case fails when it throws none.
template <class Error, class Body>
std::string message_of(const char* file, int line, const char* text, Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  fail(file, line, std::string(text) + " did not throw");
}

}  // namespace magneto::check

#define TEST(name)                                                                 \
  static void test_##name();                                                       \
  static ::magneto::check::Register register_##name(__FILE__, #name, test_##name); \
  static void test_##name()

#define CHECK(condition)                                                                  \
  do {                                                                                    \
    if (!(condition)) ::magneto::check::fail(__FILE__, __LINE__, #condition " is false"); \
  } while (0)
#define CHECK_EQ(actual, expected) ::magneto::check::check_eq(__FILE__, __LINE__, #actual, (actual), (expected))
// CHECK(CHECK_THROWS(UserError, set_setting("x", true)).find("x") != npos)
#define CHECK_THROWS(Error, ...) \
  ::magneto::check::message_of<Error>(__FILE__, __LINE__, #__VA_ARGS__, [&] { (void)(__VA_ARGS__); })
// `text` must hold `part`.
#define CHECK_HAS(text, part)                                                                      \
  do {                                                                                             \
    std::string magneto_text = (text);                                                             \
    if (magneto_text.find(part) == std::string::npos)                                              \
      ::magneto::check::fail(__FILE__, __LINE__, "\"" + magneto_text + "\" does not hold " #part); \
  } while (0)
