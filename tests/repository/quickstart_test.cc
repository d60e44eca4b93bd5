// ./quickstart, with stand-ins for what it calls.
#include <gmock/gmock-matchers.h>

#include "repository/script_folder.h"

namespace foresail {
namespace {

using testing::HasSubstr;

TEST(Quickstart, AnUnknownFlagIsRefused) {
  const std::string quickstart = FORESAIL_SOURCE_DIR "/quickstart";
  const std::string usage = "usage: ./quickstart [FIRST WORDS OF THE STORY]\n";
  for (const char* flag : {"-h", "--help"})
    EXPECT_EQ(said_by(quickstart + " " + flag + " 2>/dev/null"), usage + "0\n");
  for (const char* flag : {"--bogus", "-x"})
    EXPECT_EQ(said_by(quickstart + " " + flag + " 2>&1 >/dev/null"), usage + "2\n");
}

class QuickstartBuild : public ScriptFolder {
 protected:
  QuickstartBuild() : ScriptFolder("quickstart") {
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
};

TEST_F(QuickstartBuild, WithoutAGpuTheCudaDeviceIsLeftOut) {
  write_program("bin/nvidia-smi", "echo NVIDIA-SMI has failed; exit 9");
  const std::string said = run();
  EXPECT_THAT(said, HasSubstr("building: about 4 minutes the first time on 2 cores"));
  EXPECT_THAT(said, HasSubstr("CUDA is FORESAIL_CUDA:STRING=OFF\n0\n"));
}

TEST_F(QuickstartBuild, WithAGpuItIsBuiltAndTold) {
  write_program("bin/nvidia-smi", "echo GPU 0: of some kind");
  const std::string said = run();
  EXPECT_THAT(said, HasSubstr("building, with the CUDA device: about 5 minutes the "));
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
