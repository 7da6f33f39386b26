// The errors of calls that were to be captured and could not be.
#pragma once
#include <string>

namespace magneto::frame {

// Sets magneto.UserError.
void set_user_error(const std::string& text);
// The same for fullgraph=True: `where` as trace::Watch::where(), or empty.
void set_full_graph_error(const std::string& name, const std::string& reason, const std::string& where);

}  // namespace magneto::frame
