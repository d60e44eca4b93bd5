// One line of a requests file as a Request.
#pragma once

#include <string>

#include "base/result.h"
#include "foresail/request.h"

namespace foresail {

// A JSON object with a prompt; unknown fields and wrong types are refused with the name of the
// field. `defaults` hold where the line says nothing.
Result<Request> parse_request_line(const std::string& line, const SamplingParams& defaults);

}  // namespace foresail
