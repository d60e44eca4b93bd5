// ./check, with stand-ins for what it calls.
#include <gmock/gmock-matchers.h>

#include "repository/script_folder.h"

namespace foresail {
namespace {

class CheckLine : public ScriptFolder {
 protected:
  CheckLine() : ScriptFolder("check") {
    std::filesystem::create_directories(folder_ / "build/release");
    write_program("bin/cmake", "true");
  }

  std::string line_after(const std::string& ctest, int status) {
    write_program("bin/ctest", "cat <<'END'\n" + ctest + "END\nexit " + std::to_string(status));
    std::string said = run();
    return said.substr(said.rfind('\n', said.rfind('\n', said.size() - 2) - 1) + 1);
  }
};

TEST_F(CheckLine, CountsEveryTestOnce) {
  EXPECT_EQ(line_after("100% tests passed, 0 tests failed out of 1226\n", 0),
            "1226 passed, 0 failed\n0\n");
  const std::string skipped =
      "\nThe following tests did not run:\n\t 31 - kernel/Kernels.Amx (Skipped)\n";
  EXPECT_EQ(line_after("100% tests passed, 0 tests failed out of 1226\n" + skipped, 0),
            "1225 passed, 0 failed, 1 skipped\n0\n");
  EXPECT_EQ(
      line_after("99% tests passed, 2 tests failed out of 1226\n" + skipped +
                     "\nThe following tests FAILED:\n\t  7 - a (Failed)\n\t  9 - b (Failed)\n",
                 8),
      "1223 passed, 2 failed, 1 skipped\n1\n");
  EXPECT_EQ(line_after("", 1), "0 passed, 1 failed\n1\n");
}

}  // namespace
}  // namespace foresail
