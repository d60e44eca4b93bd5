#include "grammar/json_schema.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/json.h"
#include "grammar/json_text.h"
#include "grammar/number_range.h"
#include "grammar/schema_keywords.h"

namespace foresail {
namespace {

using Rule = GrammarBuilder::Rule;

class SchemaWriter {
 public:
  SchemaWriter(GrammarBuilder& builder, const OrderedJson& root)
      : builder_(builder), text_(builder), root_(root) {}

  int32_t write_all(int32_t from) {
    const int32_t end = builder_.call(from, rule_of("#", kAllTypes));
    while (!todo_.empty()) {
      const size_t index = todo_.back();
      todo_.pop_back();
      const Target target = targets_[index];
      here_ = target.pointer;
      at_head_of_ = static_cast<int>(index);
      const int32_t written = write(target.rule.start, resolve(target.pointer), target.types);
      builder_.skip(written, target.rule.end);
    }
    refuse_loops();
    return end;
  }

 private:
  // What a $ref leads to, restricted to some types.
  struct Target {
    std::string pointer;
    Types types;
    Rule rule;
    std::vector<size_t> leads_to;  // by references before anything is written
  };

  [[noreturn]] void refuse(const std::string& message) const {
    const OrderedJson place = here_.substr(0, 200);
    refuse_grammar(fmt::format(
        "at {}: {}", place.dump(-1, ' ', true, OrderedJson::error_handler_t::replace), message));
  }

  // Names the place in what `make` complains of.
  template <typename Make>
  auto located(Make make, std::string_view what) const {
    try {
      return make();
    } catch (GrammarFault& fault) {
      refuse(fmt::format("{} {}", what, fault.error.message));
    }
  }

  const OrderedJson& resolve(const std::string& pointer) const {
    try {
      const OrderedJson::json_pointer parsed(pointer.substr(1));
      if (root_.contains(parsed)) return root_[parsed];
    } catch (const OrderedJson::exception&) {
    }
    refuse(fmt::format("$ref \"{}\" leads nowhere", pointer.substr(0, 200)));
  }

  Rule rule_of(const std::string& pointer, Types types) {
    const auto [found, is_new] = index_.try_emplace({pointer, types}, targets_.size());
    if (is_new) {
      resolve(pointer);
      targets_.push_back({pointer, types, builder_.rule(), {}});
      todo_.push_back(found->second);
    }
    if (at_head_of_ >= 0) targets_[at_head_of_].leads_to.push_back(found->second);
    return targets_[found->second].rule;
  }

  // A reference that comes back to itself before it writes anything says nothing.
  void refuse_loops() {
    std::vector<int> open_edge(targets_.size(), -1);  // -1: not seen
    std::vector<bool> closed(targets_.size());
    for (size_t root = 0; root < targets_.size(); ++root) {
      std::vector<size_t> path = {root};
      while (!closed[root]) {
        const size_t at = path.back();
        const auto edge = static_cast<size_t>(++open_edge[at]);
        if (edge == targets_[at].leads_to.size()) {
          closed[at] = true;
          path.pop_back();
          continue;
        }
        const size_t next = targets_[at].leads_to[edge];
        if (closed[next]) continue;
        if (open_edge[next] >= 0) {
          here_ = targets_[next].pointer;
          refuse("$ref comes back to itself");
        }
        path.push_back(next);
      }
    }
  }

  int32_t write(int32_t from, const OrderedJson& schema, Types types) {
    if (schema.is_boolean()) return schema.get<bool>() ? any(from, types) : builder_.state();
    if (!schema.is_object()) refuse("a schema must be an object or a boolean");
    if (const std::string fault = unsupported_keyword(schema); !fault.empty()) refuse(fault);
    types &= types_of(schema);
    for (const char* keyword : {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"}) {
      if (!schema.contains(keyword)) continue;
      if (const std::string other = keyword_beside(schema, keyword); !other.empty())
        refuse(fmt::format("the keyword \"{}\" beside \"{}\" is not supported", other, keyword));
      const OrderedJson& value = schema[keyword];
      const std::string_view name = keyword;
      if (name == "$ref") return reference(from, value, types);
      if (name == "const") return constants(from, OrderedJson::array({value}), types);
      if (name == "enum") return constants(from, value, types);
      return choice(from, value, keyword, types);
    }
    return by_type(from, schema, types);
  }

  Types types_of(const OrderedJson& schema) const {
    const auto found = schema.find("type");
    if (found == schema.end()) return implied_types(schema);
    Types types = 0;
    const OrderedJson names = found->is_array() ? *found : OrderedJson::array({*found});
    for (const OrderedJson& name : names) {
      const Types type = name.is_string() ? type_named(name.get<std::string>()) : 0;
      if (type == 0) refuse(fmt::format("\"type\" {} is unknown", json_text(name).substr(0, 60)));
      types |= type;
    }
    if (types == 0) refuse("\"type\" is empty");
    return types;
  }

  int32_t reference(int32_t from, const OrderedJson& value, Types types) {
    if (!value.is_string()) refuse("\"$ref\" must be a string");
    const auto& pointer = value.get_ref<const std::string&>();
    if (!pointer.starts_with('#') || (pointer.size() > 1 && pointer[1] != '/'))
      refuse(fmt::format("$ref \"{}\" is not supported: refer within the schema, as #/$defs/x",
                         pointer.substr(0, 200)));
    return builder_.call(from, rule_of(percent_decoded(pointer), types));
  }

  int32_t constants(int32_t from, const OrderedJson& values, Types types) {
    if (!values.is_array() || values.empty()) refuse("\"enum\" must be a list with values");
    std::vector<std::string> texts;
    for (const OrderedJson& value : values)
      if ((type_of(value) & types) != 0) texts.push_back(json_text(value));
    if (texts.empty()) refuse("no value of \"enum\" or \"const\" is of the \"type\"");
    return builder_.one_of(from, std::move(texts));
  }

  int32_t choice(int32_t from, const OrderedJson& list, const char* keyword, Types types) {
    if (!list.is_array() || list.empty())
      refuse(fmt::format("\"{}\" must be a list with schemas", keyword));
    if (std::string_view(keyword) == "allOf" && list.size() > 1)
      refuse("\"allOf\" of more than one schema is not supported");
    if (std::string_view(keyword) == "oneOf" && !exclude_each_other(list, root_))
      refuse(
          "\"oneOf\" is supported where no two alternatives can both hold: by type, or by a "
          "required property with different constants; else use \"anyOf\"");
    const int32_t to = builder_.state();
    for (size_t i = 0; i < list.size(); ++i) {
      const Within within(*this, fmt::format("{}/{}", keyword, i));
      builder_.skip(write(from, list[i], types), to);
    }
    return to;
  }

  int32_t by_type(int32_t from, const OrderedJson& schema, Types types) {
    if (types == kAllTypes && implied_types(schema) == kAllTypes) return text_.any_value(from);
    const int32_t to = builder_.state();
    const auto add = [&](int32_t end) { builder_.skip(end, to); };
    std::vector<std::string> words;
    if (types & kNull) words.push_back("null");
    if (types & kBoolean) words.insert(words.end(), {"true", "false"});
    if (!words.empty()) add(builder_.one_of(from, words));
    if (types & (kNumber | kInteger)) add(number(from, schema, !(types & kNumber)));
    if (types & kString) add(string(from, schema));
    const int head = std::exchange(at_head_of_, -1);
    if (types & kArray) add(array(from, schema));
    if (types & kObject) add(object(from, schema));
    at_head_of_ = head;
    return to;
  }

  int32_t any(int32_t from, Types types) { return by_type(from, OrderedJson::object(), types); }

  // A count of things; `otherwise` where it is left out.
  int64_t count(const OrderedJson& schema, const char* keyword, int64_t otherwise) const {
    const auto found = schema.find(keyword);
    if (found == schema.end()) return otherwise;
    if (!found->is_number() || !(found->get<double>() >= 0) ||
        found->get<double>() != std::floor(found->get<double>()))
      refuse(fmt::format("\"{}\" must be a whole number from 0", keyword));
    if (found->get<double>() > static_cast<double>(GrammarBuilder::kMaxEdges))
      refuse(fmt::format("\"{}\" above {} is not supported", keyword, GrammarBuilder::kMaxEdges));
    return static_cast<int64_t>(found->get<double>());
  }

  // The stricter of "minimum" and "exclusiveMinimum", or of the two of "maximum".
  std::optional<NumberBound> bound(const OrderedJson& schema, const char* inclusive,
                                   const char* exclusive, bool upper) const {
    const OrderedJson* strictest = nullptr;
    bool excludes = false;
    for (const char* keyword : {inclusive, exclusive}) {
      const auto found = schema.find(keyword);
      if (found == schema.end()) continue;
      if (!found->is_number()) refuse(fmt::format("\"{}\" must be a number", keyword));
      if (strictest != nullptr) {
        const double now = strictest->get<double>(), other = found->get<double>();
        if (upper ? other > now : other < now) continue;
      }
      strictest = &*found;
      excludes = keyword == exclusive;
    }
    if (strictest == nullptr) return std::nullopt;
    return located([&] { return number_bound(*strictest, excludes); },
                   upper ? "a maximum" : "a minimum");
  }

  int32_t number(int32_t from, const OrderedJson& schema, bool integers) {
    const auto least = bound(schema, "minimum", "exclusiveMinimum", false);
    const auto most = bound(schema, "maximum", "exclusiveMaximum", true);
    if (least || most) return add_number_range(builder_, from, integers, least, most);
    return integers ? text_.integer(from) : text_.number(from);
  }

  int32_t string(int32_t from, const OrderedJson& schema) {
    const int64_t least = count(schema, "minLength", 0), most = count(schema, "maxLength", -1);
    if (most >= 0 && least > most) refuse("\"minLength\" is above \"maxLength\"");
    std::string_view pattern;
    if (const auto found = schema.find("pattern"); found != schema.end()) {
      if (!found->is_string()) refuse("\"pattern\" must be a string");
      pattern = found->get_ref<const std::string&>();
    }
    if (const auto found = schema.find("format"); found != schema.end()) {
      if (!found->is_string()) refuse("\"format\" must be a string");
      if (!pattern.empty()) refuse("\"format\" beside \"pattern\" is not supported");
      pattern = pattern_of_format(found->get_ref<const std::string&>());
      if (pattern.empty())
        refuse(fmt::format("\"format\" {} is not supported", found->dump().substr(0, 60)));
    }
    if (pattern.empty()) return text_.string(from, least, most);
    const RegexOptions options{.search = true, .least_chars = least, .most_chars = most};
    return located([&] { return text_.matching_string(from, pattern, options); }, "\"pattern\"");
  }

  int32_t array(int32_t from, const OrderedJson& schema) {
    const int64_t least = count(schema, "minItems", 0), most = count(schema, "maxItems", -1);
    if (most >= 0 && least > most) refuse("\"minItems\" is above \"maxItems\"");
    OrderedJson first = schema.value("prefixItems", OrderedJson::array());
    OrderedJson rest = schema.value("items", OrderedJson(true));
    bool is_tuple = schema.contains("prefixItems");
    if (rest.is_array()) {  // the older spelling
      first = std::move(rest);
      rest = true;
      is_tuple = true;
    }
    if (!first.is_array()) refuse("\"prefixItems\" must be a list");
    const auto first_count = static_cast<int64_t>(first.size());
    // A tuple has no items beyond those it names, unless it must.
    if (is_tuple && !schema.value("items", OrderedJson()).is_object() && least <= first_count)
      rest = false;

    const int32_t end = builder_.state();
    int32_t at = builder_.literal(from, "[");
    for (int64_t i = 0; i < first_count && i != most; ++i) {
      if (i >= least) builder_.skip(at, end);
      if (i > 0) at = text_.comma(at);
      const Within within(*this, fmt::format("prefixItems/{}", i));
      at = write(at, first[i], kAllTypes);
    }
    if (first_count >= least) builder_.skip(at, end);
    if (most < 0 || first_count < most) {
      const Within within(*this, "items");
      const Rule item = builder_.rule(), more = builder_.rule();
      builder_.skip(write(item.start, rest, kAllTypes), item.end);
      builder_.call(text_.comma(more.start), item, more.end);
      const int64_t before = first_count == 0 ? 1 : first_count;
      if (first_count == 0) at = builder_.call(at, item);
      at = builder_.repeat(at, more, std::max<int64_t>(0, least - before),
                           most < 0 ? -1 : most - before);
      builder_.skip(at, end);
    }
    return builder_.literal(end, "]");
  }

  struct Member {
    std::string name;
    const OrderedJson* schema;
    bool required;
  };
  std::vector<Member> members_of(const OrderedJson& schema, const OrderedJson& additional) const {
    std::vector<Member> members;
    std::set<std::string> required;
    const OrderedJson names = schema.value("required", OrderedJson::array());
    if (!names.is_array()) refuse("\"required\" must be a list of names");
    for (const OrderedJson& name : names) {
      if (!name.is_string()) refuse("\"required\" must be a list of names");
      required.insert(name.get<std::string>());
    }
    if (const auto found = schema.find("properties"); found != schema.end()) {
      if (!found->is_object()) refuse("\"properties\" must be an object");
      for (const auto& [name, value] : found->items())
        members.push_back({name, &value, required.erase(name) > 0});
    }
    for (const std::string& name : required) members.push_back({name, &additional, true});
    return members;
  }

  int32_t object(int32_t from, const OrderedJson& schema) {
    const auto given = schema.find("additionalProperties");
    const OrderedJson additional = given == schema.end() ? OrderedJson(true) : *given;
    const std::vector<Member> members = members_of(schema, additional);
    const bool open = given == schema.end() ? members.empty() && !schema.contains("properties")
                                            : additional != OrderedJson(false);
    if (open && members.empty() && additional == OrderedJson(true)) return text_.any_object(from);

    int32_t none = builder_.literal(from, "{");  // no member is written yet
    int32_t some = builder_.state();
    const int32_t end = builder_.state();
    const auto separated = [&] {
      const int32_t key = text_.comma(some);
      builder_.skip(none, key);
      return key;
    };
    for (const Member& member : members) {
      const Within within(*this, "properties/" + member.name);
      int32_t at = builder_.literal(separated(), json_text(OrderedJson(member.name)));
      at = write(text_.colon(at), *member.schema, kAllTypes);
      const int32_t after = builder_.state();
      builder_.skip(at, after);
      if (member.required)
        none = builder_.state();
      else
        builder_.skip(some, after);
      some = after;
    }
    if (open) {
      const Within within(*this, "additionalProperties");
      std::vector<std::string> names;
      for (const Member& member : members) names.push_back(member.name);
      const int32_t at = text_.colon(text_.key_other_than(separated(), names));
      builder_.skip(write(at, additional, kAllTypes), some);
    }
    builder_.skip(none, end);
    builder_.skip(some, end);
    return builder_.literal(end, "}");
  }

  // Makes the messages speak of a place further in.
  class Within {
   public:
    Within(SchemaWriter& writer, const std::string& step)
        : here_(writer.here_), size_(here_.size()) {
      here_ += "/" + step;
    }
    ~Within() { here_.resize(size_); }

   private:
    std::string& here_;
    size_t size_;
  };

  GrammarBuilder& builder_;
  JsonText text_;
  const OrderedJson& root_;
  std::string here_ = "#";
  std::map<std::pair<std::string, Types>, size_t> index_;  // of targets_
  std::vector<Target> targets_;
  std::vector<size_t> todo_;
  int at_head_of_ = -1;  // target of which nothing has been written yet; -1: none
};

}  // namespace

int32_t add_json_schema(GrammarBuilder& builder, int32_t from, const OrderedJson& schema) {
  return SchemaWriter(builder, schema).write_all(from);
}

int32_t add_json_object(GrammarBuilder& builder, int32_t from) {
  return JsonText(builder).any_object(from);
}

}  // namespace foresail
