// Scales a flat gradient down to a largest Euclidean norm. The norm is summed in float64 in a fixed order, so that its
// bits do not depend on the number of threads.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels.h"
#include "operators.h"
#include "pool.h"

namespace {

constexpr int64_t block = 16384, lanes = 16;

VECTORIZED double squares(const float* x, int64_t count) {
  double sums[lanes] = {}, whole = 0;
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes)
    for (int64_t l = 0; l < lanes; ++l) sums[l] += static_cast<double>(x[i + l]) * x[i + l];
  for (; i < count; ++i) whole += static_cast<double>(x[i]) * x[i];
  for (const double sum : sums) whole += sum;
  return whole;
}

VECTORIZED void scale(const float* x, float* y, int64_t count, float factor) {
  for (int64_t i = 0; i < count; ++i) y[i] = x[i] * factor;
}

// (flat gradient, largest norm, its numbers int32) -> flat gradient; what follows those numbers is copied.
void clip(const Call& call) {
  require(call.same_shape(0, 3) && call.size(1) == 1 && call.size(2) == 1, "not one norm and one number");
  const float* x = call.floats(0);
  float* y = call.floats(3);
  const int64_t whole = call.size(0), count = *call.integers(2), blocks = (count + block - 1) / block;
  require(0 < count && count <= whole, "more numbers than there are");
  std::vector<double> sums(blocks);
  const auto length = [&](int64_t k) { return std::min(block, count - k * block); };
  pool().parallel_for(static_cast<int>(blocks), [&](int k, int) { sums[k] = squares(x + k * block, length(k)); });
  double sum = 0;
  for (const double part : sums) sum += part;
  const float factor = static_cast<float>(std::min(1.0, *call.floats(1) / (std::sqrt(sum) + 1e-20)));
  pool().parallel_for(static_cast<int>(blocks),
                      [&](int k, int) { scale(x + k * block, y + k * block, length(k), factor); });
  std::memcpy(y + count, x + count, (whole - count) * sizeof(float));
}

}  // namespace

OPERATOR(clip_gradient, 4, clip)
