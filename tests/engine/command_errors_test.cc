// What a user gets wrong on the command line: one line on stderr, the right exit status, and
// nothing on stdout.
#include <algorithm>
#include <climits>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "base/file.h"
#include "base/json.h"
#include "engine/command_errors.h"

namespace foresail {
namespace {

using testing::HasSubstr;

TEST_F(CommandErrors, SamplingThatMakesNoSense) {
  expect_run_refused("--temperature nan", "--temperature: choose a number, 0 to 100, instead of");
  expect_run_refused("--top-p nan", "--top-p: choose a number, 1e-06 to 1, instead of \"nan\"");
  expect_run_refused("--top-p 0", "--top-p: choose a number, 1e-06 to 1, instead of \"0\"");
  expect_run_refused("--min-p nan", "--min-p: choose a number, 0 to 1, instead of \"nan\"");
  expect_run_refused("--repetition-penalty nan", "choose a number, 0.001 to 1000, instead of");
  expect_run_refused("--repetition-penalty 1e30", "choose a number, 0.001 to 1000, instead of");
  expect_run_refused("--presence-penalty nan", "--presence-penalty: choose a number, -2 to 2");
  expect_run_refused("--frequency-penalty nan", "--frequency-penalty: choose a number, -2 to 2");
  expect_run_refused("--logit-bias 3 nan", "--logit-bias: choose a number instead of \"nan\"");
  expect_run_refused("--logit-bias 3 inf", "--logit-bias: choose a number instead of \"inf\"");
  expect_run_refused("--logit-bias 99999 1", "token 99999 is outside the vocabulary of 8192");
  expect_run_refused("--stop ''", "a stop string is empty");
  expect_run_refused("--min-tokens 200", "min_tokens 200 is not between 0 and max_tokens 128");
  expect_run_refused("--min-tokens -1", "min_tokens -1 is not between 0");
}

TEST_F(CommandErrors, NumbersThatAreTooLarge) {
  expect_run_refused("--max-tokens 9223372036854775807", "maximum context length is 2048");
  expect_run_refused("--context-length 9223372036854775807", "exceeds the model's 2048 positions");
  expect_run_refused("--context-length -5",
                     "--context-length: choose a whole number, 0 or more, instead of");
  expect_refused("serve models/tales --mem-fraction-static nan", 2,
                 "--mem-fraction-static: choose a number, 0 to 1, instead of \"nan\"");
  expect_refused("serve models/tales --max-logprobs 129", 2,
                 "--max-logprobs: choose a whole number, 0 to 128, instead of \"129\"");
  expect_run_refused("--speculative-simulate-accept-length nan", "choose a number, 1 to 16");
  expect_run_refused("--speculative-simulate-accept-length -3", "choose a number, 1 to 16");
}

TEST_F(CommandErrors, WhatIsMissingOrWrongIsNamed) {
  expect_refused("run", 2, "foresail run needs MODEL: model folder in Hugging Face layout");
  expect_refused("make-model", 2, "foresail make-model needs DIR: folder to write");
  expect_refused("make-model /tmp/never", 2, "make-model needs --preset: tiny-mla, tiny-mtp, ");
  expect_refused("eval", 2, "foresail eval needs a command: choose one of logits, perplexity, ");
  expect_refused("bench", 2, "foresail bench needs a command: choose one of kernels, latency");
  expect_refused("bench latency", 2, "foresail bench latency needs MODEL: ");
  expect_refused("rum x", 2, "unknown command rum (did you mean run?)");
  expect_refused("help rum", 2, "unknown command rum (did you mean run?)");
  expect_refused("rum --help", 2, "unknown command rum (did you mean run?)");
  expect_refused("help bench latancy", 2, "unknown command latancy (did you mean latency?)");
  expect_refused("nonsense", 2, "unknown command nonsense: foresail --help lists what there is");
  expect_run_refused("--temp 1", "unknown flag --temp (did you mean --temperature?)");
  expect_run_refused("--seed", "--seed needs a value: random seed");
  expect_run_refused("--seed x", "--seed: choose a whole number, 0 or more, instead of \"x\"");
  expect_run_refused("--logit-bias 3", "--logit-bias needs two values: TOKEN BIAS, repeatable");
  expect_run_refused("--logit-bias a b", "--logit-bias: choose a whole number instead of \"a\"");
  expect_run_refused("--logit-bias 3 b", "--logit-bias: choose a number instead of \"b\"");
  expect_run_refused("--dtype f32 --dtype bf16", "--dtype is given 2 times: keep one");
  expect_run_refused("--page-size 7", "--page-size: choose one of 1, 16, 32, 64 instead of \"7\"");
  expect_run_refused("--threads a",
                     "--threads: choose a whole number, 0 to 1024, instead of \"a\"");
}

// What the parser would take for 0, 1, 8 or a number. Found in the help, so that no flag is left
// out.
TEST_F(CommandErrors, NoFlagTakesAnOddNumberOrNothing) {
  std::vector<std::string> commands = {"run",        "chat",     "serve",      "generate",
                                       "inspect",    "tokenize", "detokenize", "template",
                                       "make-model", "env"};
  for (const char* name : {"logits", "perplexity", "acceptance", "drafts"})
    commands.push_back(std::string("eval ") + name);
  for (const char* name : {"kernels", "latency", "depth", "ab", "serve"})
    commands.push_back(std::string("bench ") + name);
  const std::regex flag("^ +(?:-[a-zA-Z],)?(--[a-z-]+)(?:,--[a-z-]+)* (INT|UINT|FLOAT|TEXT)");
  const std::set<std::string> may_be_empty = {"--prompt", "--text", "--stop", "--system", "--ids"};
  std::set<std::string> seen;
  for (const std::string& command : commands) {
    std::istringstream help(output_of(command + " --help"));
    for (std::string line; std::getline(help, line);) {
      std::smatch found;
      // The same line twice is the same flag of two commands.
      if (!std::regex_search(line, found, flag) || !seen.insert(line).second) continue;
      const std::string name = found[1], type = found[2];
      std::vector<std::string> values;
      if (may_be_empty.count(name) == 0) values = {""};
      if (type != "TEXT") values.insert(values.end(), {"nan", "true", "5x", "0x10"});
      for (const std::string& value : values)
        expect_refused(command + " " + name + " '" + value + "'", 2, "error: --");
    }
  }
  EXPECT_GT(seen.size(), 100u);
  expect_refused("run --json=5 x", 2, "--json takes no value");
  // The begin token as in a prompt, and as the server's /tokenize does.
  EXPECT_EQ(output_of("tokenize " + model_path("tales") + " -p ''"), "0\n");
  EXPECT_EQ(output_of("tokenize " + model_path("tales") + " --no-bos -p ''"), "\n");
  EXPECT_EQ(output_of("tokenize " + model_path("tales") + " --bos -p Once"),
            output_of("tokenize " + model_path("tales") + " -p Once"));
  EXPECT_EQ(output_of("detokenize " + model_path("tales") + " --ids ''"), "\n");
  EXPECT_EQ(output_of("tokenize " + model_path("tales") + " --prompt Once"),
            output_of("tokenize " + model_path("tales") + " --text Once"));
  // Leading zeros are decimal.
  expect_run_refused("--max-tokens 09999", "3 prompt tokens and 9999 new ones");
}

TEST_F(CommandErrors, HelpIsACommandToo) {
  EXPECT_EQ(output_of("help"), output_of("--help"));
  EXPECT_EQ(output_of("help bench ab"), output_of("bench ab --help"));
  EXPECT_THAT(output_of("chat --help"),
              testing::ContainsRegex("--page-size,--block-size TEXT|INT.*=16"));
}

// Both tables of `bench latency` say what is not theirs, and the limit is named by what was asked.
TEST_F(CommandErrors, ABatchTakesNoFlagsOfPasses) {
  const std::string bench = "bench latency " + model_path("tales") + " --runs 1 ";
  for (const std::string of_passes : {"--prefill 8", "--depth 8", "--width 2"})
    for (const std::string of_batch :
         {"--batch-size 2", "--ctx 8", "--output-len 4", "--temperature 1", "--synthetic-context",
          "--disable-overlap-schedule"})
      expect_refused(bench + of_batch + " " + of_passes, 2,
                     of_passes.substr(0, of_passes.find(' ')) +
                         " is for passes of one request, which a batch ");
  const std::string refusal =
      "error: --ctx 4000 and --output-len 64 exceed the model's 2048 positions together\n";
  expect_refused(bench + "--ctx 4000", 2, refusal);
  expect_refused("bench depth " + model_path("tales") +
                     " --speculative-algorithm MTP --ctx 4000 --output-len 64",
                 2, refusal);
  expect_refused(bench + "--ctx 8 --context-length 64", 2, "--context-length is not for a batch");
}

TEST_F(CommandErrors, MoreThanTheModelsPositionsIsNamedByWhatAskedForIt) {
  const std::string tales = model_path("tales");
  const std::string refusal = "--context-length 100000 exceeds the model's 2048 positions";
  expect_refused("inspect " + tales + " --context-length 100000", 2, refusal);
  expect_run_refused("--context-length 100000", refusal);
  expect_refused("bench latency " + tales + " --prefill 5000", 2,
                 "error: passes up to token 5000 exceed the model's 2048 positions: lower "
                 "--prefill, --depth or --width\n");
  std::string ids = "0";
  for (int i = 1; i < 2048; ++i) ids += ",1";
  expect_refused("eval drafts " + tales + " -o /tmp/never --input-ids " + ids, 2,
                 "2048 token ids were given, but the model has 2048 positions and the token after "
                 "them needs one");
}

TEST_F(CommandErrors, AParserThatIsUnknownIsSaidBeforeAnythingIsDone) {
  const std::string serve = "serve " + model_path("tales") + " --port 0 ";
  expect_refused(serve + "--reasoning-parser foo", 2, "--reasoning-parser: choose one of auto, ");
  expect_refused(serve + "--tool-call-parser foo", 2, "--tool-call-parser: choose one of auto, ");
  // Other spellings than the help lists are none of that.
  expect_refused(serve + "--reasoning-parser deepseek-r1 --tool-call-parser Kimi-K2 --log-format x",
                 2, "--log-format: choose one of text, ");
}

TEST_F(CommandErrors, TheModelOfThisProjectFromAnotherFolder) {
  std::filesystem::create_directories(folder_ / "away");
  const std::string errors = (folder_ / "errors").string();
  const std::string command = "cd " + (folder_ / "away").string() + " && " + FORESAIL_BIN_DIR +
                              "/foresail run models/tales -p x 2>" + errors;
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 3);
  EXPECT_EQ(read_text_file(errors, 1 << 20),
            "error: models/tales: no such folder (there is no folder models in " +
                std::filesystem::canonical(folder_ / "away").string() + ")\n");
}

// Without tokenizer_config.json nothing says whether prompts begin with a begin token.
TEST_F(CommandErrors, PromptsWithoutABeginTokenAreWarnedOf) {
  const std::filesystem::path tales = model_path("tales");
  for (const auto& entry : std::filesystem::directory_iterator(tales))
    if (entry.path().filename() != "tokenizer_config.json")
      std::filesystem::create_symlink(entry.path(), folder_ / entry.path().filename());
  const auto said = [&](const std::string& model) {
    return output_of_shell(std::string(FORESAIL_BIN_DIR) + "/foresail run " + model +
                           " --quiet -p Once -n 1 2>&1 >/dev/null");
  };
  EXPECT_EQ(said(tales.string()), "");
  EXPECT_EQ(said(folder_.string()),
            "warning: " + folder_.string() +
                ": tokenizer_config.json is missing: prompts start without the model's begin token "
                "0, which many models write rubbish after\n");
  write_file(folder_ / "tokenizer_config.json", "{}");
  EXPECT_THAT(said(folder_.string()), HasSubstr(" names no bos_token: "));
  write_file(folder_ / "tokenizer_config.json", R"({"add_bos_token": false})");
  EXPECT_EQ(said(folder_.string()), "");
}

TEST_F(CommandErrors, FlagsThatNothingWouldRead) {
  expect_run_refused("--speculative-draft-model-path x",
                     "--speculative-draft-model-path needs --speculative-algorithm: choose MTP");
  expect_run_refused("--speculative-num-steps 2", "needs --speculative-algorithm");
  expect_run_refused("--speculative-fixed", "needs --speculative-algorithm");
  expect_run_refused("--speculative-algorithm MTP --speculative-draft-model-path x",
                     "is for EAGLE, EAGLE3 and STANDALONE: MTP drafts without a folder");
  expect_run_refused("--speculative-algorithm MTP --speculative-eagle-topk 4",
                     "--speculative-eagle-topk: choose one of 1 instead of \"4\"");
  const std::string serve = "serve " + model_path("tales") + " --port 0 --quiet ";
  expect_refused(serve + "--max-total-tokens 9000 --mem-fraction-static 0.5", 2,
                 "does not go with");
  expect_refused(serve + "--uds x", 2, "--port does not go with --uds: leave one out");
  expect_refused("tokenize " + model_path("tales") + " -p a --text-file b", 2, "does not go with");
  expect_refused("bench serve --dataset-name random --dataset-path x --vocab-size 5", 2,
                 "--dataset-path is not read by --dataset-name random");
}

// A wrong combination must not cost the minutes that a large model takes to load.
TEST_F(CommandErrors, ComeBeforeTheWeightsAreRead) {
  const std::filesystem::path tales = model_path("tales");
  for (const auto& entry : std::filesystem::directory_iterator(tales))
    if (entry.path().extension() != ".safetensors")
      std::filesystem::create_symlink(entry.path(), folder_ / entry.path().filename());
  const std::string run = "run " + folder_.string() + " -p Once ";
  expect_refused(run + "--min-tokens 200", 2, "min_tokens 200 is not between 0");
  expect_refused(run + "--stop ''", 2, "a stop string is empty");
  expect_refused(run + "--logit-bias 99999 1", 2, "outside the vocabulary of 8192");
  expect_refused(run + "--max-tokens 5000", 2, "maximum context length is 2048");
  expect_refused(run + "--attention-path best", 2, "choose auto, absorbed or expanded");
  expect_refused(run + "--speculative-algorithm EAGLE3", 2, "--speculative-draft-model-path DIR");
  const std::string logits = "eval logits " + folder_.string();
  expect_refused(logits + " --input-ids 9999 -o x.safetensors", 2, "token id 9999 is outside");
  expect_refused(logits + " --input-ids 1 -o /no/such/folder/x", 2,
                 "cannot write /no/such/folder/x");
  expect_refused(logits + " --input-ids 1 -o " + folder_.string(), 2, "it is a folder");
  std::ofstream(folder_ / "text") << "Once";
  expect_refused("eval perplexity " + folder_.string() + " --window 1 --text-file " +
                     (folder_ / "text").string(),
                 2, "--window 1 must lie between 2 and the context length 2048");
  expect_refused("chat " + folder_.string() + " --min-tokens 200", 2, "min_tokens 200");
}

TEST_F(CommandErrors, FilesOfOtherFormatsAreNamed) {
  const std::string run = "run " + folder_.string() + " -p x";
  std::ofstream(folder_ / "consolidated.00.pth") << "";
  expect_refused(run, 3, "consolidated.00.pth is part of an unconverted checkpoint");
  std::ofstream(folder_ / "params.json") << "{}";
  expect_refused(run, 3, "params.json is the config of an unconverted checkpoint");
  const std::filesystem::path tales = model_path("tales");
  std::filesystem::create_symlink(tales / "config.json", folder_ / "config.json");
  std::ofstream(folder_ / "tokenizer.model") << "";
  expect_refused(run, 3, "tokenizer.json is missing, and tokenizer.model is a SentencePiece model");
  std::ofstream(folder_ / "tekken.json") << "{}";
  expect_refused(run, 3, "tokenizer.json is missing, and tekken.json is Mistral's own format");
  std::filesystem::create_symlink(tales / "tokenizer.json", folder_ / "tokenizer.json");
  expect_refused(run, 3, "and model.safetensors is missing: give the model in Hugging Face layout");
}

TEST_F(CommandErrors, WhatWasNotDownloadedIsNamed) {
  expect_refused("run no-such-owner/model -p x", 3,
                 "no-such-owner/model: no such folder (if it is a model of the Hugging Face hub: "
                 "`hf download no-such-owner/model --local-dir DIR` gets it)");
  for (const std::string path : {"no-such-folder", "./no-such/folder", "'~/model'", "no-such/"})
    expect_refused("run " + path + " -p x", 3, "no such folder (`foresail make-model` writes one");

  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 9\n";
  const std::filesystem::path tales = model_path("tales");
  std::filesystem::copy_file(tales / "config.json", folder_ / "config.json");
  write_file(folder_ / "tokenizer.json", pointer);
  const std::string run = "run " + folder_.string() + " -p x";
  expect_refused(run, 3, "tokenizer.json is a Git LFS pointer, not the file itself: run `git lfs");
  std::filesystem::remove(folder_ / "tokenizer.json");
  std::filesystem::copy_file(tales / "tokenizer.json", folder_ / "tokenizer.json");
  write_file(folder_ / "model.safetensors", pointer);
  expect_refused(run, 3, "model.safetensors is a Git LFS pointer, not the file itself: run `git");
}

TEST_F(CommandErrors, DraftFoldersThatDoNotFit) {
  const std::string run = "run " + model_path("tales") + " -p x --speculative-algorithm ";
  for (const char* algorithm : {"EAGLE", "EAGLE3", "STANDALONE"})
    expect_refused(run + algorithm + " --speculative-draft-model-path /no/such", 3,
                   "/no/such: no such folder");
  expect_refused(run + "EAGLE --speculative-draft-model-path " + model_path("tales-eagle3"), 2,
                 "tales-eagle3 is an EAGLE-3 head: choose EAGLE3");
}

// Standard input and pipes have no size beforehand.
TEST_F(CommandErrors, InputsWithoutEndAreRefused) {
  expect_refused("run " + model_path("tales") + " --prompt-file /dev/zero", 2,
                 "/dev/zero has more than the 67108864 bytes allowed");
  expect_refused("run " + model_path("tales") + " --prompt-file - </dev/zero", 2,
                 "standard input has more than the 67108864 bytes allowed");
}

TEST_F(CommandErrors, AModelIsNoDraftHead) {
  const std::string tales = model_path("tales");
  for (const char* algorithm : {"EAGLE", "EAGLE3"})
    expect_refused("run " + tales + " -p x --speculative-algorithm " + algorithm +
                       " --speculative-draft-model-path " + tales,
                   3, "this is a model, not a draft head: ");
}

TEST_F(CommandErrors, ADraftHeadIsNoModel) {
  const std::string head = std::string(FORESAIL_SOURCE_DIR) + "/models/tales-eagle3";
  for (const char* command : {"run -p x ", "serve --port 0 --quiet ", "inspect "})
    expect_refused(command + head, 3,
                   "this is a draft head, not a model: give its folder to "
                   "--speculative-draft-model-path, with --speculative-algorithm EAGLE3");
  // Heads of MLA models name a family that is known.
  const auto refused_as = [&](const char* config, const char* message) {
    write_file(folder_ / "config.json", config);
    expect_refused("inspect " + folder_.string(), 3, message);
  };
  refused_as(R"({"architectures":["Eagle3DeepseekV2ForCausalLM"],"model_type":"kimi_k2"})",
             "--speculative-algorithm EAGLE3");
  refused_as(R"({"architectures":["EAGLEModel"],"model_type":"eagle","model":{}})",
             "--speculative-algorithm EAGLE,");
}

// A probe that was disturbed must not make the rows look better than the machine.
TEST_F(CommandErrors, BenchSharesAreOfTheFasterProbes) {
  std::istringstream lines(
      output_of("bench kernels --threads 1 --filter rms_norm --json 2>/dev/null"));
  std::vector<Json> rows;
  for (std::string line; std::getline(lines, line);) rows.push_back(Json::parse(line));
  ASSERT_GE(rows.size(), 2u);
  const Json probe = rows.back();
  ASSERT_EQ(probe["kind"], "probe");
  const auto fastest = [&](const char* name) {
    return std::max(probe[name][0].get<double>(), probe[name][1].get<double>());
  };
  rows.pop_back();
  for (const Json& row : rows) {
    EXPECT_NEAR(row["share_of_read_probe"].get<double>(),
                row["bytes_per_s"].get<double>() / fastest("read_bytes_per_s"), 1e-9);
    EXPECT_NEAR(row["share_of_arithmetic_probe"].get<double>(),
                row["operations_per_s"].get<double>() / fastest("operations_per_s"), 1e-9);
  }
}

// In the order of flag_groups.h, each once, and nothing of a shared group among a command's own.
TEST_F(CommandErrors, HelpIsGrouped) {
  const auto headings_of = [](const std::string& help) {
    std::string headings;
    std::istringstream lines(help);
    for (std::string line; std::getline(lines, line);)
      if (!line.empty() && line[0] != ' ' && line.ends_with(':')) headings += line;
    return headings;
  };
  const std::string serve = output_of("serve --help");
  EXPECT_EQ(headings_of(serve),
            "Positionals:Options:Model:Device and memory:Speculation:Answers:Scheduling:Limits:"
            "Network:Access:Logs and metrics:Attention, for experiments:");
  const std::string run = output_of("run --help");
  EXPECT_EQ(headings_of(run),
            "Positionals:Options:Model:Drawing tokens:Device and memory:Speculation:"
            "Logs and metrics:Attention, for experiments:");
  const auto own_of = [](const std::string& help) { return help.substr(0, help.find("\nModel:")); };
  EXPECT_EQ(own_of(serve).find("  --"), std::string::npos) << own_of(serve);
  EXPECT_THAT(own_of(run), HasSubstr("--prompt-file"));
  for (const char* flag : {"--port ", "--api-key ", "--max-total-tokens ", "--device "})
    EXPECT_EQ(serve.find(std::string("  ") + flag), serve.rfind(std::string("  ") + flag)) << flag;
}

TEST_F(CommandErrors, AnArgumentThatIsAFlagTooIsRequiredOnce) {
  for (const std::string command : {"run", "serve", "inspect", "bench latency"}) {
    const std::string help = output_of(command + " --help");
    const size_t at = help.find(" REQUIRED");
    EXPECT_THAT(help, HasSubstr("model TEXT REQUIRED")) << command;
    EXPECT_EQ(help.rfind(" REQUIRED"), at) << help;
    EXPECT_THAT(help, HasSubstr(", here or by a flag\n"));
    EXPECT_THAT(help, HasSubstr("  -m,--model-path,--model TEXT"));
  }
}

// The same flags, the same cache; and what has two copies is said.
TEST_F(CommandErrors, InspectTellsWhatGenerateWillHold) {
  std::ofstream(folder_ / "in") << "{\"prompt\": \"Once\", \"max_tokens\": 1}\n";
  const std::string tales = model_path("tales");
  for (const std::string flags :
       {"", " --kv-cache-dtype fp8_e4m3 --max-running-requests 3", " --max-total-tokens 640",
        " --speculative-algorithm MTP --context-length 512 --dtype f32"}) {
    const std::string loaded =
        output_of("generate " + tales + " --requests " + (folder_ / "in").string() +
                  " -o /dev/null" + flags + " 2>&1");
    const std::string table = output_of("inspect " + tales + flags);
    const size_t kv = loaded.find("KV "), of = loaded.find(" for ", kv);
    const size_t end = loaded.find(" tokens", of);
    ASSERT_NE(end, std::string::npos) << loaded;
    EXPECT_THAT(table, HasSubstr("+ " + loaded.substr(kv, of - kv) + " (" +
                                 loaded.substr(of + 5, end - of - 5) + " tokens) + "));
  }
  const std::string table = output_of("inspect " + tales);
  EXPECT_THAT(table, HasSubstr("checkpoint 20.2 MiB in 2 files\n"));
  EXPECT_THAT(table, HasSubstr("= weights 22.7 MiB (6.0 MiB of them twice) + "));
  const Json json = Json::parse(output_of("inspect " + tales + " --json"));
  const Json& memory = json["memory"];
  EXPECT_EQ(memory["weights_bytes"].get<int64_t>() - memory["weights_bytes_twice"].get<int64_t>(),
            2 * json["parameters"].get<int64_t>());
  expect_refused("inspect " + tales + " --kv-cache-dtype int8", 2,
                 "--kv-cache-dtype int8 is unknown: choose auto, bf16, f32 or fp8_e4m3");
  expect_refused("inspect " + tales + " --dtype int8", 2, "--dtype int8 is unknown");
  expect_refused("inspect " + tales + " --speculative-num-steps 2", 2,
                 "needs --speculative-algorithm");
}

// What a model needs is told anywhere; that a GPU which is not there is too small for it is no
// news.
TEST_F(CommandErrors, InspectForAGpuThatIsNotHere) {
  const std::string inspect = "CUDA_VISIBLE_DEVICES= " + std::string(FORESAIL_BIN_DIR) +
                              "/foresail inspect " + model_path("tales") + " --device cuda";
  const std::string table = output_of_shell(inspect);
  EXPECT_THAT(table, HasSubstr("no GPU        needs "));
  EXPECT_THAT(table, HasSubstr("whether it fits is not known: "));
  EXPECT_THAT(table, Not(HasSubstr("does not fit")));
  const Json memory = Json::parse(output_of_shell(inspect + " --json"))["memory"];
  EXPECT_GT(memory["total_bytes"], 0);
  for (const char* name : {"available_bytes", "fits", "most_kv_tokens"})
    EXPECT_TRUE(memory[name].is_null()) << memory;
  EXPECT_TRUE(memory["unknown"].is_string()) << memory;
}

TEST_F(CommandErrors, MoreCacheThanAnyMachineHas) {
  std::ofstream(folder_ / "in") << "{\"prompt\": \"Once\"}\n";
  const std::string command = "generate " + model_path("tales") + " --requests " +
                              (folder_ / "in").string() + " -o - --max-total-tokens ";
  for (const char* tokens : {"9223372036854775807", "100000000000000"})
    expect_refused(command + tokens, 4, "--max-total-tokens ");
}

TEST_F(CommandErrors, ALineBreakInANameStaysInTheLine) {
  expect_run_refused("\"$(printf -- '--temp\\nrature')\"", "unknown flag --temp\\x0arature");
  expect_run_refused("\"$(printf 'a\\nb')\"", "unknown argument a\\x0ab");
  expect_run_refused("--temperature \"$(printf 'a\\nb')\"", "a\\x0ab");
  expect_run_refused("--dtype \"$(printf 'a\\nb')\"", "a\\x0ab");
  expect_refused("run \"$(printf '/no\\nfolder')\" -p x", 3, "/no\\x0afolder");
}

TEST_F(CommandErrors, TokenizerOfAnotherModel) {
  const std::filesystem::path tales = model_path("tales");
  for (const auto& entry : std::filesystem::directory_iterator(tales))
    if (entry.path().filename() != "config.json")
      std::filesystem::create_symlink(entry.path(), folder_ / entry.path().filename());
  Json config = *parse_json(read_text_file(tales / "config.json", 1 << 20));
  config["vocab_size"] = 8191;
  write_file(folder_ / "config.json", json_text(config));
  std::ofstream(folder_ / "in") << "{\"prompt\": \"Once\"}\n";
  const std::string message =
      "the tokenizer has ids up to 8191 but config.json has vocab_size 8191";
  expect_refused("run " + folder_.string() + " -p x", 3, message);
  expect_refused("chat " + folder_.string(), 3, message);
  expect_refused("generate " + folder_.string() + " -o - --requests " + (folder_ / "in").string(),
                 3, message);
}

}  // namespace
}  // namespace foresail
