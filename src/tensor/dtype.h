// Element types of checkpoints and buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace foresail {

enum class DType : uint8_t { kF32, kBF16, kF16, kF64, kI64, kI32, kI16, kI8, kU8, kBool, kF8E4M3 };

constexpr size_t size_bytes(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
    case DType::kI16:
      return 2;
    default:
      return 1;
  }
}

constexpr std::string_view dtype_name(DType dtype) {
  constexpr std::string_view kNames[] = {"F32", "BF16", "F16", "F64",  "I64",    "I32",
                                         "I16", "I8",   "U8",  "BOOL", "F8_E4M3"};
  return kNames[static_cast<size_t>(dtype)];
}

}  // namespace foresail
