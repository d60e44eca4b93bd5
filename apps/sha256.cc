#include "apps/sha256.h"

#include <fmt/core.h>
#include <openssl/evp.h>

namespace foresail {

std::string sha256_of_ids(std::span<const int32_t> ids) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int digest_bytes = 0;
  EVP_Digest(ids.data(), ids.size_bytes(), digest, &digest_bytes, EVP_sha256(), nullptr);
  std::string text;
  for (unsigned int i = 0; i < digest_bytes; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

}  // namespace foresail
