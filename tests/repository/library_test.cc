// What the library promises to a program that it is part of: it has no logger of its own, and names
// fields where the commands name flags.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

const fs::path kSource(FORESAIL_SOURCE_DIR);

std::string text_of(const fs::path& path) {
  std::ifstream stream(path);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// Of the installed archive and its headers; the server belongs to the program.
std::vector<fs::path> library_files() {
  std::vector<fs::path> files;
  for (const char* folder : {"src", "include"})
    for (const auto& entry : fs::recursive_directory_iterator(kSource / folder)) {
      const std::string extension = entry.path().extension();
      const bool is_server = entry.path().string().find("/src/server/") != std::string::npos;
      if (!is_server && (extension == ".h" || extension == ".cc" || extension == ".cu" ||
                         extension == ".cuh" || entry.path().filename() == "CMakeLists.txt"))
        files.push_back(entry.path());
    }
  return files;
}

std::set<std::string> matches(const std::string& text, const std::regex& pattern) {
  return {std::sregex_token_iterator(text.begin(), text.end(), pattern, 1), {}};
}

// The texts in quotes, a line each; not those of comments.
std::string quoted(const std::string& source) {
  std::string texts;
  bool inside = false;
  for (size_t i = 0; i < source.size(); ++i) {
    const char c = source[i];
    if (!inside && source.compare(i, 2, "//") == 0)
      i = std::min(source.find('\n', i), source.size());
    else if (!inside && source.compare(i, 3, "'\"'") == 0)
      i += 2;
    else if (c == '"' || c == '\n') {
      inside = c == '"' && !inside;
      texts += '\n';
    } else if (inside) {
      texts += c;
      if (c == '\\') texts += source[++i];
    }
  }
  return texts;
}

const std::regex kFlag("(?:^|[^-\\w])(--[a-z][a-z-]+)");
const std::regex kField("(?:^|[^./\\w])((?:options|request)\\.[a-z][a-z_.]*[a-z])");

TEST(Library, HasNoLogger) {
  const std::regex logger("(spdlog)");
  size_t files = 0;
  for (const fs::path& path : library_files()) {
    ++files;
    EXPECT_EQ(matches(text_of(path), logger), std::set<std::string>()) << path;
  }
  EXPECT_GT(files, 300u);
  EXPECT_EQ(text_of(kSource / "cmake/foresail-config.cmake.in").find("spdlog"), std::string::npos);
}

// But for the CUDA set, whose messages name some, and for a command of the Hugging Face hub.
TEST(Library, NamesNoFlags) {
  for (const fs::path& path : library_files()) {
    std::set<std::string> flags = matches(quoted(text_of(path)), kFlag);
    flags.erase("--local-dir");
    if (path.string().find("/kernels/cuda/") == std::string::npos) {
      EXPECT_EQ(flags, std::set<std::string>()) << path;
    }
  }
  EXPECT_EQ(matches(quoted("fail(\"--page-size {}\") // \"--other\""), kFlag),
            std::set<std::string>{"--page-size"});
}

// Or a command would show the field.
TEST(Library, TheCommandsHaveAFlagForEveryFieldThatAMessageNames) {
  const std::string table = text_of(kSource / "apps/field_names.cc");
  size_t named = 0;
  for (const fs::path& path : library_files())
    for (const std::string& name : matches(quoted(text_of(path)), kField)) {
      ++named;
      EXPECT_NE(table.find("{\"" + name + "\", "), std::string::npos) << path << ": " << name;
    }
  EXPECT_GT(named, 20u);
}

}  // namespace
