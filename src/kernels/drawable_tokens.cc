#include "kernels/drawable_tokens.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "kernels/cpu/isa_select.h"

namespace foresail {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// By so much is a threshold that logits are compared with moved off, in units of the temperature:
// far more than the arithmetic of weights is off.
constexpr double kMargin = 1e-6;

// The tokens of a row in descending order: by logit, then by id.
uint64_t rank_of(float logit, size_t id) {
  return uint64_t{rank_key(logit)} << 32 | (0xFFFFFFFFu - static_cast<uint32_t>(id));
}
float logit_of_rank(uint64_t rank) {
  return logit_of_key(static_cast<uint32_t>(rank >> 32));
}
int32_t id_of_rank(uint64_t rank) {
  return static_cast<int32_t>(0xFFFFFFFFu - static_cast<uint32_t>(rank));
}

float rounded(double x) {
  using Limits = std::numeric_limits<float>;
  return static_cast<float>(std::clamp<double>(x, static_cast<double>(Limits::lowest()),
                                               static_cast<double>(Limits::max())));
}
float float_below(double x) {
  return std::max(std::nextafter(rounded(x), -kInfinity), std::numeric_limits<float>::lowest());
}
float float_above(double x) {
  return std::nextafter(rounded(x), kInfinity);
}

// NaN is never the largest. In lanes.
float largest_of(std::span<const float> logits) {
  std::array<float, 16> largest;
  largest.fill(-kInfinity);
  size_t i = 0;
  for (; i + largest.size() <= logits.size(); i += largest.size())
    for (size_t lane = 0; lane < largest.size(); ++lane)
      largest[lane] = logits[i + lane] > largest[lane] ? logits[i + lane] : largest[lane];
  float result = *std::max_element(largest.begin(), largest.end());
  for (; i < logits.size(); ++i) result = logits[i] > result ? logits[i] : result;
  return result;
}

// The best `count` of the tokens from `least` on, in no order, or all where there are fewer.
std::vector<uint64_t> best_ranks(std::span<const float> logits, size_t count, float least) {
  std::vector<uint64_t> ranks;
  const size_t most = 2 * std::min(count, logits.size()) + 64;
  // Once `count` are known, later tokens have to be better than the worst of them.
  float worst = std::nextafter(least, -kInfinity);
  const auto keep_best = [&] {
    std::nth_element(ranks.begin(), ranks.begin() + static_cast<int64_t>(count) - 1, ranks.end(),
                     std::greater<>());
    ranks.resize(count);
    worst = logit_of_rank(ranks.back());
  };
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] > worst)) continue;
    ranks.push_back(rank_of(logits[i], i));
    if (ranks.size() >= most) keep_best();
  }
  if (ranks.size() > count) keep_best();
  return ranks;
}

std::span<const float> part_of(std::span<const float> logits, size_t begin) {
  return logits.subspan(begin, std::min<size_t>(kMostMasses, logits.size() - begin));
}

// body(i) for the logits of which `is_one` is 1 (otherwise 0). A branch for each would be a coin
// toss, so the places are collected first.
template <typename IsOne, typename Body>
void for_each_where(std::span<const float> logits, const IsOne& is_one, const Body& body) {
  std::array<size_t, 512> places;
  for (size_t begin = 0; begin < logits.size(); begin += places.size()) {
    const size_t end = std::min(begin + places.size(), logits.size());
    size_t count = 0;
    for (size_t i = begin; i < end; ++i) {
      places[count] = i;
      count += static_cast<size_t>(is_one(logits[i]));
    }
    for (size_t k = 0; k < count; ++k) body(places[k]);
  }
}

struct Masses {
  std::array<uint64_t, kMostMasses> mass;
  std::array<int32_t, kMostMasses> bin;

  // Of up to kMostMasses logits.
  void find(std::span<const float> logits, float largest, double inverse_temperature) {
    static const IsaOps& isa = select_isa("auto");  // all sets give the same bits
    isa.token_masses(logits.data(), std::ssize(logits), largest, inverse_temperature, mass.data(),
                     bin.data());
  }
};

// The rank at which the best tokens first hold their part of the mass. `id_at`: that of a logit.
template <typename IdAt>
uint64_t mass_cut(std::span<const float> logits, float largest, double inverse_temperature,
                  float top_p, const IdAt& id_at) {
  std::array<uint64_t, kMassBins> bins = {};
  Masses masses;
  uint64_t total = 0;
  for (size_t begin = 0; begin < logits.size(); begin += kMostMasses) {
    const std::span part = part_of(logits, begin);
    masses.find(part, largest, inverse_temperature);
    for (size_t i = 0; i < part.size(); ++i) bins[masses.bin[i]] += masses.mass[i];
  }
  for (const uint64_t mass : bins) total += mass;
  const uint64_t needed = std::max<uint64_t>(mass_needed(top_p, total), 1);
  uint64_t before = 0;
  int32_t bin = 0;
  while (before + bins[bin] < needed) before += bins[bin++];

  // Only the tokens of this bin are ranked.
  const double nearest = bin / kMassBinsPerUnit - kMargin;
  const double farthest = (bin + 1) / kMassBinsPerUnit + kMargin;
  const float most = float_above(largest - nearest / inverse_temperature);
  const float least = float_below(largest - farthest / inverse_temperature);
  struct Token {
    uint64_t rank, mass;
  };
  std::vector<float> near;
  std::vector<uint64_t> ranks;
  for_each_where(
      logits, [&](float logit) { return (logit >= least ? 1 : 0) & (logit <= most ? 1 : 0); },
      [&](size_t i) {
        near.push_back(logits[i]);
        ranks.push_back(rank_of(logits[i], id_at(i)));
      });
  std::vector<Token> tokens;
  for (size_t begin = 0; begin < near.size(); begin += kMostMasses) {
    const std::span part = part_of(near, begin);
    masses.find(part, largest, inverse_temperature);
    for (size_t i = 0; i < part.size(); ++i)
      if (masses.bin[i] == bin) tokens.push_back({ranks[begin + i], masses.mass[i]});
  }
  std::sort(tokens.begin(), tokens.end(),
            [](const Token& a, const Token& b) { return a.rank > b.rank; });
  size_t last = 0;
  while ((before += tokens[last].mass) < needed) ++last;
  return tokens[last].rank;
}

}  // namespace

DrawableTokens::DrawableTokens(std::span<const float> logits, const TokenDraw& draw)
    : inverse_temperature_(draw.inverse_temperature), min_p_(draw.min_p) {
  largest_ = largest_of(logits);
  if (!(largest_ > -kInfinity)) return;
  if (draw.min_p > 0.0f) {
    const double distance = std::log(min_p_);
    least_ = float_below(largest_ + (distance - kMargin) / inverse_temperature_);
    certain_ = float_above(largest_ + (distance + kMargin) / inverse_temperature_);
  }
  // Top-p counts the mass of what min-p leaves out, but not of what has none.
  const float needed =
      draw.top_p < 1.0f ? float_below(largest_ - kMasslessDistance / inverse_temperature_) : least_;
  std::vector<uint64_t> ranks;
  if (draw.top_k > 0) {
    const auto count = static_cast<size_t>(draw.top_k);
    ranks = best_ranks(logits, count, needed);
    if (ranks.size() == count) cut_at(*std::min_element(ranks.begin(), ranks.end()));
  }
  if (draw.top_p < 1.0f) cut_by_top_p(logits, ranks, draw.top_p);
}

void DrawableTokens::cut_at(uint64_t rank) {
  cut_logit_ = logit_of_rank(rank);
  cut_id_ = id_of_rank(rank);
  least_ = std::max(least_, cut_logit_);
}

// Of the tokens with these ranks; without any, of all.
void DrawableTokens::cut_by_top_p(std::span<const float> logits, std::span<const uint64_t> ranks,
                                  float top_p) {
  std::vector<float> ranked;
  for (const uint64_t rank : ranks) ranked.push_back(logit_of_rank(rank));
  std::span<const float> values = ranks.empty() ? logits : ranked;
  const auto id_at = [&](size_t place) {
    return ranks.empty() ? static_cast<int32_t>(place) : id_of_rank(ranks[place]);
  };
  if (largest_ < kInfinity)
    return cut_at(mass_cut(values, largest_, inverse_temperature_, top_p, id_at));
  // Infinite logits share the mass evenly.
  std::vector<float> even;
  for (const float value : values) even.push_back(value == kInfinity ? 0.0f : -kInfinity);
  cut_at(rank_of(kInfinity, id_of_rank(mass_cut(even, 0.0f, inverse_temperature_, top_p, id_at))));
}

int32_t draw_token(std::span<const float> logits, const TokenDraw& draw, const int32_t* token_map) {
  TokenRace race(draw);
  const auto enter = [&](size_t i) {
    const auto id = static_cast<int32_t>(i);
    race.enter(id, token_map == nullptr ? id : token_map[i], logits[i]);
  };
  if (!truncation_of({&draw, 1}).any()) {
    for (size_t i = 0; i < logits.size(); ++i) enter(i);
    return race.winner();
  }
  const DrawableTokens drawable(logits, draw);
  for_each_where(
      logits, [&](float logit) { return drawable.may_contain(logit) ? 1 : 0; },
      [&](size_t i) {
        if (drawable.contains(logits[i], static_cast<int32_t>(i))) enter(i);
      });
  return race.winner();
}

}  // namespace foresail
