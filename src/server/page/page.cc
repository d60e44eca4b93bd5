#include "server/page/page.h"

#include <fmt/core.h>
#include <openssl/evp.h>

#include <cstddef>

#include "base/check.h"

namespace foresail {

extern const unsigned char kPageBytes[];  // made from page.html
extern const std::size_t kPageBytesSize;

namespace {

std::string_view inside(std::string_view html, std::string_view open, std::string_view close) {
  const size_t begin = html.find(open) + open.size();
  const size_t end = html.find(close, begin);
  FORESAIL_CHECK(begin >= open.size() && end != html.npos, "the page has no {}", open);
  return html.substr(begin, end - begin);
}

// 'sha256-...' of a script or style, as browsers compute it.
std::string source_hash(std::string_view text) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int digest_size = 0;
  FORESAIL_CHECK(EVP_Digest(text.data(), text.size(), digest, &digest_size, EVP_sha256(), nullptr),
                 "no SHA-256 of {} bytes", text.size());
  unsigned char base64[4 * EVP_MAX_MD_SIZE];
  const int length = EVP_EncodeBlock(base64, digest, static_cast<int>(digest_size));
  return fmt::format("'sha256-{}'", std::string_view(reinterpret_cast<char*>(base64),
                                                     static_cast<size_t>(length)));
}

}  // namespace

std::string_view page_html() {
  return {reinterpret_cast<const char*>(kPageBytes), kPageBytesSize};
}

std::string page_policy() {
  return fmt::format(
      "default-src 'none'; script-src {}; style-src {}; connect-src 'self'; img-src data:; "
      "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
      source_hash(inside(page_html(), "<script>", "</script>")),
      source_hash(inside(page_html(), "<style>", "</style>")));
}

}  // namespace foresail
