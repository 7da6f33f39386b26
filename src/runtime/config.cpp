// Settings by name: reads them, changes them after a check, and takes their first values from the environment.
#include "runtime/config.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "runtime/errors.h"
#include "runtime/log.h"
#include "runtime/log_topics.h"

namespace magneto::runtime {

namespace {

constexpr std::string_view kPrefix = "MAGNETO_";

// Insertions, deletions and replacements that turn one word into the other.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      size_t replaced = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

// The setting that `name` was probably meant to be; null when none is near.
const char* closest_setting(std::string_view name) {
  const char* best = nullptr;
  size_t best_distance = 3;
  for (const Setting& setting : settings()) {
    size_t distance = edit_distance(name, setting.name);
    if (distance < best_distance && distance < name.size() / 2) {
      best = setting.name;
      best_distance = distance;
    }
  }
  return best;
}

std::string unknown_setting(const std::string& name) {
  std::string text = "magneto.config has no setting '" + name + "'";
  if (const char* closest = closest_setting(name)) text += "; did you mean '" + std::string(closest) + "'?";
  text += text.back() == '?' ? " There are: " : "; there are: ";
  for (const Setting& setting : settings()) {
    if (&setting != &settings().front()) text += ", ";
    text += setting.name;
  }
  return text;
}

const char* describe_type(const SettingValue& value) {
  switch (value.index()) {
    case 0: return "True or False";
    case 1: return "a whole number";
    default: return "a string";
  }
}

std::string describe_value(const SettingValue& value) {
  if (const bool* flag = std::get_if<bool>(&value)) return *flag ? "True" : "False";
  if (const int64_t* number = std::get_if<int64_t>(&value)) return std::to_string(*number);
  return "'" + std::get<std::string>(value) + "'";
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

std::string variable_name(std::string_view setting) {
  std::string out(kPrefix);
  for (char c : setting) out += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return out;
}

std::string_view trim(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

void check_log_topics(std::string_view topics) {
  while (!topics.empty()) {
    size_t comma = topics.find(',');
    std::string_view topic = trim(topics.substr(0, comma));
    bool known = topic.empty() || topic == kAllLogTopics ||
                 std::any_of(std::begin(kLogTopics), std::end(kLogTopics), [&](auto name) { return topic == name; });
    if (!known) {
      std::string text = "unknown log topic '" + std::string(topic) + "'; there are: ";
      for (const char* name : kLogTopics) text += std::string(name) + ", ";
      throw UserError(text + kAllLogTopics);
    }
    topics.remove_prefix(comma == std::string_view::npos ? topics.size() : comma + 1);
  }
}

// What the type alone does not say.
void check_value(const std::string& name, const SettingValue& value) {
  if (const int64_t* number = std::get_if<int64_t>(&value); number && *number < 0)
    throw UserError("magneto.config." + name + " counts something, so it must be 0 or more, not " +
                    std::to_string(*number));
  if (name == "logs") check_log_topics(std::get<std::string>(value));
}

template <class T>
void assign(T& field, const SettingValue& value, const std::string& name) {
  const T* typed = std::get_if<T>(&value);
  if (!typed)
    throw UserError("magneto.config." + name + " must be " + describe_type(SettingValue(field)) + ", not " +
                    describe_value(value));
  check_value(name, value);
  field = *typed;
}

std::optional<SettingValue> parse(const SettingValue& like, std::string_view text) {
  if (std::holds_alternative<std::string>(like)) return SettingValue(std::string(text));
  text = trim(text);
  if (std::holds_alternative<bool>(like)) {
    std::string word = lower(text);
    if (word == "1" || word == "true" || word == "yes") return SettingValue(true);
    if (word == "0" || word == "false" || word == "no") return SettingValue(false);
    return std::nullopt;
  }
  int64_t number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return SettingValue(number);
}

void read_variable(const Setting& setting) {
  std::string variable = variable_name(setting.name);
  const char* text = std::getenv(variable.c_str());
  if (!text || !*text) return;
  std::optional<SettingValue> value = parse(setting.default_value, text);
  if (!value) {
    bool is_bool = std::holds_alternative<bool>(setting.default_value);
    throw UserError("the environment variable " + variable + " is '" + text + "', but must be " +
                    (is_bool ? "one of 0, 1, true, false, yes, no" : "a whole number"));
  }
  try {
    set_setting(setting.name, *value);
  } catch (const UserError& error) {
    throw UserError("the environment variable " + variable + " is '" + text + "': " + error.what());
  }
}

void warn_about_typos() {
  for (char** entry = environ; entry && *entry; ++entry) {
    std::string_view variable(*entry);
    variable = variable.substr(0, variable.find('='));
    if (!variable.starts_with(kPrefix)) continue;
    auto same = [&](const Setting& setting) { return variable_name(setting.name) == variable; };
    if (std::any_of(settings().begin(), settings().end(), same)) continue;
    if (const char* closest = closest_setting(lower(variable.substr(kPrefix.size()))))
      warn_once("the environment variable " + std::string(variable) + " is no setting; did you mean " +
                variable_name(closest) + "?");
  }
}

}  // namespace

const std::vector<Setting>& settings() {
#define MAGNETO_ROW(type, name, default_value, doc) {#name, doc, SettingValue(std::in_place_type<type>, default_value)},
  static const std::vector<Setting>& table = *new std::vector<Setting>{MAGNETO_SETTINGS(MAGNETO_ROW)};
#undef MAGNETO_ROW
  return table;
}

SettingValue get_setting(const std::string& name) {
#define MAGNETO_GET(type, field, default_value, doc) \
  if (name == #field) return SettingValue(config().field);
  MAGNETO_SETTINGS(MAGNETO_GET)
#undef MAGNETO_GET
  throw UserError(unknown_setting(name));
}

void set_setting(const std::string& name, SettingValue value) {
#define MAGNETO_SET(type, field, default_value, doc) \
  if (name == #field) return assign(config().field, value, name);
  MAGNETO_SETTINGS(MAGNETO_SET)
#undef MAGNETO_SET
  throw UserError(unknown_setting(name));
}

void read_environment() {
  for (const Setting& setting : settings()) read_variable(setting);
  warn_about_typos();
}

}  // namespace magneto::runtime
