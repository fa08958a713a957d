// Passes of an adaptive sum over rows of tensors (rows, share): tensor t has the columns from bounds[t] to bounds[t + 1] of
// every row. Products are accumulated in float64 in a fixed order, so that bits do not depend on the number of threads.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels.h"
#include "operators.h"
#include "pool.h"

namespace {

constexpr int64_t lanes = 16;

// The numbers of one tensor in one row.
struct Part {
  int64_t tensor, first, count;
};

// Rows and tensors of a call, from the shape of argument 0 and the bounds in argument `k`.
struct Rows {
  int64_t rows, share, tensors;
  const int* bounds;

  Rows(const Call& call, int k) : bounds(call.integers(k)) {
    require(call.ranks[0] == 2 && call.ranks[k] == 1 && call.size(k) > 0, "no rows of tensors");
    rows = call.shapes[0][0], share = call.shapes[0][1], tensors = call.size(k) - 1;
    require(bounds[0] == 0 && bounds[tensors] == share, "bounds that do not fit the rows");
    for (int64_t t = 0; t < tensors; ++t) require(bounds[t] <= bounds[t + 1], "bounds that do not ascend");
  }

  // Calls body(part, its index) for every tensor and row, on the threads of the pool.
  template <typename Body>
  void each(Body body) const {
    pool().parallel_for(static_cast<int>(rows * tensors), [&](int i, int) {
      const int64_t t = i / rows, row = i % rows;
      body(Part{t, row * share + bounds[t], bounds[t + 1] - bounds[t]}, i);
    });
  }
};

VECTORIZED void multiply(const float* x, const float* y, int64_t count, double* product, double* square) {
  double products[lanes] = {}, squares[lanes] = {};
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes)
    for (int64_t l = 0; l < lanes; ++l) {
      const double left = x[i + l];
      products[l] += left * y[i + l];
      squares[l] += left * left;
    }
  for (; i < count; ++i) {
    const double left = x[i];
    products[0] += left * y[i];
    squares[0] += left * left;
  }
  *product = *square = 0;
  for (int64_t l = 0; l < lanes; ++l) *product += products[l], *square += squares[l];
}

// (left, right, bounds) -> float64 (2, tensors): <left, right> and <left, left> by tensor.
void products(const Call& call) {
  const Rows rows(call, 2);
  require(call.same_shape(0, 1) && call.size(3) == 2 * rows.tensors, "shapes that differ");
  const float *left = call.floats(0), *right = call.floats(1);
  double* result = call.doubles(3);
  std::vector<double> found(2 * rows.rows * rows.tensors);
  rows.each([&](const Part& part, int i) {
    multiply(left + part.first, right + part.first, part.count, &found[2 * i], &found[2 * i + 1]);
  });
  std::fill(result, result + 2 * rows.tensors, 0.0);
  for (int64_t t = 0; t < rows.tensors; ++t)
    for (int64_t row = 0; row < rows.rows; ++row)
      for (int64_t k = 0; k < 2; ++k) result[k * rows.tensors + t] += found[2 * (t * rows.rows + row) + k];
}

VECTORIZED void multiply_by(const float* x, float factor, float* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = x[i] * factor;
}

VECTORIZED void subtract_and_multiply(const float* total, float factor, float* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = (total[i] - y[i]) * factor;
}

// (rows, bounds, exponents) -> rows times 2^exponent of their tensor.
void scale(const Call& call) {
  const Rows rows(call, 1);
  require(call.same_shape(0, 3) && call.size(2) == rows.tensors, "shapes that differ");
  const float* from = call.floats(0);
  const int* exponents = call.integers(2);
  float* to = call.floats(3);
  rows.each([&](const Part& part, int) {
    multiply_by(from + part.first, std::ldexp(1.0f, exponents[part.tensor]), to + part.first, part.count);
  });
}

// (total, bounds, exponents) -> own rows, which become (total - own) times 2^exponent of their tensor.
void unscale(const Call& call) {
  const Rows rows(call, 1);
  require(call.same_shape(0, 3) && call.size(2) == rows.tensors, "shapes that differ");
  const float* total = call.floats(0);
  const int* exponents = call.integers(2);
  float* own = call.floats(3);
  rows.each([&](const Part& part, int) {
    const float factor = std::ldexp(1.0f, exponents[part.tensor]);
    subtract_and_multiply(total + part.first, factor, own + part.first, part.count);
  });
}

void add_wide(const float* left, const float* right, const double* factors, float* result, int64_t count) {
  for (int64_t i = 0; i < count; ++i) result[i] = static_cast<float>(factors[0] * left[i] + factors[1] * right[i]);
}

VECTORIZED void add_narrow(const float* left, const float* right, const double* factors, float* result, int64_t count) {
  const float ours = static_cast<float>(factors[0]), theirs = static_cast<float>(factors[1]);
  for (int64_t i = 0; i < count; ++i) result[i] = ours * left[i] + theirs * right[i];
}

// (left, right, bounds, float64 factors (tensors, 2), largest factor of float32) -> factors[0] left + factors[1] right;
// the result may be one of both. Tensors with a larger factor are computed in float64.
void combine(const Call& call) {
  const Rows rows(call, 2);
  require(call.same_shape(0, 1) && call.same_shape(0, 5) && call.size(3) == 2 * rows.tensors && call.size(4) == 1,
          "shapes that differ");
  const float *left = call.floats(0), *right = call.floats(1);
  const double *factors = call.doubles(3), large = *call.doubles(4);
  float* result = call.floats(5);
  rows.each([&](const Part& part, int) {
    const double* of = factors + 2 * part.tensor;
    const auto run = std::max(std::abs(of[0]), std::abs(of[1])) > large ? add_wide : add_narrow;
    run(left + part.first, right + part.first, of, result + part.first, part.count);
  });
}

}  // namespace

OPERATOR(adasum_products, 4, products)
OPERATOR(adasum_scale, 4, scale)
OPERATOR(adasum_unscale, 4, unscale)
OPERATOR(adasum_combine, 6, combine)
