// Fingerprint of token ids, to show that two runs gave the same.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace foresail {

// Lower-case hexadecimal SHA-256 of the ids as little-endian int32.
std::string sha256_of_ids(std::span<const int32_t> ids);

}  // namespace foresail
