// The names of the log topics, in the order of `Log`: what MAGNETO_LOGS may hold.
#pragma once

namespace magneto::runtime {

inline constexpr const char* kLogTopics[] = {"capture", "guards", "graph", "program"};
inline constexpr const char* kAllLogTopics = "all";

}  // namespace magneto::runtime
