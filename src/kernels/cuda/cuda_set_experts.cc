// Products around the layers' norms, gated MLPs and experts of the CUDA set.
#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/cuda_set.h"
#include "kernels/cuda/router.h"
#include "kernels/cuda/sm90/chosen_rows.h"
#include "kernels/cuda/sm90/mixture.h"
#include "kernels/cuda/sm90/wide_product.h"

namespace foresail {
namespace {

// (row, choice) pairs worked on together: bounds the memory of a long prefill. Within so many, each
// expert's weights are read once.
constexpr int64_t kMostPairs = 8192;
// Of bf16 rows whose gated results are left split: nothing lies between the products but one term.
constexpr int64_t kMostBF16Pairs = 16384;

size_t align_up(size_t size_bytes) {
  return (size_bytes + 255) / 256 * 256;
}

// f32 or bf16 rows as the x of a product.
cuda::GemmArgs product_of(const MatrixView& x) {
  return {.n_in = x.cols,
          .rows = x.rows,
          .x = x.data,
          .x_is_bf16 = x.dtype == DType::kBF16,
          .x_stride = x.stride};
}

// What a product reads that does not norm rows itself.
const MatrixView& rows_behind(const RowNorm& norm, const MatrixView& x) {
  return norm.weight == nullptr ? x : norm.normed;
}

// Whether the product may norm these rows itself; then it will.
bool norms(const RowNorm& norm, cuda::GemmArgs& args) {
  if (norm.weight == nullptr || !cuda::norms_rows(args)) return false;
  args.norm_weight = norm.weight;
  args.norm_eps = norm.eps;
  return true;
}

}  // namespace

cuda::GemmArgs CudaKernels::gate_product(const cuda::GemmArgs& rows, const ExpertWeights& weights,
                                         const GatedScratch& scratch) const {
  cuda::GemmArgs args = rows;
  args.weight = CudaMatrix::data_of(*weights.gate_up);
  args.n_out = weights.gate_up->n_out();
  args.gated = gates(args);
  const MatrixView& product = args.gated ? scratch.inner : scratch.gate_up;
  args.out = product.data;
  args.out_is_bf16 = product.dtype == DType::kBF16;
  args.out_stride = product.stride;
  return args;
}

bool CudaKernels::norm_rows(const MatrixView& x, const RowNorm& norm,
                            const cuda::GemmArgs& product) {
  if (norm.weight == nullptr) return false;
  const cuda::Rows rows = rows_of(x);
  if (!goes_wide(product) || !cuda::norms_and_splits(rows, norm.weight, product)) {
    rms_norm(x, norm.weight, norm.eps, norm.normed);
    return false;
  }
  cuda::norm_and_split(stream(), rows, norm.weight, norm.eps, rows_of(norm.normed), product,
                       scratch(Scratch::kWideRows, cuda::wide_scratch_bytes(product)));
  return true;
}

void CudaKernels::project(const MatrixView& x, const RowNorm& norm,
                          std::span<const RowProduct> projections) {
  cuda::GemmArgs args = product_of(x);
  const bool are_normed = norms(norm, args);
  if (!are_normed) args = product_of(rows_behind(norm, x));
  for (size_t i = 0; i < projections.size(); i += 2) {
    const RowProduct& first = projections[i];
    args.weight = CudaMatrix::data_of(*first.weight);
    args.n_out = first.weight->n_out();
    args.bias = first.bias;
    args.out = first.out.data;
    args.out_stride = first.out.stride;
    args.beside = {};
    const bool are_split = i == 0 && !are_normed && norm_rows(x, norm, args);
    const cuda::GemmArgs alone = args;
    if (i + 1 < projections.size()) {
      const RowProduct& second = projections[i + 1];
      args.beside = {.weight = CudaMatrix::data_of(*second.weight),
                     .n_out = second.weight->n_out(),
                     .rows = x.rows,
                     .bias = second.bias,
                     .out = second.out.data,
                     .out_stride = second.out.stride};
    }
    multiply(args, are_split ? &alone : nullptr);
  }
  check("project");
}

bool CudaKernels::splits_results(const cuda::GemmArgs& first, const cuda::GemmArgs& next) const {
  cuda::GemmArgs alone = first;
  alone.beside = {};
  return goes_wide(alone) && goes_wide(next) && cuda::can_split_for(alone, next);
}

void* CudaKernels::multiply_first(const cuda::GemmArgs& first, const cuda::GemmArgs& next,
                                  Scratch purpose, const cuda::GemmArgs* before,
                                  const cuda::SplitProduct* along) {
  if (!splits_results(first, next)) {
    multiply(first, before);
    return nullptr;
  }
  void* split_rows = scratch(purpose, cuda::wide_scratch_bytes(next));
  cuda::GemmArgs product = first;
  product.split_out = cuda::split_out_of(next, split_rows);
  if (along == nullptr)
    multiply(product, before);
  else
    cuda::wide_product(stream(), product,
                       scratch(Scratch::kWideRows, cuda::wide_scratch_bytes(product)),
                       before != nullptr, along);
  return split_rows;
}

void CudaKernels::multiply_next(const cuda::GemmArgs& next, void* split_rows) {
  if (split_rows == nullptr) return multiply(next);
  cuda::wide_product(stream(), next, split_rows, true);
}

void CudaKernels::gated_mlp(const MatrixView& x, const RowNorm& norm, const ExpertWeights& weights,
                            float scale, const GatedScratch& scratch, const MatrixView& out) {
  cuda::GemmArgs rows = product_of(x);
  const bool are_normed = norms(norm, rows);
  if (!are_normed) rows = product_of(rows_behind(norm, x));
  const cuda::GemmArgs gate_up = gate_product(rows, weights, scratch);
  const cuda::GemmArgs down = linear_args(scratch.inner, *weights.down, nullptr, scale, true, out);
  const bool are_split = !are_normed && norm_rows(x, norm, gate_up);
  void* inner = multiply_first(gate_up, down, Scratch::kWideInner, are_split ? &gate_up : nullptr);
  if (!gate_up.gated) silu_mul(scratch.gate_up, scratch.inner);
  multiply_next(down, inner);
  check("gated_mlp");
}

namespace {

cuda::RouteArgs route_args(const MatrixView& logits, const RouteParams& params) {
  FORESAIL_CHECK(params.expert_count <= cuda::kMostExperts && params.top_k <= cuda::kMostChoices &&
                     params.group_count <= cuda::kMostGroups,
                 "{} experts, {} chosen, {} groups", params.expert_count, params.top_k,
                 params.group_count);
  return {.logits = static_cast<const float*>(logits.data),
          .stride = logits.stride,
          .rows = logits.rows,
          .sigmoid = params.score == GateScore::kSigmoid,
          .group_rule = params.group_score == GroupScore::kMax         ? cuda::GroupRule::kMax
                        : params.group_score == GroupScore::kTopTwoSum ? cuda::GroupRule::kTopTwoSum
                                                                       : cuda::GroupRule::kNone,
          .experts = params.expert_count,
          .top_k = params.top_k,
          .groups = params.group_count,
          .top_groups = params.top_groups,
          .normalize = params.normalize,
          .scale = params.scale,
          .bias = params.bias};
}

}  // namespace

void CudaKernels::route(const MatrixView& logits, const RouteParams& params, int32_t* ids,
                        float* weights) {
  cuda::RouteArgs args = route_args(logits, params);
  args.ids = ids;
  args.weights = weights;
  cuda::route(stream(), args);
  check("route");
}

cuda::ExpertTables CudaKernels::expert_tables(std::span<const ExpertWeights> experts) {
  std::vector<const void*> pointers;
  pointers.reserve(2 * experts.size());
  for (const ExpertWeights& expert : experts)
    pointers.push_back(CudaMatrix::data_of(*expert.gate_up));
  for (const ExpertWeights& expert : experts) pointers.push_back(CudaMatrix::data_of(*expert.down));
  const void* const* table = table_of(experts.data(), std::move(pointers));
  return {table, table + experts.size()};
}

int64_t CudaKernels::most_pairs(const MatrixView& x, int64_t inner) const {
  const bool is_wide = has_sm90_ && !deterministic_ && cuda::has_vector_rows(product_of(x));
  return is_wide && x.dtype == DType::kBF16 && inner % 64 == 0 ? kMostBF16Pairs : kMostPairs;
}

uint64_t cuda_expert_bytes(int64_t hidden, int64_t inner, int64_t experts) {
  const auto split_bytes = [&](int64_t pairs, int64_t terms) {
    const int tile_rows = std::max(cuda::wide_tile_rows(pairs, experts), 1);
    const int64_t rows = cuda::tile_limit(pairs, experts, tile_rows) * tile_rows;
    return rows * (hidden + inner) * 2 * terms + pairs * hidden * 4;
  };
  const int64_t most = std::max({split_bytes(kMostPairs, 2), split_bytes(kMostBF16Pairs, 1),
                                 kMostPairs * (3 * inner + hidden) * 4});
  return grown_scratch(static_cast<size_t>(most));
}

cuda::PairLists CudaKernels::pair_lists(int64_t pairs, int64_t expert_count, int tile_rows) {
  const int64_t tiles = cuda::tile_limit(pairs, expert_count, tile_rows);
  const size_t row_bytes = align_up(pairs * sizeof(int32_t));
  auto* data = static_cast<std::byte*>(scratch(
      Scratch::kPairs, 2 * row_bytes + static_cast<size_t>(tiles) * sizeof(cuda::ExpertTile)));
  return {.pair_row = reinterpret_cast<int32_t*>(data),
          .pair_place = reinterpret_cast<int32_t*>(data + row_bytes),
          .tiles = reinterpret_cast<cuda::ExpertTile*>(data + 2 * row_bytes),
          .tile_limit = static_cast<int32_t>(tiles)};
}

cuda::GemmArgs CudaKernels::listed_rows(const MatrixView& x, const cuda::PairLists& lists,
                                        const TileShape& tile, int64_t pairs) {
  cuda::GemmArgs args = product_of(x);
  args.tiles = lists.tiles;
  args.tile_limit = lists.tile_limit;
  args.tile_rows = tile.rows;
  args.wide_tiles = tile.is_wide;
  args.rows = pairs;
  args.x_rows = lists.pair_row;
  return args;
}

bool CudaKernels::listed_experts(const cuda::GemmArgs& rows, bool are_split,
                                 const cuda::PairLists& lists, int64_t inner, const Chosen& chosen,
                                 const SharedBeside& shared, const MatrixView& out) {
  const bool bf16 = rows.x_is_bf16;
  const bool has_shared = shared.weights.gate_up != nullptr;
  const int64_t pairs = rows.rows;
  const int64_t more = has_shared || shared.down != nullptr ? out.rows : 0;
  auto* results = static_cast<float*>(
      scratch(Scratch::kResults, static_cast<size_t>((pairs + more) * out.cols) * sizeof(float)));
  float* shared_results = has_shared ? results + pairs * out.cols : nullptr;
  cuda::GemmArgs args = rows;
  args.n_out = 2 * inner;
  args.gated = gates(args);
  if (has_shared)
    args.beside = {.weight = CudaMatrix::data_of(*shared.weights.gate_up),
                   .n_out = shared.weights.gate_up->n_out(),
                   .rows = out.rows,
                   .out = shared.inner.data,
                   .out_stride = shared.inner.stride};
  cuda::GemmArgs down = args;
  down.gated = false;
  down.tiles_down = true;
  down.n_out = out.cols;
  down.n_in = inner;
  down.x = nullptr;
  down.x_stride = inner;
  down.x_rows = nullptr;
  down.out = results;
  down.out_stride = out.cols;
  down.beside = {};
  if (has_shared)
    down.beside = {.weight = CudaMatrix::data_of(*shared.weights.down),
                   .n_out = out.cols,
                   .rows = out.rows,
                   .x = shared.inner.data,
                   .x_stride = shared.inner.stride,
                   .n_in = shared.weights.down->n_in(),
                   .out = shared_results,
                   .out_stride = out.cols};
  // Results that are left split lie nowhere else.
  const bool splits = splits_results(args, down);
  void* inner_rows =
      splits ? nullptr
             : scratch(Scratch::kHidden, static_cast<size_t>(pairs * inner) * (bf16 ? 2 : 4));
  args.out = inner_rows;
  args.out_is_bf16 = bf16;
  args.out_stride = inner;
  if (!args.gated) {
    args.out = scratch(Scratch::kGateUp, static_cast<size_t>(pairs * 2 * inner) * sizeof(float));
    args.out_is_bf16 = false;
    args.out_stride = 2 * inner;
  }
  down.x = inner_rows;
  const bool takes_along =
      shared.down != nullptr && splits && cuda::takes_along(args, shared.down->args);
  cuda::SplitProduct along;
  if (takes_along) {
    // The shared expert's results are added last, so they are kept until then.
    shared_results = results + pairs * out.cols;
    along = *shared.down;
    along.args.out = shared_results;
    along.args.out_stride = out.cols;
    along.args.accumulate = false;
  }
  void* split_rows = multiply_first(args, down, Scratch::kWideInner, are_split ? &args : nullptr,
                                    takes_along ? &along : nullptr);
  if (!args.gated)
    cuda::silu_mul(
        stream(), {args.out, cuda::Element::kF32, pairs, 2 * inner, 2 * inner},
        {inner_rows, bf16 ? cuda::Element::kBF16 : cuda::Element::kF32, pairs, inner, inner});
  multiply_next(down, split_rows);
  cuda::combine(stream(), results, lists.pair_place, chosen.ids, chosen.weights, chosen.top_k,
                shared_results, rows_of(out));
  return takes_along;
}

void CudaKernels::experts(const MatrixView& x, std::span<const ExpertWeights> experts,
                          const int32_t* ids, const float* weights, int top_k,
                          const MatrixView& out) {
  const cuda::ExpertTables tables = expert_tables(experts);
  const auto expert_count = static_cast<int64_t>(experts.size());
  const int64_t inner = experts[0].down->n_in();

  // Pieces of one size: the last had too few rows for wide_product otherwise, and its own order.
  const int64_t most_rows = std::max<int64_t>(most_pairs(x, inner) / top_k, 1);
  const int64_t pieces = std::max<int64_t>((x.rows + most_rows - 1) / most_rows, 1);
  const int64_t piece_rows = (x.rows + pieces - 1) / pieces;
  for (int64_t first = 0; first < x.rows; first += piece_rows) {
    const int64_t rows = std::min(piece_rows, x.rows - first);
    const int64_t pairs = rows * top_k;
    const int wide_rows = wide_tile_rows(product_of(x), pairs, expert_count, inner);
    const int tile_rows = wide_rows > 0 ? wide_rows : cuda::expert_tile_rows(pairs, expert_count);
    const cuda::PairLists lists = pair_lists(pairs, expert_count, tile_rows);
    const Chosen chosen = {ids + first * top_k, weights + first * top_k, top_k};
    cuda::order_pairs(stream(), chosen.ids, pairs, top_k, tile_rows, tables, lists);
    listed_experts(listed_rows(row_range(x, first, rows), lists, {tile_rows, wide_rows > 0}, pairs),
                   false, lists, inner, chosen, {}, row_range(out, first, rows));
  }
  check("experts");
}

bool CudaKernels::mix_at_once(const MatrixView& x, const RowNorm& norm, const Mixture& mixture,
                              const MixtureScratch& scratch, const MatrixView& out) {
  if (!has_sm90_) return false;
  const int64_t pairs = x.rows * mixture.route.top_k;
  cuda::MixtureArgs args = {.router = product_of(x),
                            .route = route_args(scratch.logits, mixture.route),
                            .inner_dim = mixture.experts[0].down->n_in(),
                            .out = static_cast<float*>(out.data),
                            .out_stride = out.stride};
  if (!norms(norm, args.router)) return false;
  args.router.weight = CudaMatrix::data_of(*mixture.router);
  args.router.n_out = mixture.router->n_out();
  if (mixture.shared.gate_up != nullptr) {
    args.shared_gate_up = CudaMatrix::data_of(*mixture.shared.gate_up);
    args.shared_down = CudaMatrix::data_of(*mixture.shared.down);
    args.shared_dim = mixture.shared.down->n_in();
  }
  if (!cuda::fits_mixture(args)) return false;
  args.inner = static_cast<float*>(this->scratch(
      Scratch::kHidden,
      static_cast<size_t>(pairs * args.inner_dim + x.rows * args.shared_dim) * sizeof(float)));
  args.experts = expert_tables(mixture.experts);
  // Comes zeroed, and every call leaves it as the next one needs it.
  args.meeting = static_cast<int32_t*>(
      this->scratch(Scratch::kMeeting, cuda::kMeetingWords * sizeof(int32_t)));
  cuda::mixture(stream(), args);
  check("mix_experts");
  return true;
}

bool CudaKernels::mix_listed(const MatrixView& x, const RowNorm& norm, const Mixture& mixture,
                             const MixtureScratch& scratch, const MatrixView& out) {
  constexpr int64_t kMostBesideRows = 32;
  cuda::RouteArgs route = route_args(scratch.logits, mixture.route);
  const int64_t pairs = x.rows * route.top_k;
  const MatrixView& rows = rows_behind(norm, x);
  const int64_t inner = mixture.experts[0].down->n_in();
  if (route.experts > cuda::kMostRoutedExperts || pairs > most_pairs(rows, inner)) return false;
  route.ids = scratch.ids;
  route.weights = scratch.weights;
  const auto expert_count = static_cast<int64_t>(mixture.experts.size());
  const int wide_rows = wide_tile_rows(product_of(rows), pairs, expert_count, inner);
  const int tile_rows = wide_rows > 0 ? wide_rows : cuda::expert_tile_rows(pairs, expert_count);
  // Comes zeroed, and every call leaves it so.
  auto* arrivals = static_cast<int32_t*>(this->scratch(
      Scratch::kArrivals, (cuda::kRouterArrivals + cuda::kChosenRowsWords) * sizeof(int32_t)));
  cuda::RouterArgs router = {.product = product_of(rows),
                             .route = route,
                             .tile_rows = tile_rows,
                             .experts = expert_tables(mixture.experts),
                             .lists = pair_lists(pairs, expert_count, tile_rows),
                             .arrivals = arrivals};
  router.product.weight = CudaMatrix::data_of(*mixture.router);
  router.product.n_out = mixture.router->n_out();
  router.product.out = scratch.logits.data;
  router.product.out_stride = scratch.logits.stride;

  // The shared expert: beside the others, where its results are gated in the product as theirs are;
  // otherwise with the router or behind it, which reads the same rows.
  const ExpertWeights& shared = mixture.shared;
  const MatrixView& shared_inner = scratch.shared.inner;
  const bool has_shared = shared.gate_up != nullptr;
  cuda::GemmArgs gate_up = product_of(rows);
  gate_up.n_out = 2 * inner;
  cuda::GemmArgs shared_gate_up = gate_up;
  if (has_shared) shared_gate_up.n_out = shared.gate_up->n_out();
  const bool beside = has_shared && x.rows <= kMostBesideRows && cuda::gates_rows(gate_up) &&
                      cuda::gates_rows(shared_gate_up) && shared_inner.dtype == DType::kF32;
  const bool apart = has_shared && !beside;
  const bool are_split = norm_rows(x, norm, router.product);
  cuda::GemmArgs shared_first;
  cuda::SplitProduct shared_down;
  if (apart) {
    shared_first = gate_product(product_of(rows), shared, scratch.shared);
    shared_down.args = linear_args(shared_inner, *shared.down, nullptr, 1.0f, true, out);
    // Results that are left split are not stored: then all that is, is the router's beside them.
    if (splits_results(shared_first, shared_down.args)) shared_first.out_is_bf16 = false;
  }
  void* shared_split = nullptr;
  const auto gate_shared = [&](const cuda::GemmArgs* before) {
    if (!apart) return;
    shared_split = multiply_first(shared_first, shared_down.args, Scratch::kWideShared, before);
    if (!shared_first.gated) silu_mul(scratch.shared.gate_up, shared_inner);
  };
  const cuda::GemmArgs listed = listed_rows(rows, router.lists, {tile_rows, wide_rows > 0}, pairs);
  bool is_listed_split = false;
  if (cuda::fits_router(router)) {
    cuda::route_rows(stream(), router);
    gate_shared(nullptr);
  } else {
    const cuda::GemmArgs* before = are_split ? &router.product : nullptr;
    if (apart && shared_first.gated && goes_wide(shared_first) &&
        cuda::takes_beside(shared_first, router.product)) {
      shared_first.beside = {.weight = router.product.weight,
                             .n_out = router.product.n_out,
                             .rows = x.rows,
                             .out = router.product.out,
                             .out_stride = router.product.out_stride,
                             .plain = true};
      gate_shared(before);
    } else {
      multiply(router.product, before);
      gate_shared(&router.product);
    }
    int32_t* const words = arrivals + cuda::kRouterArrivals;
    is_listed_split = goes_wide(listed) && cuda::fits_chosen_rows(route);
    if (is_listed_split)
      cuda::choose_and_split(
          stream(), {.route = route,
                     .experts = router.experts,
                     .lists = router.lists,
                     .product = listed,
                     .scratch = this->scratch(Scratch::kWideRows, cuda::wide_scratch_bytes(listed)),
                     .words = words});
    else
      cuda::route_and_order(stream(), route, tile_rows, router.experts, router.lists, words);
  }
  shared_down.rows = shared_split;
  const SharedBeside shared_beside = {beside ? shared : ExpertWeights{}, shared_inner,
                                      shared_split != nullptr ? &shared_down : nullptr};
  const bool added = listed_experts(listed, is_listed_split, router.lists, inner,
                                    {route.ids, route.weights, route.top_k}, shared_beside, out);
  if (apart && !added) multiply_next(shared_down.args, shared_split);
  check("mix_experts");
  return true;
}

void CudaKernels::mix_experts(const MatrixView& x, const RowNorm& norm, const Mixture& mixture,
                              const MixtureScratch& scratch, const MatrixView& out) {
  if (x.rows == 0 || mix_at_once(x, norm, mixture, scratch, out) ||
      mix_listed(x, norm, mixture, scratch, out))
    return;
  KernelSet::mix_experts(x, norm, mixture, scratch, out);
}

}  // namespace foresail
