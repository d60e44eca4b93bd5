// Without a GPU: one line and the status that CTest counts as skipped.
#include <gtest/gtest.h>

#include <cstdio>

#include "kernels/cuda/cuda_kernels.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  std::string why;
  if (!foresail::find_cuda_device(&why)) {
    std::printf("gpu_test: skipped: %s\n", why.c_str());
    return 77;
  }
  return RUN_ALL_TESTS();
}
