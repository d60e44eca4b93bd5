#include "kernels/cuda/choice.h"

#include <cuda_runtime.h>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/row_logits.cuh"
#include "kernels/cuda/truncation.h"

namespace foresail::cuda {
namespace {

constexpr int kThreads = 256;

struct Best {
  double score;
  int32_t id;  // kNobody: nothing beat minus infinity
};
constexpr int32_t kNobody = INT32_MAX;

// The greater score; of equal ones the lower id, as who comes first wins on the host.
__device__ __forceinline__ Best better(const Best& a, const Best& b) {
  return b.score > a.score || (b.score == a.score && b.id < a.id) ? b : a;
}

__device__ __forceinline__ Best block_best(Best best) {
  __shared__ Best of_warps[kThreads / kWarp];
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const Best other = {__shfl_xor_sync(0xFFFFFFFFu, best.score, offset),
                        __shfl_xor_sync(0xFFFFFFFFu, best.id, offset)};
    best = better(best, other);
  }
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = best;
  __syncthreads();
  for (int warp = 0; warp < kThreads / kWarp; ++warp) best = better(best, of_warps[warp]);
  return best;
}

// `cuts`: of each row; null where none truncates.
template <bool kChanged>
__global__ void race_kernel(ChoiceArgs args, const RankCut* cuts, Best* best_of_parts) {
  const int64_t row = blockIdx.y;
  const RowLogits<kChanged> logits(args, row);
  const int64_t begin = blockIdx.x * kPartCols;
  const int64_t end = min(begin + kPartCols, args.cols);
  const TokenDraw draw = args.draws[row];
  const bool truncates = cuts != nullptr && draw.inverse_temperature != 0.0;
  const RankCut cut = truncates ? cuts[row] : RankCut{};
  const float largest = logit_of_key(cut.largest);
  TokenRace race(draw);
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    const auto id = static_cast<int32_t>(i);
    const float logit = logits[i];
    if (truncates) {
      const uint32_t key = rank_key(logit);
      if (key == 0 || !stays(cut, key, id)) continue;
      if (draw.min_p > 0.0f && token_weight(logit_of_key(key), largest, draw.inverse_temperature) <
                                   static_cast<double>(draw.min_p))
        continue;
    }
    race.enter(id, args.token_map == nullptr ? id : args.token_map[id], logit);
  }
  const bool won = race.best_score() > -std::numeric_limits<double>::infinity();
  const Best best = block_best({race.best_score(), won ? race.winner() : kNobody});
  if (threadIdx.x == 0) best_of_parts[row * gridDim.x + blockIdx.x] = best;
}

template <bool kChanged>
__global__ void finish_kernel(ChoiceArgs args, const Best* best_of_parts, int parts) {
  const int64_t row = blockIdx.x;
  Best best = {-std::numeric_limits<double>::infinity(), kNobody};
  for (int part = threadIdx.x; part < parts; part += kThreads)
    best = better(best, best_of_parts[row * parts + part]);
  best = block_best(best);
  if (threadIdx.x != 0) return;
  const int32_t winner = best.id == kNobody ? 0 : best.id;
  const int32_t token = args.token_map == nullptr ? winner : args.token_map[winner];
  args.tokens[row] = args.marks && isnan(RowLogits<kChanged>(args, row)[winner]) ? ~token : token;
}

template <bool kChanged>
void run_race(cudaStream_t stream, const ChoiceArgs& args) {
  auto* best_of_parts = static_cast<Best*>(args.workspace);
  const int64_t parts = parts_of(args.cols);
  const RankCut* cuts = nullptr;
  if (args.truncates) cuts = find_cuts(stream, args, best_of_parts + args.rows * parts);
  race_kernel<kChanged><<<grid_of(args), kThreads, 0, stream>>>(args, cuts, best_of_parts);
  finish_kernel<kChanged><<<static_cast<unsigned>(args.rows), kThreads, 0, stream>>>(
      args, best_of_parts, static_cast<int>(parts));
}

// Integers, so that two rows of a request may add to the same token.
__global__ void count_kernel(ChoiceArgs args) {
  for (int64_t row = threadIdx.x; row < args.rows; row += kThreads) {
    const DrawTerms terms = args.terms.rows[row];
    if (terms.table_row < 0) continue;
    const int64_t first = row - terms.row;
    const int32_t token = token_to_count(terms, args.terms.fed + first, args.tokens + first);
    if (token >= 0)
      atomicAdd(&args.terms.table[terms.table_row * args.cols + token].seen, TokenTerms::kOutput);
  }
}

__global__ void accept_kernel(AcceptArgs args) {
  for (int s = threadIdx.x; s < args.sequences; s += kThreads) {
    const int32_t begin = args.row_begin[s];
    const int32_t count = args.row_count[s];
    const int32_t pretended = args.pretended[s];
    const int32_t* fed = args.fed + begin;
    const int32_t* tokens = args.tokens + begin;
    args.lag[s] = count - accept_rows(fed, tokens, count, pretended);
    for (int32_t row = 0; row < count; ++row)
      args.next_tokens[begin + row] =
          row < pretended && row + 1 < count ? fed[row + 1] : without_mark(tokens[row]);
  }
}

__device__ __forceinline__ void move_row_up(const LagArgs& args, int row, int32_t lag) {
  const int32_t s = args.table_row[row];
  const int32_t position = args.positions[row] - lag;
  args.positions[row] = position;
  args.visible[row] -= lag;
  const int32_t page = args.tables[int64_t{s} * args.table_width + position / args.page_size];
  args.slots[row] = page * args.page_size + position % args.page_size;
}

__global__ void lag_kernel(LagArgs args) {
  const auto lag_of_rows = [&](int32_t s) {
    return (args.rows_lag ? args.lag[s] : 0) + (args.row_lag == nullptr ? 0 : args.row_lag[s]);
  };
  for (int s = threadIdx.x; s < args.sequences; s += kThreads) {
    args.draws[s].position -= args.lag[s] + (args.row_lag == nullptr ? 0 : args.row_lag[s]);
    if (!args.rows_lag) args.wanted_rows[s] -= args.lag[s];
  }
  if (!args.rows_lag && args.row_lag == nullptr) return;
  for (int row = threadIdx.x; row < args.rows; row += kThreads)
    if (args.visible[row] != 0)  // no padding
      move_row_up(args, row, lag_of_rows(args.table_row[row]));
  for (int piece = threadIdx.x; piece < args.pieces; piece += kThreads)
    args.piece_end[piece] -= lag_of_rows(args.piece_table[piece]);
}

__global__ void carry_kernel(CarryArgs args) {
  const LagArgs& places = args.places;
  for (int s = threadIdx.x; s < places.sequences; s += kThreads)
    args.row_lag[s] = args.lag_places[s] < 0 ? 0 : args.from[args.lag_places[s]];
  __syncthreads();
  for (int row = threadIdx.x; row < places.rows; row += kThreads) {
    const int32_t s = places.table_row[row];
    const int32_t lag = args.row_lag[s];
    const int32_t place = args.token_places[row];
    const bool is_first = row == 0 || places.table_row[row - 1] != s;
    if (place >= 0) args.token_ids[row] = without_mark(args.from[place - (is_first ? lag : 0)]);
    places.draws[row].position -= lag;
    move_row_up(places, row, lag);
  }
  for (int piece = threadIdx.x; piece < places.pieces; piece += kThreads)
    places.piece_end[piece] -= args.row_lag[places.piece_table[piece]];
}

}  // namespace

size_t choice_workspace_bytes(int64_t rows, int64_t cols) {
  return static_cast<size_t>(rows * parts_of(cols)) * sizeof(Best) +
         truncation_workspace_bytes(rows);
}

void choose_tokens(cudaStream_t stream, const ChoiceArgs& args) {
  if (args.rows == 0) return;
  if (args.terms.rows == nullptr)
    run_race<false>(stream, args);
  else
    run_race<true>(stream, args);
}

void count_tokens(cudaStream_t stream, const ChoiceArgs& args) {
  count_kernel<<<1, kThreads, 0, stream>>>(args);
}

void accept_drafts(cudaStream_t stream, const AcceptArgs& args) {
  accept_kernel<<<1, kThreads, 0, stream>>>(args);
}

void apply_lag(cudaStream_t stream, const LagArgs& args) {
  lag_kernel<<<1, kThreads, 0, stream>>>(args);
}

void apply_carry(cudaStream_t stream, const CarryArgs& args) {
  carry_kernel<<<1, kThreads, 0, stream>>>(args);
}

}  // namespace foresail::cuda
