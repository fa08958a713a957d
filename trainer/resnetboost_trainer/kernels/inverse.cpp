// Inverts damped symmetric blocks in float64 with the sweep operator (Goodnight 1979): eight blocks side by side, one in
// each lane of a vector. LAPACK takes six times as long for blocks as small as THOR's.
#pragma GCC optimize("O3", "fp-contract=fast")
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "operators.h"
#include "pool.h"

namespace {

constexpr int lanes = 8;
typedef double Lanes __attribute__((vector_size(8 * lanes)));

// Sweeps the lower triangle `a` (size, size) by every diagonal entry in turn, which leaves -A^-1. `pivots` (size,)
// become the entries that were swept: all positive and finite exactly for a positive definite block.
__attribute__((target_clones("avx512f", "fma", "default"))) void sweep(Lanes* a, Lanes* column, Lanes* pivots,
                                                                       int64_t size) {
  for (int64_t k = 0; k < size; ++k) {
    const Lanes pivot = a[k * size + k], reciprocal = 1 / pivot;
    pivots[k] = pivot;
    for (int64_t i = 0; i < k; ++i) column[i] = a[k * size + i];
    for (int64_t i = k + 1; i < size; ++i) column[i] = a[i * size + k];
    column[k] = Lanes{};
    for (int64_t i = 0; i < size; ++i) {
      const Lanes factor = column[i] * reciprocal;
      Lanes* const row = a + i * size;
      if (i != k)
        for (int64_t j = 0; j <= i; ++j) row[j] -= factor * column[j];
    }
    for (int64_t i = 0; i < k; ++i) a[k * size + i] = column[i] * reciprocal;
    for (int64_t i = k + 1; i < size; ++i) a[i * size + k] = column[i] * reciprocal;
    a[k * size + k] = -reciprocal;
  }
}

// Blocks (count, size, size), the damping of each and their inverses.
struct Blocks {
  const float* given;
  const double* dampings;
  float* inverses;
  int64_t count, size;
};

void load(const Blocks& all, int64_t first, Lanes* a) {
  const int64_t size = all.size;
  for (int64_t lane = 0; lane < lanes; ++lane) {
    const int64_t block = std::min(first + lane, all.count - 1);  // lanes that are left over repeat the last block
    const float* const given = all.given + block * size * size;
    double* const target = reinterpret_cast<double*>(a) + lane;
    for (int64_t i = 0; i < size; ++i) {
      for (int64_t j = 0; j <= i; ++j) target[(i * size + j) * lanes] = given[i * size + j];
      target[(i * size + i) * lanes] += all.dampings[block];
    }
  }
}

// Writes a lane's inverse, or NaN if the block has none that is finite in float32.
void store(const Lanes* a, const Lanes* pivots, int64_t lane, float* inverse, int64_t size) {
  const double* const source = reinterpret_cast<const double*>(a) + lane;
  bool sound = true;
  for (int64_t i = 0; i < size; ++i) sound &= pivots[i][lane] > 0 && pivots[i][lane] <= std::numeric_limits<double>::max();
  for (int64_t i = 0; i < size; ++i)
    for (int64_t j = 0; j <= i; ++j) {
      const float value = static_cast<float>(-source[(i * size + j) * lanes]);
      sound &= std::isfinite(value);
      inverse[i * size + j] = inverse[j * size + i] = value;
    }
  if (!sound) std::fill(inverse, inverse + size * size, std::numeric_limits<float>::quiet_NaN());
}

// Returns room for so many vectors: new pages for every call would take as long as the arithmetic.
Lanes* space(size_t vectors) {
  static auto* const kept = new std::vector<double>;
  kept->resize(std::max(kept->size(), (vectors + 1) * lanes));
  const auto start = reinterpret_cast<uintptr_t>(kept->data());
  return reinterpret_cast<Lanes*>((start + sizeof(Lanes) - 1) / sizeof(Lanes) * sizeof(Lanes));
}

// (blocks (n, b, b), their dampings float64 (n,)) -> inverses (n, b, b) of block + damping I.
void invert(const Call& call) {
  const float* given = call.floats(0);
  require(std::strcmp(call.types[1], "float64") == 0, "dampings that are not float64");
  require(call.ranks[0] == 3 && call.shapes[0][1] == call.shapes[0][2], "blocks that are not square");
  require(call.size(1) == call.shapes[0][0] && call.same_shape(0, 2), "blocks, dampings and inverses differ in number");
  const Blocks all{given, static_cast<const double*>(call.data[1]), call.floats(2), call.shapes[0][0],
                   call.shapes[0][1]};
  const int64_t square = all.size * all.size, groups = (all.count + lanes - 1) / lanes;
  const int threads = static_cast<int>(std::min<int64_t>(pool().get_num_threads(), groups));
  Lanes* const begin = space((square + 2 * all.size) * threads);
  pool().parallel_for(threads, [&](int thread, int count) {
    Lanes* const a = begin + thread * (square + 2 * all.size);
    for (int64_t group = thread; group < groups; group += count) {
      load(all, group * lanes, a);
      sweep(a, a + square, a + square + all.size, all.size);
      for (int64_t lane = 0; lane < std::min<int64_t>(lanes, all.count - group * lanes); ++lane)
        store(a, a + square + all.size, lane, all.inverses + (group * lanes + lane) * square, all.size);
    }
  });
}

}  // namespace

OPERATOR(invert_blocks, 3, invert)
