// Multiplies gradients by THOR's inverted Kronecker factors: U = G^-1 dW A^-1 for all layers in one call. MindSpore's
// operators need several launches for every form of layer. The products are computed here: oneDNN's are as fast in one
// thread, but two threads that call them together took 2.5 times as long (oneDNN 3.10).
#pragma GCC optimize("O3", "fp-contract=fast")
#include <algorithm>
#include <cstring>
#include <vector>

#include "operators.h"
#include "pool.h"

namespace {

// An axis of `dimension` entries and the inverses of its diagonal blocks (size x size); the last one is padded.
struct Axis {
  int64_t dimension, count, size;
  const float* inverses;

  int64_t length(int64_t block) const { return std::min(size, dimension - block * size); }
  const float* inverse(int64_t matrix, int64_t block) const { return inverses + (matrix * count + block) * size * size; }
};

// Weights of the same form: `matrices` of outputs.dimension rows and inputs.dimension columns.
struct Stack {
  int64_t matrices;
  Axis outputs, inputs;
  const float* gradient;
  float* direction;

  int64_t size() const { return matrices * outputs.dimension * inputs.dimension; }
};

// A block of a direction depends on one inverse of each axis and on the gradient at the same place.
struct Block {
  const Stack* stack;
  int64_t matrix, row, column;
};

constexpr int numbers = 7;  // of a form

constexpr int lanes = 16, together = 8;  // numbers of a vector, and rows that share its loads
typedef float Lanes __attribute__((vector_size(4 * lanes), aligned(4), may_alias));
typedef float Half __attribute__((vector_size(2 * lanes), aligned(4), may_alias));

// Matrices of rows: C (rows, columns) = A (rows, depth) B (depth, columns).
struct Product {
  const float *a, *b;
  float* c;
  int64_t of_a, of_b, of_c, rows, columns, depth;
};

// Computes `height` rows of C and as many columns as `vectors` have, and half a vector more.
template <int height, int vectors, bool half>
__attribute__((always_inline)) inline void tile(const Product& p, int64_t row, int64_t column) {
  const float *a = p.a + row * p.of_a, *b = p.b + column;
  Lanes sum[height][vectors > 0 ? vectors : 1] = {};
  Half rest[height] = {};
  for (int64_t k = 0; k < p.depth; ++k, b += p.of_b)
    for (int r = 0; r < height; ++r) {
      const float x = a[r * p.of_a + k];
      for (int v = 0; v < vectors; ++v) sum[r][v] += x * *reinterpret_cast<const Lanes*>(b + v * lanes);
      if (half) rest[r] += x * *reinterpret_cast<const Half*>(b + vectors * lanes);
    }
  for (int r = 0; r < height; ++r) {
    float* const c = p.c + (row + r) * p.of_c + column;
    for (int v = 0; v < vectors; ++v) *reinterpret_cast<Lanes*>(c + v * lanes) = sum[r][v];
    if (half) *reinterpret_cast<Half*>(c + vectors * lanes) = rest[r];
  }
}

template <int height>
__attribute__((always_inline)) inline void strip(const Product& p, int64_t row) {
  int64_t column = 0;
  for (; column + 3 * lanes <= p.columns; column += 3 * lanes) tile<height, 3, false>(p, row, column);
  switch ((p.columns - column) / (lanes / 2)) {
    case 5: tile<height, 2, true>(p, row, column); break;
    case 4: tile<height, 2, false>(p, row, column); break;
    case 3: tile<height, 1, true>(p, row, column); break;
    case 2: tile<height, 1, false>(p, row, column); break;
    case 1: tile<height, 0, true>(p, row, column); break;
  }
  for (column = p.columns / (lanes / 2) * (lanes / 2); column < p.columns; ++column)
    for (int r = 0; r < height; ++r) {
      float sum = 0;
      for (int64_t k = 0; k < p.depth; ++k) sum += p.a[(row + r) * p.of_a + k] * p.b[k * p.of_b + column];
      p.c[(row + r) * p.of_c + column] = sum;
    }
}

__attribute__((target_clones("avx512f", "fma", "default"))) void multiply(const Product& p) {
  int64_t row = 0;
  for (; row + together <= p.rows; row += together) strip<together>(p, row);
  for (; row < p.rows; ++row) strip<1>(p, row);
}

void compute(const Block& at) {
  thread_local std::vector<float> between;
  const Stack& stack = *at.stack;
  const Axis &outputs = stack.outputs, &inputs = stack.inputs;
  const int64_t rows = outputs.length(at.row), columns = inputs.length(at.column), step = inputs.dimension;
  const int64_t place = (at.matrix * outputs.dimension + at.row * outputs.size) * step + at.column * inputs.size;
  between.resize(rows * columns);
  multiply({outputs.inverse(at.matrix, at.row), stack.gradient + place, between.data(), outputs.size, step, columns,
            rows, columns, rows});
  multiply({between.data(), inputs.inverse(at.matrix, at.column), stack.direction + place, columns, inputs.size, step,
            rows, columns, columns});
}

Axis axis(const Call& call, int k, const int* form, int64_t matrices) {
  const Axis made{form[0], form[1], form[2], call.floats(k)};
  require(made.size > 0 && made.count == (made.dimension + made.size - 1) / made.size, "blocks that are no axis");
  require(call.size(k) == matrices * made.count * made.size * made.size, "inverses of another size");
  return made;
}

// (flat gradient, forms, inverses of inputs and of outputs by stack) -> direction. The stacks' weights come first in
// the gradient, and what follows them is copied. `forms` is int32 (stacks, 7): matrices, then outputs, their blocks and
// the blocks' size, then the same of inputs.
void precondition(const Call& call) {
  const int stacks = (call.count - 3) / 2;
  require(call.count == 3 + 2 * stacks && stacks > 0, "inverses of one axis alone");
  require(call.size(1) == stacks * numbers, "not one form for each stack");
  const int last = call.count - 1;
  const float* gradient = call.floats(0);
  float* direction = call.floats(last);
  const int64_t whole = call.size(0);
  require(call.size(last) == whole, "a direction of another size");
  std::vector<Stack> made;
  std::vector<Block> blocks;
  int64_t place = 0;
  for (int k = 0; k < stacks; ++k) {
    const int* form = call.integers(1) + k * numbers;
    require(form[0] > 0 && form[1] > 0 && form[4] > 0, "a stack of nothing");
    made.push_back({form[0], axis(call, 3 + 2 * k, form + 1, form[0]), axis(call, 2 + 2 * k, form + 4, form[0]),
                    gradient + place, direction + place});
    place += made.back().size();
    require(place <= whole, "a gradient of another size");
  }
  for (const Stack& stack : made)
    for (int64_t matrix = 0; matrix < stack.matrices; ++matrix)
      for (int64_t row = 0; row < stack.outputs.count; ++row)
        for (int64_t column = 0; column < stack.inputs.count; ++column) blocks.push_back({&stack, matrix, row, column});
  pool().parallel_for(static_cast<int>(blocks.size()), [&](int k, int) { compute(blocks[k]); });
  std::memcpy(direction + place, gradient + place, (whole - place) * sizeof(float));
}

}  // namespace

OPERATOR(thor_direction, tensors, precondition)
