// What the engine says beside its answers, as lines of the program's logger.
#pragma once

#include "foresail/log.h"

namespace foresail {

LogCallback engine_log();

}  // namespace foresail
