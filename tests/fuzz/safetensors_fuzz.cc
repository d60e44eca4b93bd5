// Any bytes as a safetensors file: the header parser refuses or yields tensors that tile the data.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "checkpoint/printable_name.h"
#include "checkpoint/safetensors_header.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kLengthBytes = 8;
  if (size < kLengthBytes) return 0;
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i) header_bytes = header_bytes << 8 | data[i];
  const uint64_t rest_bytes = size - kLengthBytes;
  if (header_bytes > rest_bytes) header_bytes = rest_bytes;  // keep mutated lengths useful
  const std::string_view text(reinterpret_cast<const char*>(data) + kLengthBytes, header_bytes);
  try {
    const foresail::SafetensorsHeader header(text, rest_bytes - header_bytes, "fuzz");
    uint64_t total_bytes = 0;
    for (size_t i = 0; i < header.tensor_count(); ++i) {
      const foresail::StoredTensor tensor = header.tensor(i);
      total_bytes += tensor.end_bytes - tensor.begin_bytes;
      if (header.find(tensor.name) != i) std::abort();
    }
    if (total_bytes != rest_bytes - header_bytes) std::abort();
  } catch (const foresail::Error& error) {
    if (std::string_view(error.what()).find('\n') != std::string_view::npos) std::abort();
  }
  return 0;
}
