#include "kernels/cpu/isa_select.h"

#include <cpuid.h>

#include <string>

#include "base/error.h"
#include "kernels/cpu/cpu_kernels.h"

namespace foresail {
namespace {

struct CpuidLeaf {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  CpuidLeaf(unsigned leaf, unsigned subleaf) {
    __get_cpuid_count(leaf, subleaf, &eax, &ebx, &ecx, &edx);  // zeros when there is no such leaf
  }
};

constexpr bool bit(unsigned word, int index) {
  return (word >> index & 1u) != 0;
}

// Register files the system saves: XCR0 bits 1-2 for ymm, and 5-7 for zmm and masks.
unsigned saved_state() {
  unsigned low = 0;
  unsigned high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

}  // namespace

std::vector<const IsaOps*> available_isa_ops() {
  const CpuidLeaf one(1, 0);
  const CpuidLeaf seven(7, 0);
  const CpuidLeaf seven_one(7, 1);
  const unsigned saved = bit(one.ecx, 27) ? saved_state() : 0;  // OSXSAVE
  const bool avx2 = (saved & 0x06) == 0x06 && bit(one.ecx, 12) /* FMA */ &&
                    bit(one.ecx, 29) /* F16C */ && bit(seven.ebx, 5);
  const bool avx512 = avx2 && (saved & 0xE6) == 0xE6 && bit(seven.ebx, 16) /* F */ &&
                      bit(seven.ebx, 17) /* DQ */ && bit(seven.ebx, 30) /* BW */ &&
                      bit(seven.ebx, 31) /* VL */;
  std::vector<const IsaOps*> found;
  if (avx512 && bit(seven_one.eax, 5)) found.push_back(&kAvx512Bf16Ops);
  if (avx512) found.push_back(&kAvx512Ops);
  if (avx2) found.push_back(&kAvx2Ops);
  found.push_back(&kScalarOps);
  return found;
}

std::vector<std::string_view> available_isas() {
  std::vector<std::string_view> names;
  for (const IsaOps* ops : available_isa_ops()) names.push_back(ops->name);
  return names;
}

const IsaOps& select_isa(std::string_view name) {
  const std::vector<const IsaOps*> found = available_isa_ops();
  if (name == "auto") return *found.front();
  std::string list;
  for (const IsaOps* ops : found) {
    if (name == ops->name) return *ops;
    list += std::string(list.empty() ? "" : ", ") + ops->name;
  }
  throw_error(ErrorCode::kUsage, "instruction set '{}' is not available here; choose auto, {}",
              name, list);
}

}  // namespace foresail
