#include <fmt/core.h>

#include <charconv>
#include <sstream>

#include "apps/flag_checks.h"
#include "apps/model_flags.h"
#include "apps/output_path.h"
#include "apps/progress_line.h"
#include "apps/sampling_flags.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/utf8.h"
#include "checkpoint/safetensors.h"
#include "engine/acceptance.h"
#include "engine/evaluation.h"

namespace foresail {
namespace {

constexpr uint64_t kMaxInputBytes = 256ull << 20;

struct EvalFlags {
  ModelFlags model;
  std::string input_ids, input_ids_file, output, text_file;
  int steps = 3;
  int64_t window = 0;
  bool json = false;
};

std::vector<int32_t> parse_ids(const EvalFlags& flags) {
  if (flags.input_ids.empty() == flags.input_ids_file.empty())
    throw_error(ErrorCode::kUsage,
                "give the tokens either with --input-ids \"1,2,3\" or with --input-ids-file FILE");
  const std::string text =
      flags.input_ids.empty() ? read_input(flags.input_ids_file, kMaxInputBytes) : flags.input_ids;
  std::vector<int32_t> ids;
  const char* at = text.data();
  const char* end = at + text.size();
  while (at != end) {
    if (*at == ',' || *at == '[' || *at == ']' || std::isspace(static_cast<unsigned char>(*at))) {
      ++at;
      continue;
    }
    int32_t id = 0;
    const auto [next, error] = std::from_chars(at, end, id);
    if (error != std::errc())
      throw_error(ErrorCode::kUsage, "\"{}\" is not a token id",
                  std::string(at, std::min(at + 12, end)));
    ids.push_back(id);
    at = next;
  }
  return ids;
}

void write_tensors(const std::string& path, const std::vector<NamedTensor>& tensors) {
  std::vector<TensorSpec> specs;
  for (const NamedTensor& tensor : tensors)
    specs.push_back({tensor.name, tensor.shape, tensor.ids.empty() ? DType::kF32 : DType::kI64});
  SafetensorsWriter writer(path, specs);
  for (const NamedTensor& tensor : tensors)
    writer.append(tensor.ids.empty() ? std::as_bytes(std::span(tensor.values))
                                     : std::as_bytes(std::span(tensor.ids)));
  writer.close();
}

// What is evaluated is the model, not the rounding of its cache; --kv-cache-dtype brings that back.
std::shared_ptr<EvalFlags> eval_flags() {
  auto flags = std::make_shared<EvalFlags>();
  flags->model.options.kv_cache_dtype = "f32";
  return flags;
}

void add_ids(Command& command, EvalFlags& flags) {
  command.add_option("--input-ids", flags.input_ids, "token ids, \"1,2,3\"");
  command.add_option("--input-ids-file", flags.input_ids_file, "file with token ids");
  command.add_option("--output,-o", flags.output, "safetensors file to write")->required();
}

void add_logits(Command& eval) {
  auto flags = eval_flags();
  Command* command = eval.add_subcommand(
      "logits", "Write logits [T, V] and the last position's residual states as safetensors");
  add_model_flags(*command, flags->model, false);
  add_ids(*command, *flags);
  command->callback([flags] {
    const std::vector<int32_t> ids = parse_ids(*flags);
    check_token_ids(ids, read_model_config(flags->model.options.model_path));
    require_writable(flags->output, flags->input_ids_file);
    flags->model.options.context_length =
        std::max<int64_t>(flags->model.options.context_length, static_cast<int64_t>(ids.size()));
    const auto model = load_model(flags->model);
    write_tensors(flags->output, evaluate_logits(*model, ids, flags->model.options.attention_path));
  });
}

void add_perplexity(Command& eval) {
  auto flags = eval_flags();
  Command* command = eval.add_subcommand("perplexity", "Bits per byte and perplexity of a text");
  add_model_flags(*command, flags->model, false);
  command->add_option("--text-file", flags->text_file, "UTF-8 text; -: standard input")->required();
  command
      ->add_option(
          "--window", flags->window,
          "tokens per window; windows overlap by half; 0: the context length, at most 2048")
      ->capture_default_str();
  command->add_flag("--json", flags->json, "print one JSON object");
  command->callback([flags] {
    const std::string text = read_input(flags->text_file, kMaxInputBytes);
    if (text.empty() || !is_valid_utf8(text))
      throw_error(ErrorCode::kUsage, "{} is {}: give a text in UTF-8", flags->text_file,
                  text.empty() ? "empty" : "not valid UTF-8");
    const ModelOptions& options = flags->model.options;
    const ModelConfig config = read_model_config(options.model_path);
    const int64_t window =
        perplexity_window(flags->window, plan_memory(config, options, false).context_length);
    const auto tokenizer = load_tokenizer(options.model_path);
    const auto model = load_model(flags->model);
    warn_of_begin_token(options.model_path, tokenizer.get());
    ProgressLine progress(!flags->model.quiet);
    const Perplexity result =
        evaluate_perplexity(*model, *tokenizer, text, window, [&](int64_t done, int64_t total) {
          progress.show(fmt::format("{} of {} tokens", done, total));
        });
    progress.clear();
    if (flags->json)
      fmt::print("{}\n", json_text(Json{{"bits_per_byte", result.bits_per_byte},
                                        {"perplexity", result.perplexity},
                                        {"tokens", result.token_count},
                                        {"bytes", result.byte_count},
                                        {"window", result.window}}));
    else
      fmt::print("{:.4f} bits per byte, perplexity {:.3f} over {} tokens ({} bytes), window {}\n",
                 result.bits_per_byte, result.perplexity, result.token_count, result.byte_count,
                 result.window);
  });
}

std::vector<std::string> read_prompts(const std::string& path) {
  std::vector<std::string> prompts;
  std::istringstream lines(read_input(path, kMaxInputBytes));
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.empty()) continue;
    const auto parsed = parse_json(line);
    if (!parsed || !parsed->is_object() || !parsed->contains("prompt") ||
        !(*parsed)["prompt"].is_string())
      throw_error(ErrorCode::kUsage, "{} line {}: expected a JSON object with a text \"prompt\"",
                  input_name(path), number);
    prompts.push_back((*parsed)["prompt"].get<std::string>());
  }
  if (prompts.empty()) throw_error(ErrorCode::kUsage, "{} holds no prompts", input_name(path));
  return prompts;
}

void print_acceptance(const Acceptance& acceptance, double temperature, bool json) {
  if (json) {
    Json rates = Json::array();
    for (int position = 0; position < acceptance.steps; ++position)
      rates.push_back(acceptance.rate_at(position));
    fmt::print("{}\n", json_text(Json{{"steps", acceptance.steps},
                                      {"temperature", temperature},
                                      {"accept_length", acceptance.accept_length()},
                                      {"rate_at", rates},
                                      {"prompts", acceptance.prompts},
                                      {"output_tokens", acceptance.output_tokens},
                                      {"verify_passes", acceptance.verify_passes},
                                      {"draft_passes", acceptance.draft_passes},
                                      {"repeated_4gram_share", acceptance.repeated_4gram_share}}));
    return;
  }
  std::string rates;
  for (int position = 0; position < acceptance.steps; ++position)
    rates += fmt::format(" {:5.1f}", 100 * acceptance.rate_at(position));
  fmt::print("{:>6} {:>6.1f} {:>8.2f}  {:<32} {:>7} {:>8.1f} %\n", acceptance.steps, temperature,
             acceptance.accept_length(), rates, acceptance.output_tokens,
             100 * acceptance.repeated_4gram_share);
}

void add_acceptance(Command& eval) {
  auto flags = std::make_shared<EvalFlags>();
  auto request = std::make_shared<Request>();
  auto widths = std::make_shared<std::vector<int>>(std::vector<int>{1, 2, 3, 4, 5});
  Command* command =
      eval.add_subcommand("acceptance", "Accepted drafts per position over a file of prompts");
  flags->model.speculative_algorithm = "MTP";
  add_model_flags(*command, flags->model, true);
  add_sampling_flags(*command, *request);
  command->add_option("--prompts", flags->text_file, "JSON lines with a \"prompt\" each")
      ->required();
  command->add_option("--steps", *widths, "drafts per iteration, comma separated")
      ->delimiter(',')
      ->capture_default_str()
      ->check(number_in(1, 15));
  command->add_flag("--json", flags->json, "print JSON lines");
  command->callback([command, flags, request, widths] {
    if (command->count("--speculative-num-steps") > 0)
      throw_error(ErrorCode::kUsage, "eval acceptance takes its drafts from --steps");
    const std::vector<std::string> prompts = read_prompts(flags->text_file);
    add_model_defaults(*command, flags->model.options.model_path, request->sampling);
    flags->model.options.speculative.steps = *std::max_element(widths->begin(), widths->end());
    flags->model.options.speculative.adaptive = false;
    if (parse_speculative_algorithm(flags->model.speculative_algorithm) ==
        SpeculativeAlgorithm::kNone)
      throw_error(
          ErrorCode::kUsage,
          "eval acceptance needs --speculative-algorithm MTP, EAGLE, EAGLE3, NGRAM or STANDALONE");
    const auto tokenizer = load_tokenizer(flags->model.options.model_path);
    const auto model = load_model(flags->model);
    warn_of_begin_token(flags->model.options.model_path, tokenizer.get());
    if (!flags->json)
      fmt::print("{:>6} {:>6} {:>8}  {:<32} {:>7} {:>10}\n", "drafts", "T", "length",
                 " % accepted of drafted, by position", "tokens", "4-grams");
    for (const int steps : *widths)
      print_acceptance(measure_acceptance(*model, *tokenizer, prompts, *request, steps),
                       request->sampling.temperature, flags->json);
    if (!flags->json)
      fmt::print(
          "length: 1 + accepted drafts / passes that had drafts; 4-grams: output tokens that end a "
          "4-gram already seen in the same output\n");
  });
}

void add_drafts(Command& eval) {
  auto flags = eval_flags();
  Command* command = eval.add_subcommand(
      "drafts", "Write the drafter's logits, states and tokens for chained greedy steps");
  flags->model.speculative_algorithm = "MTP";
  add_model_flags(*command, flags->model, true);
  add_ids(*command, *flags);
  command->add_option("--steps", flags->steps, "chained draft steps")
      ->capture_default_str()
      ->check(number_in(1, 15));
  command->callback([flags] {
    const std::vector<int32_t> ids = parse_ids(*flags);
    check_token_ids(ids, read_model_config(flags->model.options.model_path));
    require_writable(flags->output, flags->input_ids_file);
    const int64_t positions = read_model_config(flags->model.options.model_path).max_positions;
    if (static_cast<int64_t>(ids.size()) >= positions)
      throw_error(ErrorCode::kUsage,
                  "{} token ids were given, but the model has {} positions and the token after "
                  "them needs one",
                  ids.size(), positions);
    flags->model.options.speculative.steps = flags->steps;
    flags->model.options.context_length = std::max<int64_t>(flags->model.options.context_length,
                                                            static_cast<int64_t>(ids.size()) + 1);
    const auto model = load_model(flags->model);
    write_tensors(flags->output, evaluate_drafts(*model, ids, flags->steps));
  });
}

}  // namespace

void add_eval_command(Command& app) {
  Command* eval = app.add_subcommand("eval", "Measure what a model computes");
  eval->require_subcommand();
  add_logits(*eval);
  add_perplexity(*eval);
  add_drafts(*eval);
  add_acceptance(*eval);
}

}  // namespace foresail
