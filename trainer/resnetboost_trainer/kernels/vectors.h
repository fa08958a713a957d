// Vectors of 16 float32, which the compiler maps to the widest registers of the target.
#pragma once

#include <cstdint>
#include <cstring>

constexpr int lanes = 16;
using Vector = float __attribute__((vector_size(lanes * sizeof(float))));
using Mask = int32_t __attribute__((vector_size(lanes * sizeof(float))));

#define INLINE static inline __attribute__((always_inline))

INLINE void load(Vector& v, const float* from) { std::memcpy(&v, from, sizeof v); }
INLINE void store(const Vector& v, float* to) { std::memcpy(to, &v, sizeof v); }

// The first `count` numbers, then zeros.
INLINE void load_part(Vector& v, const float* from, int64_t count) {
  v = Vector{};
  std::memcpy(&v, from, count * sizeof(float));
}
INLINE void store_part(const Vector& v, float* to, int64_t count) { std::memcpy(to, &v, count * sizeof(float)); }
