// ./quickstart, with stand-ins for what it calls.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

namespace foresail {
namespace {

using testing::HasSubstr;

const std::filesystem::path kSource(FORESAIL_SOURCE_DIR);

// What is printed, and the exit status in a line of its own.
std::string said_by(const std::string& command) {
  FILE* pipe = popen((command + "; echo $?").c_str(), "r");
  std::string text;
  std::array<char, 4096> part;
  while (const size_t count = std::fread(part.data(), 1, part.size(), pipe))
    text.append(part.data(), count);
  pclose(pipe);
  return text;
}

TEST(Quickstart, AnUnknownFlagIsRefused) {
  const std::string quickstart = (kSource / "quickstart").string();
  const std::string usage = "usage: ./quickstart [FIRST WORDS OF THE STORY]\n";
  for (const char* flag : {"-h", "--help"})
    EXPECT_EQ(said_by(quickstart + " " + flag + " 2>/dev/null"), usage + "0\n");
  for (const char* flag : {"--bogus", "-x"})
    EXPECT_EQ(said_by(quickstart + " " + flag + " 2>&1 >/dev/null"), usage + "2\n");
}

class QuickstartBuild : public testing::Test {
 protected:
  QuickstartBuild()
      : folder_(std::filesystem::temp_directory_path() /
                ("foresail_quickstart_" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_ / "scripts");
    std::filesystem::create_directories(folder_ / "bin");
    std::filesystem::copy_file(kSource / "quickstart", folder_ / "quickstart");
    write_program("scripts/install-dependencies", "true");
    // Keeps the setting as cmake does, and builds a program that says it.
    write_program("bin/cmake", R"sh(mkdir -p build/release/bin
for argument; do
  case "$argument" in
    -DFORESAIL_CUDA=*)
      setting=${argument#*=}
      echo "FORESAIL_CUDA:STRING=$setting" >build/release/CMakeCache.txt
      [ "$setting" = OFF ] || echo "build rows.cu.o: CUDA" >build/release/build.ninja
      touch build/release/build.ninja ;;
    --build)
      echo "echo CUDA is $(cat build/release/CMakeCache.txt)" >build/release/bin/foresail
      chmod +x build/release/bin/foresail ;;
  esac
done)sh");
  }
  ~QuickstartBuild() override { std::filesystem::remove_all(folder_); }

  void write_program(const std::string& name, const std::string& script) {
    std::ofstream(folder_ / name) << "#!/bin/sh\n" << script << "\n";
    std::filesystem::permissions(folder_ / name, std::filesystem::perms::owner_all);
  }
  std::string run() const {
    return said_by("PATH=" + (folder_ / "bin").string() + ":$PATH " +
                   (folder_ / "quickstart").string() + " 2>&1");
  }

  std::filesystem::path folder_;
};

TEST_F(QuickstartBuild, WithoutAGpuTheCudaDeviceIsLeftOut) {
  write_program("bin/nvidia-smi", "echo NVIDIA-SMI has failed; exit 9");
  const std::string said = run();
  EXPECT_THAT(said, HasSubstr("building: about "));
  EXPECT_THAT(said, HasSubstr("CUDA is FORESAIL_CUDA:STRING=OFF\n0\n"));
}

TEST_F(QuickstartBuild, WithAGpuItIsBuiltAndTold) {
  write_program("bin/nvidia-smi", "echo GPU 0: of some kind");
  const std::string said = run();
  EXPECT_THAT(said, HasSubstr("building, with the CUDA device: about "));
  EXPECT_THAT(said, HasSubstr("CUDA is FORESAIL_CUDA:STRING=AUTO\n0\n"));
}

TEST_F(QuickstartBuild, ABuildFolderKeepsItsSetting) {
  std::filesystem::create_directories(folder_ / "build/release");
  for (const std::string setting : {"ON", "AUTO", "OFF"}) {
    std::ofstream(folder_ / "build/release/CMakeCache.txt")
        << "FORESAIL_CUDA:STRING=" << setting << "\nFORESAIL_TESTS:BOOL=ON\n";
    for (const char* gpu : {"exit 9", "echo GPU 0: of some kind"}) {
      write_program("bin/nvidia-smi", gpu);
      EXPECT_THAT(run(), HasSubstr("CUDA is FORESAIL_CUDA:STRING=" + setting + "\n0\n"));
    }
  }
}

}  // namespace
}  // namespace foresail
