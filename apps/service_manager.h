// Tells systemd how the server stands (sd_notify): to the socket that NOTIFY_SOCKET names, and
// nowhere without one.
#pragma once

#include <string_view>

namespace foresail {

// "READY=1", "STOPPING=1", "WATCHDOG=1"
void notify_service_manager(std::string_view state);

}  // namespace foresail
