// A refusal, and the one place that gives it its shape on the wire.
#pragma once

#include <string>

#include "base/result.h"
#include "server/http/message.h"

namespace foresail {

struct ApiError {
  int status = 400;
  std::string type = "invalid_request_error";
  std::string code = {};   // empty: null
  std::string param = {};  // the field at fault; empty: null
  std::string message;     // one line, says what to change; no paths or addresses
  int retry_after_s = 0;   // 0: no such header
};

ApiError api_error(const InputError& error);
// For what can be said by status and code alone; the type follows from the status.
ApiError api_error(int status, std::string code, std::string message);
// Try again soon: full, loading, draining.
ApiError unavailable(std::string code, std::string message, int retry_after_s = 1);

// {"error":{"message":..,"type":..,"param":..,"code":..}}
std::string to_json(const ApiError& error);
HttpResponse to_response(const ApiError& error);

}  // namespace foresail
