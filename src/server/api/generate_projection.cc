// The shape of /generate: text and ids so far, and what is known about them.
#include "base/json.h"
#include "server/api/json_text.h"
#include "server/api/projection.h"

namespace foresail {
namespace {

class GenerateProjection final : public Projection {
 public:
  explicit GenerateProjection(const GenerationSpec& spec)
      : is_list_(spec.batch || spec.choices > 1) {}

  std::string whole(const GenerationRecord& record) const override {
    if (!is_list_) return json_text(answer(record, record.choices[0]));
    OrderedJson list = OrderedJson::array();
    for (const Choice& choice : record.choices) list.push_back(answer(record, choice));
    return json_text(list);
  }

  std::string opening(const GenerationRecord&) const override { return {}; }

  std::string piece(const GenerationRecord& record, const Piece& piece) const override {
    const Choice& choice = record.choices[piece.choice];
    OrderedJson json = answer(record, choice);
    if (is_list_) json["index"] = choice.index;
    return event(json_text(json));
  }

  std::string closing(const GenerationRecord&) const override { return std::string(kDoneEvent); }
  bool tells_aborts() const override { return true; }

 private:
  OrderedJson answer(const GenerationRecord& record, const Choice& choice) const {
    return {{"text", choice.text},
            {"output_ids", choice.ids},
            {"meta_info", meta_info_json(record, choice)}};
  }

  bool is_list_;
};

}  // namespace

std::unique_ptr<Projection> generate_projection(const GenerationSpec& spec, const ServedModel&) {
  return std::make_unique<GenerateProjection>(spec);
}

}  // namespace foresail
