// Writes log lines and one-time warnings to stderr, each text in one piece so that threads do not mix their lines.
#include "runtime/log.h"

#include <cstdio>
#include <iterator>
#include <mutex>
#include <set>
#include <string_view>

#include "runtime/config.h"
#include "runtime/log_topics.h"

namespace magneto::runtime {

namespace {

const char* topic_name(Log topic) {
  static_assert(std::size(kLogTopics) == static_cast<size_t>(Log::Program) + 1);
  return kLogTopics[static_cast<size_t>(topic)];
}

// `setting` was validated by set_setting: names, commas and blanks.
bool contains(std::string_view setting, std::string_view name) {
  while (!setting.empty()) {
    size_t comma = setting.find(',');
    std::string_view item = setting.substr(0, comma);
    while (item.starts_with(' ')) item.remove_prefix(1);
    while (item.ends_with(' ')) item.remove_suffix(1);
    if (item == name) return true;
    setting.remove_prefix(comma == std::string_view::npos ? setting.size() : comma + 1);
  }
  return false;
}

// Each line gets the prefix, so that `grep` finds all of a text.
void write_lines(const std::string& prefix, std::string_view text) {
  std::string out;
  while (true) {
    size_t newline = text.find('\n');
    out.append(prefix).append(text.substr(0, newline)).push_back('\n');
    if (newline == std::string_view::npos || newline + 1 == text.size()) break;
    text.remove_prefix(newline + 1);
  }
  std::fwrite(out.data(), 1, out.size(), stderr);
  std::fflush(stderr);
}

}  // namespace

bool logs(Log topic) {
  const std::string& setting = config().logs;
  if (setting.empty()) return false;
  return contains(setting, kAllLogTopics) || contains(setting, topic_name(topic));
}

void log(Log topic, const std::string& text) {
  if (logs(topic)) write_lines(std::string("[magneto ") + topic_name(topic) + "] ", text);
}

void warn_once(const std::string& text) {
  // Owned by `mutex`: a warning may come from a thread that does not hold the GIL.
  static std::mutex& mutex = *new std::mutex;
  static std::set<std::string>& seen = *new std::set<std::string>;
  {
    std::lock_guard lock(mutex);
    if (!seen.insert(text).second) return;
  }
  write_lines("magneto: ", text);
}

}  // namespace magneto::runtime
