#include "ir/fingerprint.h"

#include <catch2/catch.hpp>

using namespace piper::ir;

TEST_CASE("a fingerprint is XXH3-128, and prints and parses back") {
  // The published digest of the empty input with seed 0.
  CHECK(fingerprint("").to_string() == "99aa06d3014798d86001c324468d497f");
  const Fingerprint f = fingerprint("piper");
  CHECK(Fingerprint::parse(f.to_string()) == f);
  CHECK(f != fingerprint("Piper"));
}

TEST_CASE("what is no fingerprint does not parse") {
  CHECK(!Fingerprint::parse(""));
  CHECK(!Fingerprint::parse("99aa06d3014798d86001c324468d497"));
  CHECK(!Fingerprint::parse("99aa06d3014798d86001c324468d497g"));
}

TEST_CASE("a hasher keeps fields apart") {
  auto of = [](auto... fields) {
    Hasher hasher;
    (hasher.add(fields), ...);
    return hasher.finish();
  };
  using namespace std::string_view_literals;
  CHECK(of("ab"sv, "c"sv) != of("a"sv, "bc"sv));
  CHECK(of("a"sv, "b"sv) == of("a"sv, "b"sv));
  CHECK(of(uint64_t{1}) != of(uint64_t{2}));
  CHECK(of(fingerprint("a")) != of(fingerprint("b")));
  CHECK(of() != of(""sv));
}
