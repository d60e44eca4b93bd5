#include "server/api/error.h"

#include "server/api/json_text.h"

namespace foresail {
namespace {

std::string type_for(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 499:
      return "request_aborted";
    case 500:
    case 504:
      return "server_error";
    case 501:
      return "not_implemented";
    case 503:
      return "unavailable_error";
    default:
      return "invalid_request_error";
  }
}

void append_or_null(std::string& out, const std::string& text) {
  if (text.empty())
    out += "null";
  else
    append_json_string(out, text);
}

}  // namespace

ApiError api_error(const InputError& error) {
  return {.param = error.param, .message = error.message};
}

ApiError api_error(int status, std::string code, std::string message) {
  return {.status = status,
          .type = type_for(status),
          .code = std::move(code),
          .message = std::move(message)};
}

ApiError unavailable(std::string code, std::string message, int retry_after_s) {
  ApiError error = api_error(503, std::move(code), std::move(message));
  error.retry_after_s = retry_after_s;
  return error;
}

std::string to_json(const ApiError& error) {
  std::string out = "{\"error\":{\"message\":";
  append_json_string(out, error.message);
  out += ",\"type\":";
  append_json_string(out, error.type);
  out += ",\"param\":";
  append_or_null(out, error.param);
  out += ",\"code\":";
  append_or_null(out, error.code);
  out += "}}";
  return out;
}

HttpResponse to_response(const ApiError& error) {
  HttpResponse response{
      .status = error.status, .body = to_json(error), .param = error.param, .code = error.code};
  if (error.retry_after_s > 0)
    response.fields.emplace_back("Retry-After", std::to_string(error.retry_after_s));
  if (error.status == 401) response.fields.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

}  // namespace foresail
