#include "apps/generation_stats.h"
#include "apps/standard_error.h"

#include <fmt/core.h>

#include <cstdio>
#include <string>

namespace foresail {

void print_cut(int64_t output_tokens, bool context_is_full) {
  tell("(cut off after {} tokens: {})\n", output_tokens,
       context_is_full ? "the context is full" : "--max-tokens");
}

void print_stats(const GenerationStats& stats, bool speculating, bool simulated) {
  const auto later_tokens = static_cast<double>(stats.output_tokens - 1);
  const int64_t computed = stats.prompt_tokens - stats.cached_tokens;
  const std::string cached =
      stats.cached_tokens == 0 ? "" : fmt::format(" after {} cached ones", stats.cached_tokens);
  tell(
      "prefill {} tokens{} in {:.3f} s ({:.1f} tok/s), decode {} tokens in {:.3f} s "
      "({:.1f} tok/s)",
      computed, cached, stats.prefill_s, static_cast<double>(computed) / stats.prefill_s,
      stats.output_tokens, stats.decode_s,
      stats.decode_s > 0 ? later_tokens / stats.decode_s : 0.0);
  if (speculating) {
    tell(", accept length {:.2f} (1 + accepted/passes with drafts", stats.accept_length());
    // A position that no pass drafted has no rate.
    for (size_t i = 0; i < stats.accepted_at.size() && stats.drafted_at[i] > 0; ++i)
      tell("{} {:.0f} %", i == 0 ? "; accepted of drafted, by position" : ",",
           100.0 * static_cast<double>(stats.accepted_at[i]) /
               static_cast<double>(stats.drafted_at[i]));
    tell("){}", simulated ? " SIMULATED" : "");
  }
  tell("\n");
}

}  // namespace foresail
