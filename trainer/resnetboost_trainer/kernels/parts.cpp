// Writes numbers into parts of many parameters at once: MindSpore takes a quarter of a millisecond for each of them.
#include <cstring>

#include "operators.h"

namespace {

// (numbers, places, n parameters) -> places. `places` is int32 (k, 3): parameter, first of its numbers, how many; the
// numbers of the k parts follow each other, and more may follow them.
void write(const Call& call) {
  const int parameters = call.count - 3, last = call.count - 1;
  const int* const places = call.integers(1);
  require(call.ranks[1] == 2 && call.shapes[1][1] == 3 && call.same_shape(1, last), "places that are no table");
  const int64_t parts = call.shapes[1][0];
  int64_t taken = 0;
  for (int64_t k = 0; k < parts; ++k) {
    const int* const at = places + 3 * k;
    require(0 <= at[0] && at[0] < parameters && at[1] >= 0 && at[2] >= 0, "a part of nothing");
    require(int64_t{at[1]} + at[2] <= call.size(2 + at[0]), "a part beyond its parameter");
    taken += at[2];
  }
  require(taken <= call.size(0), "fewer numbers than the parts have");
  const float* numbers = call.floats(0);
  for (int64_t k = 0; k < parts; numbers += places[3 * k + 2], ++k)
    std::memcpy(call.floats(2 + places[3 * k]) + places[3 * k + 1], numbers, places[3 * k + 2] * sizeof(float));
  std::memcpy(const_cast<int*>(call.integers(last)), places, 3 * parts * sizeof(int));
}

}  // namespace

OPERATOR(write_parts, tensors, write)
