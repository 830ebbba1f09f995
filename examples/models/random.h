// Random numbers that any program reproduces bit for bit: counters through splitmix64's finalizer.
#pragma once

#include <cstdint>
#include <string_view>

namespace piper::models {

/// splitmix64 of one integer (Steele, Lea & Flood, OOPSLA 2014).
constexpr uint64_t mix(uint64_t z) {
  z += 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

/// The 64-bit Fowler-Noll-Vo hash (1a) of the bytes.
constexpr uint64_t fnv1a64(std::string_view bytes) {
  uint64_t hash = 0xCBF29CE484222325;
  for (char c : bytes)
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  return hash;
}

/// Number `k` of the stream `key`, in [0, 1).
constexpr double uniform(uint64_t key, uint64_t k) {
  return static_cast<double>(mix(key + k) >> 11) * 0x1p-53;
}

} // namespace piper::models
