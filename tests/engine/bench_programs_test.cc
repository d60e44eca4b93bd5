// The programs in bench/, of which a build may have only some: as `foresail` itself they say in one
// line what is wrong. And `foresail bench` on a terminal.
#include <algorithm>
#include <filesystem>
#include <iterator>
#include <sstream>

#include "engine/command_errors.h"
#include "engine/terminal.h"

namespace foresail {
namespace {

class BenchPrograms : public CommandErrors {
 protected:
  static bool is_built(const std::string& program) {
    return std::filesystem::exists(std::filesystem::path(FORESAIL_BIN_DIR) / program);
  }
};

TEST_F(BenchPrograms, TellTheirFlags) {
  for (const std::string program :
       {"scheduler_bench", "request_bench", "layer_bench", "path_bench", "mla_decode_bench"}) {
    if (!is_built(program)) continue;
    const std::string help =
        output_of_shell(std::string(FORESAIL_BIN_DIR) + "/" + program + " --help");
    EXPECT_THAT(help, testing::HasSubstr("Usage: " + program));
    expect_refused_by(program, "--halp", 2, "error: unknown flag --halp (did you mean --help?)");
  }
}

TEST_F(BenchPrograms, OfTheHost) {
  if (!is_built("request_bench")) GTEST_SKIP() << "only a release build has them";
  expect_refused_by("scheduler_bench", "--benchmark_filtr=x", 2, "did you mean --benchmark_filter");
  expect_refused_by("scheduler_bench", "--benchmark_repetitions=x", 2,
                    "error: --benchmark_repetitions: choose a whole number, 1 to 1000, instead");
  const std::string program = std::string(FORESAIL_BIN_DIR) + "/request_bench";
  EXPECT_EQ(output_of_shell(program + " --benchmark_list_tests --benchmark_filter=Body"),
            "BM_ChatBodyToIds\n");
  const std::string errors = (folder_ / "errors").string();
  const int status =
      std::system(("MODEL_DIR=/no/such " + program + " >/dev/null 2>" + errors).c_str());
  EXPECT_EQ(WEXITSTATUS(status), 3);
  EXPECT_THAT(read_text_file(errors, 1 << 20),
              testing::HasSubstr("error: /no/such: no such folder"));
}

TEST_F(BenchPrograms, OfTheGpu) {
  if (!is_built("path_bench")) GTEST_SKIP() << "the build has no CUDA device";
  expect_refused_by("path_bench", "", 2, "error: path_bench needs PRESET: ");
  expect_refused_by("path_bench", "lite", 2, "error: preset: choose one of tiny-mla, ");
  expect_refused_by("path_bench", "tiny-mla 16 f23", 2, "choose one of deterministic, f32, small");
  expect_refused_by("layer_bench", "0", 2, "error: layers: choose a whole number, 1 to 1000, ");
  expect_refused_by("layer_bench", "5 prefil", 2, "choose prefill, or rows, 1 to 8192, instead");
  expect_refused_by("mla_decode_bench", "--nth x", 2, "error: --nth: choose a whole number");
  expect_refused_by("mla_decode_bench", "--csv /no/such/file", 2, "error: cannot write /no/such");
  expect_refused_by("path_bench", "tiny-mla", 4, "error: --device cuda: no usable GPU was found");
  expect_refused_by("layer_bench", "1", 4, "error: --device cuda: no usable GPU was found");
  expect_refused_by("mla_decode_bench", "--tiny", 4, "error: no usable GPU: ");
}

// Rows come at the end, when the machine was probed again; until then a terminal shows how far it
// is.
TEST(BenchCommand, ATerminalShowsHowFarItIs) {
  const std::string foresail = std::string(FORESAIL_BIN_DIR) + "/foresail";
  Terminal kernels({foresail, "bench", "kernels", "--threads", "1", "--filter", "rms_norm"});
  const std::string first = kernels.show_until("\r1 of ");
  EXPECT_EQ(first.find("of read"), std::string::npos) << first;
  const std::string rest = kernels.show_until("cache: faster");
  EXPECT_THAT(rest, testing::HasSubstr("\r2 of "));
  // It goes before the table comes.
  EXPECT_THAT(rest, testing::HasSubstr("\r\033[Kop "));
  EXPECT_EQ(kernels.wait_status(), 0);

  Terminal latency({foresail, "bench", "latency", model_path("tales"), "--prefill", "8", "--depth",
                    "8", "--width", "1,2", "--runs", "1"});
  EXPECT_THAT(latency.show_until("probes, "), testing::HasSubstr("\r3 of 3: 2 rows at 8\033[K"));
  latency.show_until("nothing more");
  EXPECT_EQ(latency.wait_status(), 0);
}

TEST_F(BenchPrograms, ABatchIsSummedUpWithoutColumnsOfAGpuOnTheCpu) {
  const std::string model = model_path("tales") + " --quiet --device cpu --batch-size 2 ";
  const std::string sizes = "--input-len 8 --output-len 4 ";
  const auto lines_of = [&](const std::string& arguments) {
    std::istringstream stream(output_of("bench " + arguments));
    std::vector<std::vector<std::string>> lines;
    for (std::string line; std::getline(stream, line);) {
      std::istringstream words(line);
      lines.emplace_back(std::istream_iterator<std::string>(words),
                         std::istream_iterator<std::string>());
    }
    return lines;
  };
  const auto lines = lines_of("latency " + model + sizes + "--runs 3");
  ASSERT_GE(lines.size(), 7u);  // titles, runs, medians, what the columns mean, the probes
  EXPECT_EQ(lines[6].at(0), "probes,");
  for (size_t row = 1; row <= 4; ++row) EXPECT_EQ(lines[row].size(), 12u) << row;
  EXPECT_EQ(lines[0].back(), "ragged");
  EXPECT_EQ(lines[4][0], "median");
  for (size_t column = 1; column < 12; ++column) {
    std::vector<double> runs;
    for (size_t row = 1; row <= 3; ++row) runs.push_back(std::stod(lines[row][column]));
    std::sort(runs.begin(), runs.end());
    EXPECT_EQ(std::stod(lines[4][column]), runs[1]) << column;
  }
  for (const char* word : {"waits", "idle:", "ahead:"})
    EXPECT_THAT(lines[5], testing::Not(testing::Contains(word)));

  const auto both = lines_of("ab " + model + sizes + "--toggle skip-draft-kv-indices --rounds 2");
  EXPECT_EQ(both.at(0).back(), "ragged");
  EXPECT_EQ(both.at(1).size(), 12u);
  const std::vector<std::string> probed = {"probes,", "threads:"};
  EXPECT_THAT(both, testing::Contains(testing::IsSupersetOf(probed)));
  const auto depths = lines_of("depth " + model + sizes +
                               "--speculative-algorithm MTP --speculative-num-steps 1 --rounds 1");
  EXPECT_THAT(depths, testing::Contains(testing::IsSupersetOf(probed)));
}

TEST(EvalCommand, ATerminalShowsHowFarItIs) {
  Terminal terminal({std::string(FORESAIL_BIN_DIR) + "/foresail", "eval", "perplexity",
                     model_path("tales"), "--text-file", model_path("tales") + "/config.json",
                     "--window", "64"});
  EXPECT_THAT(terminal.show_until("bits per byte"),
              testing::HasSubstr("\r832 of 832 tokens\033[K\r\033[K"));
  terminal.show_until("no more");
  EXPECT_EQ(terminal.wait_status(), 0);
}

TEST_F(CommandErrors, AModelThatIsStoppedHalfWayIsGone) {
  const std::string folder = (folder_ / "model").string();
  for (const char* key : {"\x03", ""}) {
    Terminal terminal(
        {std::string(FORESAIL_BIN_DIR) + "/foresail", "make-model", folder, "--preset", "mla-mid"});
    terminal.show_until("writing ");
    if (*key != 0) {
      terminal.type(key);
    } else {
      terminal.signal(SIGTERM);
    }
    terminal.show_until("no more");
    const int status = terminal.wait_status();
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == (*key != 0 ? SIGINT : SIGTERM))
        << status;
    EXPECT_FALSE(std::filesystem::exists(folder));
  }
  // But not a folder that was there, nor a link to one.
  const std::filesystem::path link = folder_ / "link";
  std::filesystem::create_directory(folder);
  std::filesystem::create_symlink(folder, link);
  Terminal terminal(
      {std::string(FORESAIL_BIN_DIR) + "/foresail", "make-model", link, "--preset", "mla-mid"});
  terminal.show_until("writing ");
  terminal.signal(SIGTERM);
  terminal.show_until("no more");
  terminal.wait_status();
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

// As a script's job in the background has it.
TEST_F(CommandErrors, AnIgnoredSignalStopsNoModel) {
  const std::string folder = (folder_ / "model").string();
  const std::string status = output_of_shell(
      "trap '' TERM; " + std::string(FORESAIL_BIN_DIR) + "/foresail make-model " + folder +
      " --preset mla-mid --layers 1 >/dev/null 2>&1 & sleep 0.2; kill -TERM $!; wait $!; echo $?");
  EXPECT_EQ(status, "0\n");
  EXPECT_TRUE(std::filesystem::exists(folder + "/config.json"));
}

}  // namespace
}  // namespace foresail
