// JSON Schema as a grammar: every output is valid against the schema. Not every valid text can be
// an output: JSON comes with at most one space after a comma or colon and none elsewhere, members
// in the order of `properties`, and where the schema does not speak of further members or items
// there are none. What cannot be kept exactly is refused by the keyword's name. Any thread.
#pragma once

#include "base/json_types.h"
#include "grammar/grammar.h"

namespace foresail {

// The path of all valid texts. Throws GrammarFault; its messages name the place in the schema.
int32_t add_json_schema(GrammarBuilder& builder, int32_t from, const OrderedJson& schema);
// Of any JSON object.
int32_t add_json_object(GrammarBuilder& builder, int32_t from);

}  // namespace foresail
