// A chat request up to its prompt, for what asks for no more than that.
#pragma once

#include <string>
#include <vector>

#include "server/api/generation_spec.h"
#include "server/api/json_object.h"
#include "server/api/tool_fields.h"

namespace foresail {

struct RenderedChat {
  std::string text;
  std::vector<int32_t> ids;
  ToolRequest tools;
  // The prompt ends inside of reasoning, or says that there is none.
  bool opens_reasoning = false, closes_reasoning = false;
};

// The fields are those of an object that has no fault.
ApiResult<RenderedChat> render_chat(JsonObject& fields, const ServedModel& model);
ApiResult<RenderedChat> render_chat(const OrderedJson& body, const ServedModel& model);

}  // namespace foresail
