// Log lines, one-time warnings, and the warning about a mistyped environment variable.
#include <cstdlib>

#include "capture_stderr.h"
#include "check.h"
#include "runtime/config.h"
#include "runtime/log.h"

using namespace magneto;
using namespace magneto::runtime;
using check::CaptureStderr;

TEST(nothing_is_logged_by_default) {
  CaptureStderr captured;
  for (Log topic : {Log::Capture, Log::Guards, Log::Graph, Log::Program}) {
    CHECK(!logs(topic));
    log(topic, "text");
  }
  CHECK_EQ(captured.text(), "");
}

TEST(only_the_named_topics_are_logged) {
  set_setting("logs", std::string("guards , program"));
  CHECK(!logs(Log::Capture));
  CHECK(logs(Log::Guards));
  CHECK(!logs(Log::Graph));
  CHECK(logs(Log::Program));
  set_setting("logs", std::string("all"));
  CHECK(logs(Log::Capture) && logs(Log::Graph));
}

TEST(each_line_of_a_text_carries_its_topic) {
  set_setting("logs", std::string("graph"));
  CaptureStderr captured;
  log(Log::Graph, "first\nsecond\n");
  log(Log::Guards, "silent");
  CHECK_EQ(captured.text(), "[magneto graph] first\n[magneto graph] second\n");
}

TEST(a_warning_is_printed_once_per_text) {
  CaptureStderr captured;
  warn_once("one");
  warn_once("one");
  warn_once("two");
  CHECK_EQ(captured.text(), "magneto: one\nmagneto: two\n");
}

TEST(a_mistyped_variable_is_warned_about_with_the_closest_name) {
  setenv("MAGNETO_CACHE_LIMT", "3", 1);
  setenv("MAGNETO_logs", "graph", 1);
  setenv("MAGNETO_PYTHON", "python3", 1);
  CaptureStderr captured;
  read_environment();
  std::string text = captured.text();
  CHECK_HAS(text, "MAGNETO_CACHE_LIMT is no setting; did you mean MAGNETO_CACHE_LIMIT?");
  CHECK_HAS(text, "MAGNETO_logs is no setting; did you mean MAGNETO_LOGS?");
  CHECK(text.find("MAGNETO_PYTHON") == std::string::npos);
  CHECK_EQ(config().cache_limit, 8);
}
