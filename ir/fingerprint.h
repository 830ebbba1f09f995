// Content keys: 128 bits of XXH3 over everything that was read.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace piper::ir {

struct Fingerprint {
  uint64_t high = 0, low = 0;
  auto operator<=>(const Fingerprint&) const = default;
  std::string to_string() const; ///< 32 lower-case hex digits
  static std::optional<Fingerprint> parse(std::string_view hex);
};

/// Of a byte string; equal strings have equal fingerprints on every machine.
Fingerprint fingerprint(std::string_view bytes);

/// Collects fields into one fingerprint. Each field is length-prefixed, so ("ab","c") and
/// ("a","bc") differ.
class Hasher {
public:
  Hasher& add(std::string_view bytes);
  Hasher& add(uint64_t number);
  Hasher& add(const Fingerprint& other);
  Fingerprint finish() const;

private:
  std::string buffer_;
};

} // namespace piper::ir
