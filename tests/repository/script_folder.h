// A script of the repository in a folder of its own, with stand-ins for what it calls.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

namespace foresail {

// What is printed, and the exit status in a line of its own.
inline std::string said_by(const std::string& command) {
  FILE* pipe = popen((command + "; echo $?").c_str(), "r");
  std::string text;
  std::array<char, 4096> part;
  while (const size_t count = std::fread(part.data(), 1, part.size(), pipe))
    text.append(part.data(), count);
  pclose(pipe);
  return text;
}

class ScriptFolder : public testing::Test {
 protected:
  explicit ScriptFolder(const std::string& script)
      : script_(script),
        folder_(std::filesystem::temp_directory_path() /
                ("foresail_" + script + "_" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_ / "scripts");
    std::filesystem::create_directories(folder_ / "bin");
    std::filesystem::copy_file(std::filesystem::path(FORESAIL_SOURCE_DIR) / script,
                               folder_ / script);
    write_program("scripts/install-dependencies", "true");
    write_program("bin/nproc", "echo 2");
  }
  ~ScriptFolder() override { std::filesystem::remove_all(folder_); }

  // Found before the machine's own where it is in bin/.
  void write_program(const std::string& name, const std::string& script) {
    std::ofstream(folder_ / name) << "#!/bin/sh\n" << script << "\n";
    std::filesystem::permissions(folder_ / name, std::filesystem::perms::owner_all);
  }
  std::string run() const {
    return said_by("PATH=" + (folder_ / "bin").string() + ":$PATH " + (folder_ / script_).string() +
                   " 2>&1");
  }

  std::string script_;
  std::filesystem::path folder_;
};

}  // namespace foresail
