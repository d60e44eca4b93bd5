#include "text/jinja_json_import.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/json.h"

namespace foresail::jinja {
namespace {

constexpr std::string_view kRoles[] = {"system",    "user",     "assistant", "tool",
                                       "developer", "function", "ipython"};
constexpr int kMaxDepth = 100;

Value import_value(Heap& heap, const OrderedJson& json, int depth) {
  if (depth > kMaxDepth)
    throw JinjaError(fmt::format("limit of JSON depth ({}) exceeded", kMaxDepth));
  heap.step();
  Value out;
  switch (json.type()) {
    case OrderedJson::value_t::boolean:
      out = bool_value(json.get<bool>());
      break;
    case OrderedJson::value_t::number_integer:
      out = int_value(json.get<int64_t>());
      break;
    case OrderedJson::value_t::number_unsigned:
      out = int_value(static_cast<Integer>(json.get<uint64_t>()));
      break;
    case OrderedJson::value_t::number_float:
      out = float_value(json.get<double>());
      break;
    case OrderedJson::value_t::string:
      return heap.text(Text(json.get_ref<const std::string&>(), true));
    case OrderedJson::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const OrderedJson& item : json) items.push_back(import_value(heap, item, depth + 1));
      return heap.list(std::move(items));
    }
    case OrderedJson::value_t::object: {
      out = heap.dict();
      for (const auto& [key, value] : json.items()) {
        heap.set(out.dict(), string_value(Text(key, true)), import_value(heap, value, depth + 1));
      }
      return out;
    }
    default:
      out = none_value();
      break;
  }
  out.tainted = true;
  return out;
}

}  // namespace

Value import_json(Heap& heap, const OrderedJson& json) {
  return import_value(heap, json, 0);
}

Value import_messages(Heap& heap, const OrderedJson& messages) {
  const Value out = import_value(heap, messages, 0);
  if (!out.is(Kind::kList)) return out;
  for (const Value& message : out.list().items) {
    if (!message.is(Kind::kDict)) continue;
    const Value* role = message.dict().find(heap, "role");
    if (role == nullptr || !role->is(Kind::kString)) continue;
    if (std::find(std::begin(kRoles), std::end(kRoles), role->bytes()) == std::end(kRoles))
      continue;
    message.dict().set(heap, string_value("role"), string_value(role->text->view()));
  }
  return out;
}

}  // namespace foresail::jinja
