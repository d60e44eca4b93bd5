// What happens to text before it is cut: nothing, or Unicode normalization form C.
// Immutable after parsing; any thread may use it at once.
#pragma once

#include <string>
#include <string_view>

#include "base/json_types.h"

namespace foresail {

class Normalizer {
 public:
  // The `normalizer` value of tokenizer.json; others than NFC are Error{kModel} with their name.
  static Normalizer parse(const Json& json, const std::string& where);

  bool changes_text() const { return nfc_; }
  std::string apply(std::string_view text) const;

 private:
  void parse_step(const Json& json, const std::string& where, int depth);
  bool nfc_ = false;
};

}  // namespace foresail
