// Which tokens of a row of logits a draw may take, found by the host, and the draw from them. What
// token_truncation.h says, without ranking the row. Stateless; any thread.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "kernels/token_choice.h"
#include "kernels/token_truncation.h"

namespace foresail {

class DrawableTokens {
 public:
  // Not of a greedy draw.
  DrawableTokens(std::span<const float> logits, const TokenDraw& draw);

  bool may_contain(float logit) const { return logit >= least_; }
  bool contains(float logit, int32_t id) const {
    if (!may_contain(logit)) return false;
    if (logit == cut_logit_ && id > cut_id_) return false;
    return logit >= certain_ || weight(logit) >= min_p_;
  }
  // Against the best token's.
  double weight(float logit) const { return token_weight(logit, largest_, inverse_temperature_); }

 private:
  void cut_at(uint64_t rank);
  void cut_by_top_p(std::span<const float> logits, std::span<const uint64_t> ranks, float top_p);

  float largest_ = -std::numeric_limits<float>::infinity();
  double inverse_temperature_;
  double min_p_;
  // Tokens below `least_` cannot be drawn, nor those with the cut's logit and a greater id, nor
  // those below `certain_` of too little weight.
  float least_ = std::numeric_limits<float>::lowest();
  float certain_ = std::numeric_limits<float>::lowest();
  float cut_logit_ = -std::numeric_limits<float>::infinity();
  int32_t cut_id_ = std::numeric_limits<int32_t>::max();
};

// The index that `draw` draws, 0 where there is nothing to draw. `token_map`: the tokens whose
// noise the indices get; null: they are tokens.
int32_t draw_token(std::span<const float> logits, const TokenDraw& draw,
                   const int32_t* token_map = nullptr);

}  // namespace foresail
