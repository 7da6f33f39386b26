// Plugs torch into the torch-free layers.
#pragma once

namespace magneto::record {

// Once per process, with the GIL held and torch imported. If recordings are impossible in this process, the plug says
// why when asked (why_not_record). Throws InternalError when torch is not what we know.
void install_torch_plug();

}  // namespace magneto::record
