// How a token is chosen from a row of logits and how drafts are accepted: the arithmetic that the
// host's sampler and the devices' kernels share, so that both choose the same token bit for bit.
// Plain functions. In a build of them no multiply and add may be contracted into one rounding.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <numbers>

#include "base/random.h"

#ifdef __CUDACC__
#define FORESAIL_ANY_DEVICE __host__ __device__
#else
#define FORESAIL_ANY_DEVICE
#endif

namespace foresail {

// How the token of one row is drawn: SamplingParams but for what changes logits.
struct TokenDraw {
  uint64_t seed = 0;
  double inverse_temperature = 0.0;  // 0: greedy, whatever follows
  int64_t position = 0;              // the index that the token will have in its sequence
  int32_t top_k = 0;                 // 0: off
  float top_p = 1.0f;                // 1: off
  float min_p = 0.0f;                // 0: off
  int32_t unused = 0;                // no gap in what is uploaded
};

// Natural logarithm of x (1 + c): x > 0 and normal, |c| no more than x's rounding. Within one unit
// in the last place, from basic operations only (FreeBSD's e_log.c, Sun Microsystems 1993).
FORESAIL_ANY_DEVICE inline double plain_log(double x, double c = 0.0) {
  constexpr uint32_t kRootHalf = 0x3FE6A09E;  // upper half of sqrt(1/2)
  constexpr uint32_t kOne = 0x3FF00000;
  const auto bits = std::bit_cast<uint64_t>(x);
  // x = 2^k m, sqrt(1/2) <= m < sqrt(2).
  const uint32_t shifted = static_cast<uint32_t>(bits >> 32) + (kOne - kRootHalf);
  const double k = static_cast<double>(static_cast<int32_t>(shifted >> 20) - 0x3FF);
  const uint64_t high = (shifted & 0x000FFFFF) + kRootHalf;
  const double f = std::bit_cast<double>(high << 32 | (bits & 0xFFFFFFFF)) - 1.0;
  const double half_square = 0.5 * f * f;
  const double s = f / (2.0 + f);
  const double z = s * s;
  const double w = z * z;
  const double even = w * (3.999999999940941908e-01 +
                           w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
  const double odd = z * (6.666666666666735130e-01 +
                          w * (2.857142874366239149e-01 +
                               w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
  return s * (half_square + (odd + even)) + (k * 1.90821492927058770002e-10 + c) - half_square + f +
         k * 6.93147180369123816490e-01;
}

// Standard Gumbel noise of 64 random bits: -log(-log(1 - v)), v uniform in (0, 1).
FORESAIL_ANY_DEVICE inline double gumbel_noise(uint64_t bits) {
  const double v = (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53;
  if (v < 0x1p-53) return -plain_log(v);  // log(1 - v) is -v
  const double rest = 1.0 - v;
  if (!(rest > 0.0)) return -std::numeric_limits<double>::infinity();
  // What rounding took from 1 - v, relative to it.
  const double lost = ((1.0 - rest) - v) / rest;
  return -plain_log(-plain_log(rest, lost));
}

// The running best of a race for the largest logit / temperature + noise; greedy: for the largest
// logit. Ties: whoever entered first. NaN never wins; no entry: winner 0.
class TokenRace {
 public:
  FORESAIL_ANY_DEVICE explicit TokenRace(const TokenDraw& draw)
      : key_(random_bits(draw.seed, static_cast<uint64_t>(draw.position), RandomPurpose::kSample)),
        inverse_temperature_(draw.inverse_temperature) {}

  // `noise_token`: the token whose noise it gets.
  FORESAIL_ANY_DEVICE void enter(int32_t id, int32_t noise_token, float logit) {
    if (inverse_temperature_ == 0.0) return take(id, static_cast<double>(logit));
    const uint64_t bits =
        mix_bits(key_ ^ static_cast<uint64_t>(static_cast<uint32_t>(noise_token)));
    // noise <= -log(v) <= (leading zeros + 1) log 2. Almost every token is out of the race by this
    // bound, without a logarithm.
    const double score = static_cast<double>(logit) * inverse_temperature_;
    if (!(score + (leading_zeros(bits) + 1) * std::numbers::ln2 > best_score_)) return;
    take(id, score + gumbel_noise(bits));
  }
  FORESAIL_ANY_DEVICE int32_t winner() const { return winner_; }
  FORESAIL_ANY_DEVICE double best_score() const { return best_score_; }

 private:
  FORESAIL_ANY_DEVICE static int leading_zeros(uint64_t bits) {
#ifdef __CUDA_ARCH__
    return __clzll(static_cast<long long>(bits));
#else
    return std::countl_zero(bits);
#endif
  }
  FORESAIL_ANY_DEVICE void take(int32_t id, double score) {
    if (!(score > best_score_)) return;
    best_score_ = score;
    winner_ = id;
  }

  uint64_t key_;
  double inverse_temperature_;
  double best_score_ = -std::numeric_limits<double>::infinity();
  int32_t winner_ = 0;
};

// A chosen token whose logit was no number, as it is reported: its complement.
FORESAIL_ANY_DEVICE inline int32_t without_mark(int32_t token) {
  return token < 0 ? ~token : token;
}

// How many of a sequence's `row_count` rows stand: one, and one for each draft that the target
// chose too, up to the first that it did not. fed[0] is the token before, fed[1 ...] the drafts;
// `pretended`, if not negative: so many drafts stand whatever was chosen.
FORESAIL_ANY_DEVICE inline int32_t accept_rows(const int32_t* fed, const int32_t* chosen,
                                               int32_t row_count, int32_t pretended) {
  int32_t accept_len = 1;
  while (accept_len < row_count &&
         (pretended >= 0 ? accept_len <= pretended
                         : without_mark(chosen[accept_len - 1]) == fed[accept_len]))
    ++accept_len;
  return accept_len;
}

}  // namespace foresail
