// Settings: the table, changing them by name, and reading them from the environment.
#include <cstdlib>

#include "check.h"
#include "runtime/config.h"
#include "runtime/errors.h"

using namespace magneto;
using namespace magneto::runtime;

namespace {

// Sets an environment variable for the length of a test, and puts every setting back afterwards.
struct Environment {
  Environment(const char* name, const char* value) : name(name) { setenv(name, value, 1); }
  ~Environment() {
    unsetenv(name);
    config() = Config();
  }
  const char* name;
};

}  // namespace

TEST(every_setting_starts_at_its_default) {
  CHECK(settings().size() >= 6);
  for (const Setting& setting : settings()) {
    CHECK(get_setting(setting.name) == setting.default_value);
    CHECK(std::string(setting.doc).size() > 10);
  }
}

TEST(a_set_value_is_read_back_by_name_and_by_field) {
  Environment restore("MAGNETO_UNUSED_FOR_TESTS", "");
  set_setting("cache_limit", int64_t{3});
  set_setting("enabled", false);
  CHECK_EQ(std::get<int64_t>(get_setting("cache_limit")), 3);
  CHECK_EQ(config().cache_limit, 3);
  CHECK_EQ(config().enabled, false);
}

TEST(an_unknown_name_is_refused_with_the_closest_and_all_names) {
  std::string text = CHECK_THROWS(UserError, set_setting("cache_limits", int64_t{3}));
  CHECK_HAS(text, "did you mean 'cache_limit'?");
  CHECK_HAS(text, "recapture_limit");
  CHECK_HAS(CHECK_THROWS(UserError, get_setting("colour")), "no setting 'colour'; there are: enabled, ");
}

TEST(a_wrong_type_is_refused_and_changes_nothing) {
  CHECK_HAS(CHECK_THROWS(UserError, set_setting("enabled", int64_t{0})), "enabled must be True or False, not 0");
  CHECK_HAS(CHECK_THROWS(UserError, set_setting("cache_limit", true)), "cache_limit must be a whole number, not True");
  CHECK_HAS(CHECK_THROWS(UserError, set_setting("logs", true)), "logs must be a string, not True");
  CHECK_EQ(config().enabled, true);
  CHECK_EQ(config().cache_limit, 8);
}

TEST(a_negative_count_is_refused) {
  CHECK_HAS(CHECK_THROWS(UserError, set_setting("cache_limit", int64_t{-1})), "must be 0 or more, not -1");
  CHECK_EQ(config().cache_limit, 8);
}

TEST(an_unknown_log_topic_is_refused_with_the_topics) {
  std::string text = CHECK_THROWS(UserError, set_setting("logs", std::string("guards, grpah")));
  CHECK_HAS(text, "unknown log topic 'grpah'; there are: capture, guards, graph, program, all");
  CHECK_EQ(config().logs, "");
}

TEST(the_environment_sets_every_type) {
  Environment flag("MAGNETO_ENABLED", "No");
  Environment number("MAGNETO_CACHE_LIMIT", " 12 ");
  Environment text("MAGNETO_LOGS", "graph,guards");
  read_environment();
  CHECK_EQ(config().enabled, false);
  CHECK_EQ(config().cache_limit, 12);
  CHECK_EQ(config().logs, "graph,guards");
}

TEST(the_environment_takes_the_usual_words_for_yes_and_no) {
  for (const char* word : {"0", "false", "no", "FALSE"}) {
    Environment flag("MAGNETO_ENABLED", word);
    read_environment();
    CHECK_EQ(config().enabled, false);
  }
  for (const char* word : {"1", "true", "yes", "Yes"}) {
    Environment flag("MAGNETO_WITHOUT_TENSORS", word);
    read_environment();
    CHECK_EQ(config().without_tensors, true);
  }
}

TEST(an_empty_variable_is_as_good_as_none) {
  Environment flag("MAGNETO_ENABLED", "");
  read_environment();
  CHECK_EQ(config().enabled, true);
}

TEST(a_variable_that_does_not_parse_is_refused_by_name) {
  {
    Environment flag("MAGNETO_ENABLED", "maybe");
    CHECK_HAS(CHECK_THROWS(UserError, read_environment()), "MAGNETO_ENABLED is 'maybe', but must be one of 0, 1");
  }
  for (const char* word : {"8x", "8.5", "many", "99999999999999999999", "0x10"}) {
    Environment number("MAGNETO_CACHE_LIMIT", word);
    CHECK_HAS(CHECK_THROWS(UserError, read_environment()), "MAGNETO_CACHE_LIMIT is '" + std::string(word));
  }
  Environment topic("MAGNETO_LOGS", "everything");
  CHECK_HAS(CHECK_THROWS(UserError, read_environment()), "MAGNETO_LOGS is 'everything': unknown log topic");
}
