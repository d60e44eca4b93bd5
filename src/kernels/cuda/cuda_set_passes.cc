// The passes of the CUDA set: what the host decided is uploaded, and passes met before are replayed
// as graphs, those of a chain as one.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "kernels/cuda/cuda_set.h"
#include "kernels/token_truncation.h"

namespace foresail {
namespace {

// Beyond so many rows a pass is limited by its arithmetic, not by the launches of its kernels.
constexpr int64_t kMostRecordedRows = 256;
constexpr size_t kMostRecordings = kMostRecordedPasses;

// Everything that decides the operations of a pass and what is fixed in a recording of them.
std::string key_of(const PassInputs& inputs, const cuda::PassWords& pass) {
  std::string key;
  key.reserve(256);
  const auto add = [&](const auto& value) {
    key.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  add(inputs.work);
  for (const size_t size :
       {inputs.token_ids.size(), inputs.positions.size(), inputs.slots.size(),
        inputs.row_scale.size(), inputs.sequences.size(), inputs.wanted_rows.size()})
    add(size);
  add(inputs.draws.size());
  add(truncation_of(inputs.draws));
  add(inputs.terms.size());
  add(kinds_of(inputs.terms));
  add(inputs.pretended.size());
  add(inputs.links.token_ids);
  add(inputs.links.lag);
  add(inputs.links.lag_of);
  add(inputs.links.row_lag);
  add(inputs.carry.from);
  add(inputs.carry.row_lag);
  add(inputs.page_size);
  add(pass.table_width);
  add(pass.most_visible);
  for (const cuda::AttentionRun& run : pass.runs) add(run);
  return key;
}

int64_t kernels_in(cudaGraph_t graph) {
  size_t count = 0;
  check_cuda(cudaGraphGetNodes(graph, nullptr, &count), "counting the kernels of a pass");
  std::vector<cudaGraphNode_t> nodes(count);
  check_cuda(cudaGraphGetNodes(graph, nodes.data(), &count), "counting the kernels of a pass");
  return std::count_if(nodes.begin(), nodes.end(), [](cudaGraphNode_t node) {
    cudaGraphNodeType type{};
    return cudaGraphNodeGetType(node, &type) == cudaSuccess && type == cudaGraphNodeTypeKernel;
  });
}

}  // namespace

void CudaKernels::forget_recordings() {
  FORESAIL_CHECK(chained_.empty(), "recorded passes are put off");
  forget_chains();
  for (const auto& [key, recording] : recordings_) {
    if (recording.executable != nullptr) cudaGraphExecDestroy(recording.executable);
    if (recording.graph != nullptr) cudaGraphDestroy(recording.graph);
  }
  recordings_.clear();
}

void CudaKernels::stop_recording() noexcept {
  if (recording_.empty()) return;
  recording_.clear();
  cudaGraph_t graph = nullptr;
  if (cudaStreamEndCapture(stream(), &graph) == cudaSuccess && graph != nullptr)
    cudaGraphDestroy(graph);
  cudaGetLastError();
}

void CudaKernels::upload_words(std::span<const int32_t> words, int32_t* to) {
  const cudaEvent_t read = pinned_read_[next_pinned_ / kHalfPinned];
  if (next_pinned_ % kHalfPinned == 0) memory_.wait_for(read);
  Buffer& pinned = pinned_words_[next_pinned_];
  if (pinned.size_bytes() < words.size_bytes())
    pinned = Buffer(2 * words.size_bytes(), memory_.staging());
  std::memcpy(pinned.data(), words.data(), words.size_bytes());
  memory_.upload_pinned(to, pinned.data(), words.size_bytes());
  next_pinned_ = (next_pinned_ + 1) % pinned_words_.size();
  if (next_pinned_ % kHalfPinned == 0)
    check_cuda(cudaEventRecord(read, stream()), "recording an event");
}

bool CudaKernels::begin_pass(const PassInputs& inputs) {
  stop_recording();
  inputs_ = inputs;
  cuda::lay_out(inputs, pass_);
  ++memory_.counts().passes;
  // Requests of unequal row counts make too many kinds of passes to keep.
  const bool may_record = records_ && inputs.work != 0 && pass_.runs.size() <= 1 &&
                          static_cast<int64_t>(inputs.positions.size()) <= kMostRecordedRows;
  std::string key = may_record ? key_of(inputs, pass_) : std::string();
  auto found = may_record ? recordings_.find(key) : recordings_.end();
  const bool recorded = found != recordings_.end() && found->second.executable != nullptr;
  if (chaining_ && recorded) {
    chained_.push_back({&found->second, chain_words_.size(), pass_.words.size()});
    chain_words_.insert(chain_words_.end(), pass_.words.begin(), pass_.words.end());
    chain_key_ += key;
    count(found->second);
    return true;
  }
  if (chaining_) start_chained();

  const size_t bytes = pass_.words.size() * sizeof(int32_t);
  device_words_ = static_cast<int32_t*>(scratch(Scratch::kPassWords, bytes));
  upload_words(pass_.words, device_words_);
  found = may_record ? recordings_.find(key) : recordings_.end();  // scratch may have moved
  if (found != recordings_.end() && found->second.executable != nullptr) {
    count(found->second);
    launch(found->second.executable);
    return true;
  }
  if (found != recordings_.end()) {
    check_cuda(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal),
               "recording a pass");
    recording_ = std::move(key);
    counting_ = {};
  } else if (may_record) {
    if (recordings_.size() >= kMostRecordings) forget_recordings();
    recordings_.emplace(std::move(key), Recording{});
  }
  if (recording_.empty()) clock_.begin_stretch();
  apply_carry();
  apply_links();
  return false;
}

void CudaKernels::end_pass() {
  if (recording_.empty()) return clock_.end_stretch();
  const std::string key = std::move(recording_);
  recording_.clear();
  Recording recording = counting_;
  check_cuda(cudaStreamEndCapture(stream(), &recording.graph), "recording a pass");
  const cudaError_t error = cudaGraphInstantiate(&recording.executable, recording.graph, 0);
  if (error != cudaSuccess) cudaGraphDestroy(recording.graph);
  check_cuda(error, "instantiating a recorded pass");
  recording.launches = kernels_in(recording.graph);
  recordings_[key] = recording;
  count(recording);
  launch(recording.executable);
}

void CudaKernels::launch(cudaGraphExec_t graph) {
  clock_.begin_stretch();
  check_cuda(cudaGraphLaunch(graph, stream()), "launching a recorded pass");
  clock_.end_stretch();
  ++memory_.counts().replays;
}

void CudaKernels::count(const Recording& recording) {
  DeviceCounts& counts = memory_.counts();
  ++counts.counted_passes;
  counts.launches += recording.launches;
  counts.layers += recording.layers;
  counts.layer_launches += recording.layer_launches;
}

int64_t CudaKernels::recorded_launches() const {
  cudaStreamCaptureStatus status{};
  cudaGraph_t graph = nullptr;
  check_cuda(
      cudaStreamGetCaptureInfo(stream(), &status, nullptr, &graph, nullptr, nullptr, nullptr),
      "looking at the pass being recorded");
  return kernels_in(graph);
}

void CudaKernels::begin_layers(int64_t count) {
  if (recording_.empty()) return;
  counting_.layers = count;
  counting_.layer_launches = -recorded_launches();
}

void CudaKernels::end_layers() {
  if (!recording_.empty()) counting_.layer_launches += recorded_launches();
}

DeviceCounts CudaKernels::counts() {
  clock_.move_to(memory_.counts());
  return memory_.counts();
}

void CudaKernels::time_work(bool on) {
  if (on)
    clock_.start();
  else
    clock_.stop();
}

void CudaKernels::begin_chain() {
  chained_.clear();
  chain_key_.clear();
  chain_words_.clear();
  chaining_ = records_;
}

void CudaKernels::start_chained() {
  chaining_ = false;
  for (const ChainedPass& pass : std::exchange(chained_, {})) {
    // The words were that large when the pass was recorded.
    upload_words(std::span(chain_words_).subspan(pass.begin, pass.count),
                 scratch_[static_cast<size_t>(Scratch::kPassWords)].as<int32_t>());
    launch(pass.recording->executable);
  }
}

// A copy of a pass's words to where it expects them, the pass, the next copy, and so on. Null where
// the driver does not join them.
cudaGraphExec_t CudaKernels::join_chained() {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  check_cuda(cudaGraphCreate(&graph, 0), "joining recorded passes");
  void* const words = scratch_[static_cast<size_t>(Scratch::kPassWords)].data();
  cudaGraphNode_t last = nullptr;
  cudaError_t error = cudaSuccess;
  for (const ChainedPass& pass : chained_) {
    cudaGraphNode_t copy = nullptr;
    error = cudaGraphAddMemcpyNode1D(&copy, graph, &last, last == nullptr ? 0 : 1, words,
                                     device_chain_words_.as<int32_t>() + pass.begin,
                                     pass.count * sizeof(int32_t), cudaMemcpyDeviceToDevice);
    if (error == cudaSuccess)
      error = cudaGraphAddChildGraphNode(&last, graph, &copy, 1, pass.recording->graph);
    if (error != cudaSuccess) break;
  }
  if (error == cudaSuccess) error = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  if (error == cudaSuccess) return executable;
  cudaGetLastError();  // not sticky, but kept until asked for
  return nullptr;
}

void CudaKernels::end_chain() {
  if (!chaining_) return;
  const size_t bytes = chain_words_.size() * sizeof(int32_t);
  if (device_chain_words_.size_bytes() < bytes || chains_.size() >= kMostRecordings)
    forget_chains();
  if (device_chain_words_.size_bytes() < bytes) device_chain_words_ = Buffer(2 * bytes, memory_);
  auto found = chains_.find(chain_key_);
  if (found == chains_.end()) found = chains_.emplace(chain_key_, join_chained()).first;
  if (found->second == nullptr) return start_chained();
  upload_words(chain_words_, device_chain_words_.as<int32_t>());
  launch(found->second);
  chaining_ = false;
  chained_.clear();
}

void CudaKernels::forget_chains() {
  for (const auto& [key, executable] : chains_)
    if (executable != nullptr) cudaGraphExecDestroy(executable);
  chains_.clear();
}

}  // namespace foresail
