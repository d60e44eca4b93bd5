#include <fmt/core.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "apps/engine_flags.h"
#include "apps/output_path.h"
#include "apps/progress_line.h"
#include "apps/request_line.h"
#include "apps/sampling_flags.h"
#include "apps/standard_error.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "engine/load_tokenizer.h"

namespace foresail {
namespace {

constexpr uint64_t kMaxRequestsBytes = 1ull << 30;

struct GenerateFlags {
  EngineFlags engine;
  std::string requests, output;
  bool stats = false;
};

// One line of the requests file and what became of it.
struct Answer {
  int64_t line = 0;
  std::optional<InputError> error;
  std::vector<int32_t> ids;
  std::string text;
  bool scores_prompt = false;
  std::vector<TokenLogprobs> logprobs, prompt_logprobs;  // where they were asked for
  bool finished = false;                                 // stats are there then
  GenerationStats stats;
};

std::vector<Answer> submit_lines(EngineLoop& loop, const std::string& content,
                                 const SamplingParams& defaults) {
  std::vector<std::pair<int64_t, std::string>> lines;
  std::istringstream stream(content);
  int64_t number = 0;
  for (std::string line; std::getline(stream, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") != std::string::npos) lines.emplace_back(number, line);
  }
  std::vector<Answer> answers(lines.size());  // the sinks point into it
  for (size_t i = 0; i < lines.size(); ++i) {
    Answer& answer = answers[i];
    answer.line = lines[i].first;
    Result<PreparedRequest> prepared =
        parse_request_line(lines[i].second, defaults).and_then([&](Request request) {
          return loop.prepare(std::move(request));
        });
    if (!prepared) {
      answer.error = prepared.error();
      continue;
    }
    answer.scores_prompt = prepared->request.prompt_top_logprobs.has_value();
    loop.submit(std::move(*prepared), [&answer](const Event& event, const GenerationStats& stats) {
      if (event.token >= 0) answer.ids.push_back(event.token);
      answer.text += event.text;
      if (event.logprobs) answer.logprobs.push_back(*event.logprobs);
      if (!event.prompt_logprobs.empty()) answer.prompt_logprobs = event.prompt_logprobs;
      if (!event.finish) return;
      answer.finished = true;
      answer.stats = stats;
    });
  }
  return answers;
}

OrderedJson logprobs_json(const std::vector<TokenLogprobs>& tokens) {
  OrderedJson list = OrderedJson::array();
  for (const TokenLogprobs& token : tokens) {
    OrderedJson top = OrderedJson::array();
    for (const auto& [id, logprob] : token.top) top.push_back({id, logprob});
    list.push_back({{"logprob", token.chosen}, {"top", top}});
  }
  return list;
}

OrderedJson answer_json(const Answer& answer) {
  if (answer.error)
    return {{"line", answer.line},
            {"error", {{"message", answer.error->message}, {"param", answer.error->param}}}};
  const GenerationStats& stats = answer.stats;
  OrderedJson json = {{"line", answer.line},
                      {"token_ids", answer.ids},
                      {"text", answer.text},
                      {"finish_reason", finish_reason_name(stats.finish)},
                      {"prompt_tokens", stats.prompt_tokens},
                      {"cached_tokens", stats.cached_tokens},
                      {"output_tokens", stats.output_tokens},
                      {"verify_passes", stats.verify_passes},
                      {"drafted_at", stats.drafted_at},
                      {"accepted_at", stats.accepted_at},
                      {"accept_length", stats.accept_length()},
                      {"ttft_s", stats.ttft_s},
                      {"decode_s", stats.decode_s}};
  if (answer.scores_prompt) json["prompt_logprobs"] = logprobs_json(answer.prompt_logprobs);
  if (!answer.logprobs.empty()) json["logprobs"] = logprobs_json(answer.logprobs);
  return json;
}

// The answers in the order of their lines, each as soon as it and those before it are there: a run
// that is interrupted keeps what it has done.
class AnswerWriter {
 public:
  AnswerWriter(const std::vector<Answer>& answers, const std::string& path)
      : answers_(answers), path_(path) {
    if (path != "-") file_.open(path, std::ios::binary);
    require_written();
  }
  size_t written() const { return next_; }
  void write_finished() {
    const size_t before = next_;
    for (; next_ < answers_.size(); ++next_) {
      const Answer& answer = answers_[next_];
      if (!answer.finished && !answer.error) break;
      const std::string line = json_text(answer_json(answer)) + "\n";
      if (file_.is_open())
        file_ << line;
      else
        fmt::print("{}", line);
    }
    if (next_ == before) return;
    file_.flush();
    std::fflush(stdout);
    require_written();
  }

 private:
  void require_written() const {
    if (!file_ || std::ferror(stdout) != 0)
      throw_error(ErrorCode::kUsage, "cannot write {}", path_ == "-" ? "standard output" : path_);
  }

  const std::vector<Answer>& answers_;
  const std::string path_;
  std::ofstream file_;  // not open: standard output
  size_t next_ = 0;
};

void print_stats(const EngineStats& stats, double elapsed_s) {
  tell(
      "{} requests, {} prompt tokens ({} cached), {} output tokens in {:.3f} s ({:.1f} "
      "tok/s), {} failed, {} steps, {} retractions, accept length {:.2f} (1 + accepted / "
      "passes with "
      "drafts)\n",
      stats.submitted, stats.prompt_tokens, stats.cached_tokens, stats.output_tokens, elapsed_s,
      static_cast<double>(stats.output_tokens) / elapsed_s, stats.failed, stats.steps,
      stats.retractions, stats.accept_length());
}

void generate(GenerateFlags& flags) {
  const std::string content = read_input(flags.requests, kMaxRequestsBytes);
  if (flags.output != "-") require_writable(flags.output, flags.requests);
  const std::string& model_path = flags.engine.model.options.model_path;
  const SamplingParams defaults = read_command_defaults(model_path);
  const auto tokenizer = find_tokenizer(model_path);
  const auto model = load_engine_model(flags.engine);
  warn_of_begin_token(model_path, tokenizer.get());
  EngineLoop loop(*model, tokenizer.get(), flags.engine.engine);
  const auto start = std::chrono::steady_clock::now();
  const std::vector<Answer> answers = submit_lines(loop, content, defaults);
  AnswerWriter writer(answers, flags.output);
  writer.write_finished();
  ProgressLine progress(flags.output != "-" && !flags.engine.model.quiet);
  while (loop.step()) {
    writer.write_finished();
    if (progress.is_due())
      progress.show(fmt::format("{} of {} lines, {} tokens", writer.written(), answers.size(),
                                loop.stats().output_tokens));
  }
  progress.clear();
  writer.write_finished();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;

  std::vector<const Answer*> refused;
  for (const Answer& answer : answers)
    if (answer.error) refused.push_back(&answer);
  if (flags.stats) print_stats(loop.stats(), elapsed.count());
  const auto failed = std::find_if(answers.begin(), answers.end(), [](const Answer& answer) {
    return !answer.error && answer.stats.finish == FinishReason::kFailed;
  });
  if (refused.empty() && failed != answers.end())
    throw_error(
        ErrorCode::kModel,
        "{} line {}: failed, by logits without a number or an error told above; such lines have "
        "finish_reason \"error\"",
        input_name(flags.requests), failed->line);
  if (refused.empty()) return;
  const Answer& first = *refused[0];
  throw_error(ErrorCode::kUsage, "{} line {}: {}{}", input_name(flags.requests), first.line,
              first.error->message,
              refused.size() == 1 ? "" : fmt::format(" (and {} more lines)", refused.size() - 1));
}

}  // namespace

void add_generate_command(Command& app) {
  auto flags = std::make_shared<GenerateFlags>();
  Command* command =
      app.add_subcommand("generate", "Run a file of requests through the engine, many at once");
  add_engine_flags(*command, flags->engine);
  command
      ->add_option("--requests", flags->requests, "JSON lines, one request each; -: standard input")
      ->required();
  command->footer(
      "Fields of a line: prompt or input_ids; max_tokens, min_tokens, temperature, top_p, top_k, "
      "min_p, repetition_penalty (where not given, generation_config.json of the model says it; "
      "without one: greedy), presence_penalty, frequency_penalty, seed (0 where not given, in "
      "every line), stop, ignore_eos, "
      "speculative (drafts, or false), top_logprobs, "
      "prompt_top_logprobs, priority, cache_salt.");
  command
      ->add_option("--output,-o", flags->output,
                   "JSON lines in the same order, each as soon as it is there; -: stdout")
      ->required();
  command->add_flag("--stats", flags->stats, "print tokens/s, steps and accept length");
  command->callback([flags] { generate(*flags); });
}

}  // namespace foresail
