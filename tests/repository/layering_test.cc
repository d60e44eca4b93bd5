// The order of the folders is a promise: a file includes only what stands above it.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace {

const std::vector<std::string> kOrder = {
    "base",      "grammar",   "tensor",  "kernels",     "checkpoint", "model",  "cache",
    "attention", "scheduler", "runtime", "speculative", "text",       "engine", "server"};
// Stricter than the order: what these folders may include at all, besides themselves.
const std::vector<std::pair<std::string, std::vector<std::string>>> kOnly = {
    {"text", {"base"}},
    {"grammar", {"base"}},
    {"scheduler", {"base", "cache"}},
    {"kernels", {"base", "tensor"}},
    {"checkpoint", {"base", "tensor"}},
    {"cache", {"base", "tensor"}}};

int rank_of(const std::string& folder) {
  const auto found = std::find(kOrder.begin(), kOrder.end(), folder);
  return found == kOrder.end() ? -1 : static_cast<int>(found - kOrder.begin());
}

std::string complaint(const std::string& folder, const std::string& line) {
  const size_t open = line.find('"');
  if (!line.starts_with("#include") || open == std::string::npos) return {};
  const size_t slash = line.find('/', open);
  if (slash == std::string::npos) return {};
  const std::string included = line.substr(open + 1, slash - open - 1);
  if (included == folder || rank_of(included) < 0) return {};
  if (rank_of(included) > rank_of(folder)) return folder + " stands above " + included;
  for (const auto& [strict, allowed] : kOnly)
    if (strict == folder && std::find(allowed.begin(), allowed.end(), included) == allowed.end())
      return folder + " must not know " + included;
  return {};
}

TEST(Layering, NoBackEdges) {
  const std::filesystem::path source = std::filesystem::path(FORESAIL_SOURCE_DIR) / "src";
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(source)) {
    const std::string extension = entry.path().extension();
    if (extension != ".h" && extension != ".cc" && extension != ".cu" && extension != ".cuh")
      continue;
    ++files;
    const std::string folder = std::filesystem::relative(entry.path(), source).begin()->string();
    EXPECT_GE(rank_of(folder), 0) << folder << " is not in the order";
    std::ifstream stream(entry.path());
    for (std::string line; std::getline(stream, line);)
      EXPECT_EQ(complaint(folder, line), "") << entry.path() << ": " << line;
  }
  EXPECT_GT(files, 50);
}

// Scheduling decisions are repeated on every rank, so they may depend on their inputs only: what
// has a clock, a random source, a socket or a thread could make two ranks disagree.
bool is_local_input(const std::string& line) {
  for (const char* word : {"<chrono>", "<ctime>", "<time.h>", "<random>", "<thread>", "<mutex>",
                           "<atomic>", "<sys/", "<unistd.h>", "<fstream>", "<filesystem>",
                           "std::rand", "getenv", "random_device", "clock("})
    if (line.find(word) != std::string::npos) return true;
  return false;
}

TEST(Layering, PlansComeFromTheirInputsOnly) {
  int files = 0;
  for (const char* folder : {"cache", "scheduler"}) {
    const std::filesystem::path source =
        std::filesystem::path(FORESAIL_SOURCE_DIR) / "src" / folder;
    for (const auto& entry : std::filesystem::directory_iterator(source)) {
      if (entry.path().extension() != ".h" && entry.path().extension() != ".cc") continue;
      ++files;
      std::ifstream stream(entry.path());
      for (std::string line; std::getline(stream, line);)
        EXPECT_FALSE(is_local_input(line)) << entry.path() << ": " << line;
    }
  }
  EXPECT_GT(files, 15);
  EXPECT_TRUE(is_local_input("#include <chrono>"));
  EXPECT_FALSE(is_local_input("#include <vector>"));
}

TEST(Layering, FindsABackEdge) {
  EXPECT_NE(complaint("base", "#include \"engine/engine.h\""), "");
  EXPECT_NE(complaint("text", "#include \"tensor/buffer.h\""), "");
  EXPECT_EQ(complaint("engine", "#include \"base/error.h\""), "");
  EXPECT_EQ(complaint("base", "#include <vector>"), "");
}

}  // namespace
