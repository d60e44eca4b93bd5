// One shape in which a GenerationRecord is told: the body of a whole answer, or events in order.
// Immutable; every piece of an event stream is complete events, ready to be written.
#pragma once

#include <memory>
#include <string>

#include "base/json_types.h"
#include "server/api/generation_spec.h"
#include "server/api/record.h"

namespace foresail {

class Projection {
 public:
  virtual ~Projection() = default;
  virtual std::string whole(const GenerationRecord& record) const = 0;
  // Before the first token; may be empty.
  virtual std::string opening(const GenerationRecord& record) const = 0;
  // The record already holds the piece. May be empty when there is nothing to tell.
  virtual std::string piece(const GenerationRecord& record, const Piece& piece) const = 0;
  virtual std::string closing(const GenerationRecord& record) const = 0;
  // Whether an aborted request is an answer like any other, or an error.
  virtual bool tells_aborts() const { return false; }
};

std::unique_ptr<Projection> completion_projection(const GenerationSpec& spec,
                                                  const ServedModel& model);
std::unique_ptr<Projection> chat_projection(const GenerationSpec& spec, const ServedModel& model);
std::unique_ptr<Projection> generate_projection(const GenerationSpec& spec,
                                                const ServedModel& model);

// Shared by the shapes.
OrderedJson usage_json(const Usage& usage);
OrderedJson meta_info_json(const GenerationRecord& record, const Choice& choice);
std::string event(std::string_view data);  // "data: ...\n\n"
inline constexpr std::string_view kDoneEvent = "data: [DONE]\n\n";
inline constexpr std::string_view kFingerprint = "foresail-0.1";
// "stop" and so on, quoted; null while it runs.
std::string_view finish_json(const std::optional<FinishReason>& finish);

}  // namespace foresail
