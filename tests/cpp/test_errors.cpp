// The texts of internal errors.
#include "check.h"
#include "runtime/errors.h"

using namespace magneto;

TEST(a_bug_names_the_place_the_reason_and_whose_it_is) {
  std::string text = CHECK_THROWS(InternalError, raise_bug("/somewhere/magneto/src/trace/call.cpp", 12, "no frame"));
  CHECK_HAS(text, "src/trace/call.cpp:12: no frame (a bug in Magneto");
  CHECK(text.find("somewhere") == std::string::npos);
}

TEST(an_assertion_that_fails_shows_its_condition) {
  int answer = 41;
  std::string text = CHECK_THROWS(InternalError, [&] { MAGNETO_ASSERT(answer == 42); }());
  CHECK_HAS(text, "expected answer == 42");
  CHECK_HAS(text, "test_errors.cpp:");
  answer = 42;
  MAGNETO_ASSERT(answer == 42);
}
