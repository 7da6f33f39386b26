// Log lines for people: MAGNETO_LOGS=capture,guards,graph,program (or all) writes to stderr.
#pragma once
#include <string>

namespace magneto::runtime {

enum class Log { Capture, Guards, Graph, Program };
bool logs(Log topic);
void log(Log topic, const std::string& text);
// Printed whatever the settings, once per text: our bugs and what the user must know.
void warn_once(const std::string& text);

}  // namespace magneto::runtime
