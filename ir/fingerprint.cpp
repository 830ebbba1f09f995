#include "ir/fingerprint.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace piper::ir {

namespace {
constexpr char kDigits[] = "0123456789abcdef";

int digit(char c) {
  if (c >= '0' && c <= '9')
    return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

// Little-endian on every machine, so that fingerprints travel.
void append_word(std::string& out, uint64_t word) {
  for (int i = 0; i < 8; ++i)
    out += static_cast<char>(word >> (8 * i));
}
} // namespace

std::string Fingerprint::to_string() const {
  std::string out(32, '0');
  for (size_t i = 0; i < 16; ++i) {
    out[15 - i] = kDigits[(high >> (4 * i)) & 15];
    out[31 - i] = kDigits[(low >> (4 * i)) & 15];
  }
  return out;
}

std::optional<Fingerprint> Fingerprint::parse(std::string_view hex) {
  if (hex.size() != 32)
    return std::nullopt;
  Fingerprint out;
  for (size_t i = 0; i < 32; ++i) {
    int value = digit(hex[i]);
    if (value < 0)
      return std::nullopt;
    uint64_t& half = i < 16 ? out.high : out.low;
    half = half << 4 | static_cast<uint64_t>(value);
  }
  return out;
}

Fingerprint fingerprint(std::string_view bytes) {
  XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.high64, hash.low64};
}

Hasher& Hasher::add(std::string_view bytes) {
  append_word(buffer_, bytes.size());
  buffer_ += bytes;
  return *this;
}

Hasher& Hasher::add(uint64_t number) {
  append_word(buffer_, sizeof number);
  append_word(buffer_, number);
  return *this;
}

Hasher& Hasher::add(const Fingerprint& other) {
  append_word(buffer_, sizeof other);
  append_word(buffer_, other.high);
  append_word(buffer_, other.low);
  return *this;
}

Fingerprint Hasher::finish() const {
  return fingerprint(buffer_);
}

} // namespace piper::ir
