#include "squeeze.h"

#include <cmath>
#include <stdexcept>

#include "onednn.h"
#include "pool.h"

namespace {

// c = op(a) op(b), with a op(a) of (rows, depth), all row-major and dense.
void product(bool transposed_a, bool transposed_b, int64_t rows, int64_t columns, int64_t depth, const float* a,
             const float* b, float* c) {
  const int status = dnnl_threadpool_interop_sgemm(
      transposed_a ? 'T' : 'N', transposed_b ? 'T' : 'N', rows, columns, depth, 1, a, transposed_a ? rows : depth, b,
      transposed_b ? depth : columns, 0, c, columns, &pool());
  if (status != 0) throw std::runtime_error("oneDNN: a product failed with " + std::to_string(status));
}

void add_rows(const float* from, int64_t rows, int64_t columns, float* sums) {
  for (int64_t column = 0; column < columns; ++column) sums[column] = 0;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t column = 0; column < columns; ++column) sums[column] += from[row * columns + column];
}

}  // namespace

void excite(const Excitation& by, const float* means, float* hidden, float* gates) {
  product(false, true, by.images, by.inner, by.channels, means, by.w1, hidden);
  for (int64_t k = 0; k < by.images * by.inner; ++k) {
    const float value = hidden[k] + by.b1[k % by.inner];
    hidden[k] = value < 0 ? 0 : value;  // NaN stays NaN
  }
  product(false, true, by.images, by.channels, by.inner, hidden, by.w2, gates);
  for (int64_t k = 0; k < by.images * by.channels; ++k)
    gates[k] = 1 / (1 + std::exp(-(gates[k] + by.b2[k % by.channels])));
}

void excite_gradient(const Excitation& by, const float* means, const float* hidden, const float* gates,
                     float* gates_gradient, const ExcitationGradients& found, float* hidden_gradient,
                     float* means_gradient) {
  float *const logits = gates_gradient, *const inner = hidden_gradient;
  for (int64_t k = 0; k < by.images * by.channels; ++k) logits[k] *= gates[k] * (1 - gates[k]);
  product(true, false, by.channels, by.inner, by.images, logits, hidden, found.w2);
  add_rows(logits, by.images, by.channels, found.b2);
  product(false, false, by.images, by.inner, by.channels, logits, by.w2, inner);
  for (int64_t k = 0; k < by.images * by.inner; ++k)
    if (!(hidden[k] > 0)) inner[k] = 0;
  product(true, false, by.inner, by.channels, by.images, inner, means, found.w1);
  add_rows(inner, by.images, by.inner, found.b1);
  product(false, false, by.images, by.channels, by.inner, inner, by.w1, means_gradient);
}
