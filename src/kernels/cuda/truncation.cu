#include "kernels/cuda/truncation.h"

#include <cuda_runtime.h>

#include "kernels/cuda/row_logits.cuh"

namespace foresail::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kDigits = 256;  // of a key's byte: one thread each
constexpr int kScanThreads = 1024;

// A search for the key at which the tokens before it first hold `need`: a byte of the key per pass,
// highest first. Tokens count one each (top-k) or their mass (top-p).
struct Search {
  RankCut cut;
  uint32_t prefix;  // bytes found so far
  uint64_t before;  // what the better tokens hold
  uint64_t need;
  int32_t ties;  // of the tokens at the cut, so many stay; 0: all
  uint32_t arrived;
  bool stays_whole[2];  // nothing is cut by top-k, by top-p
};

enum class By { kCount, kMass };

template <By kBy>
__device__ __forceinline__ bool wants(const TokenDraw& draw) {
  if (draw.inverse_temperature == 0.0) return false;
  return kBy == By::kCount ? draw.top_k > 0 : draw.top_p < 1.0f;
}

template <bool kChanged>
__global__ void largest_kernel(ChoiceArgs args, Search* searches) {
  const int64_t row = blockIdx.y;
  const RowLogits<kChanged> logits(args, row);
  const int64_t begin = blockIdx.x * kPartCols;
  const int64_t end = min(begin + kPartCols, args.cols);
  uint32_t largest = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads)
    largest = max(largest, rank_key(logits[i]));
  largest = __reduce_max_sync(0xFFFFFFFFu, largest);
  if (threadIdx.x % 32 == 0) atomicMax(&searches[row].cut.largest, largest);
}

// What one token holds.
template <By kBy>
__device__ __forceinline__ uint64_t measure(uint32_t key, float largest, double inverse) {
  return kBy == By::kCount ? 1 : token_mass(token_weight(logit_of_key(key), largest, inverse));
}

// By one thread, once all of a row's tokens are in the bins.
template <By kBy>
__device__ void choose_digit(Search& search, const unsigned long long* bins, int shift,
                             const TokenDraw& draw) {
  if (shift == 24) {
    uint64_t total = 0;
    for (int digit = 0; digit < kDigits; ++digit) total += bins[digit];
    const uint64_t need =
        kBy == By::kCount ? static_cast<uint64_t>(draw.top_k) : mass_needed(draw.top_p, total);
    search.need = need > 0 ? need : 1;
    search.before = 0;
    search.prefix = 0;
  }
  int digit = kDigits - 1;
  uint64_t before = search.before;
  while (digit >= 0 && before + bins[digit] < search.need) before += bins[digit--];
  if (digit < 0) {
    search.stays_whole[static_cast<int>(kBy)] = true;
    return;
  }
  search.before = before;
  search.prefix = search.prefix << 8 | static_cast<uint32_t>(digit);
  if (shift > 0) return;
  const uint64_t each =
      measure<kBy>(search.prefix, logit_of_key(search.cut.largest), draw.inverse_temperature);
  const uint64_t wanted = (search.need - before + each - 1) / each;
  search.ties = wanted < bins[digit] / each ? static_cast<int32_t>(wanted) : 0;
  if (search.prefix != search.cut.key) search.cut.id = INT32_MAX;
  search.cut.key = search.prefix;
}

template <By kBy, bool kChanged>
__global__ void digit_kernel(ChoiceArgs args, Search* searches, unsigned long long* all_bins,
                             int shift) {
  const int64_t row = blockIdx.y;
  const TokenDraw draw = args.draws[row];
  Search& search = searches[row];
  if (!wants<kBy>(draw) || search.stays_whole[static_cast<int>(kBy)]) return;
  __shared__ unsigned long long bins[kDigits];
  __shared__ bool is_last;
  bins[threadIdx.x] = 0;
  __syncthreads();
  const RankCut cut = search.cut;
  const float largest = logit_of_key(cut.largest);
  const uint32_t prefix = search.prefix;
  const RowLogits<kChanged> logits(args, row);
  const int64_t begin = blockIdx.x * kPartCols;
  const int64_t end = min(begin + kPartCols, args.cols);
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    const uint32_t key = rank_key(logits[i]);
    if (key == 0 || !stays(cut, key, i)) continue;
    if (shift < 24 && key >> (shift + 8) != prefix) continue;
    const uint64_t held = measure<kBy>(key, largest, draw.inverse_temperature);
    if (held > 0) atomicAdd(&bins[key >> shift & 0xFF], static_cast<unsigned long long>(held));
  }
  __syncthreads();
  unsigned long long* row_bins = all_bins + row * kDigits;
  if (bins[threadIdx.x] > 0) atomicAdd(&row_bins[threadIdx.x], bins[threadIdx.x]);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(&search.arrived, 1u) == gridDim.x - 1;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  bins[threadIdx.x] = atomicExch(&row_bins[threadIdx.x], 0ull);
  __syncthreads();
  if (threadIdx.x != 0) return;
  search.arrived = 0;
  choose_digit<kBy>(search, bins, shift, draw);
}

// Of equal tokens at the cut, the lowest ids stay.
template <bool kChanged>
__global__ void ties_kernel(ChoiceArgs args, Search* searches) {
  const int64_t row = blockIdx.x;
  Search& search = searches[row];
  const int32_t ties = search.ties;
  if (ties == 0) return;
  const uint32_t cut_key = search.cut.key;
  const RowLogits<kChanged> logits(args, row);
  int32_t seen = 0;
  for (int64_t begin = 0; begin < args.cols; begin += kScanThreads) {
    const int64_t i = begin + threadIdx.x;
    const bool is_tie = i < args.cols && rank_key(logits[i]) == cut_key;
    const int32_t here = __syncthreads_count(is_tie);
    if (seen + here < ties) {
      seen += here;
      continue;
    }
    if (threadIdx.x != 0) return;
    int64_t id = begin - 1;
    while (seen < ties) seen += rank_key(logits[++id]) == cut_key;
    search.cut.id = static_cast<int32_t>(id);
    search.ties = 0;
    return;
  }
}

__global__ void copy_cuts_kernel(const Search* searches, int64_t rows, RankCut* cuts) {
  const int64_t row = blockIdx.x * kThreads + threadIdx.x;
  if (row < rows) cuts[row] = searches[row].cut;
}

template <By kBy, bool kChanged>
void search_cut(cudaStream_t stream, const ChoiceArgs& args, Search* searches,
                unsigned long long* bins) {
  for (int shift = 24; shift >= 0; shift -= 8)
    digit_kernel<kBy, kChanged>
        <<<grid_of(args), kThreads, 0, stream>>>(args, searches, bins, shift);
  ties_kernel<kChanged>
      <<<static_cast<unsigned>(args.rows), kScanThreads, 0, stream>>>(args, searches);
}

template <bool kChanged>
void search_cuts(cudaStream_t stream, const ChoiceArgs& args, Search* searches,
                 unsigned long long* bins) {
  largest_kernel<kChanged><<<grid_of(args), kThreads, 0, stream>>>(args, searches);
  if (args.top_k) search_cut<By::kCount, kChanged>(stream, args, searches, bins);
  if (args.top_p) search_cut<By::kMass, kChanged>(stream, args, searches, bins);
}

}  // namespace

size_t truncation_workspace_bytes(int64_t rows) {
  return static_cast<size_t>(rows) *
         (kDigits * sizeof(unsigned long long) + sizeof(Search) + sizeof(RankCut));
}

const RankCut* find_cuts(cudaStream_t stream, const ChoiceArgs& args, void* workspace) {
  auto* bins = static_cast<unsigned long long*>(workspace);
  auto* searches = reinterpret_cast<Search*>(bins + args.rows * kDigits);
  auto* cuts = reinterpret_cast<RankCut*>(searches + args.rows);
  cudaMemsetAsync(workspace, 0, truncation_workspace_bytes(args.rows), stream);
  if (args.terms.rows == nullptr)
    search_cuts<false>(stream, args, searches, bins);
  else
    search_cuts<true>(stream, args, searches, bins);
  copy_cuts_kernel<<<static_cast<unsigned>((args.rows + kThreads - 1) / kThreads), kThreads, 0,
                     stream>>>(searches, args.rows, cuts);
  return cuts;
}

}  // namespace foresail::cuda
