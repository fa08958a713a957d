// Multiplies gradients by THOR's inverted Kronecker factors: U = G^-1 dW A^-1 for all layers in one call. MindSpore's
// operators need several launches for every form of layer.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "onednn.h"
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

// Returns whether oneDNN could compute C = A B, for matrices of rows, in the calling thread.
bool product(int64_t rows, int64_t columns, int64_t depth, const float* a, int64_t of_a, const float* b, int64_t of_b,
             float* c, int64_t of_c) {
  return dnnl_sgemm('N', 'N', rows, columns, depth, 1, a, of_a, b, of_b, 0, c, of_c) == 0;
}

bool compute(const Block& at) {
  thread_local std::vector<float> between;
  const Stack& stack = *at.stack;
  const Axis &outputs = stack.outputs, &inputs = stack.inputs;
  const int64_t rows = outputs.length(at.row), columns = inputs.length(at.column), step = inputs.dimension;
  const int64_t place = (at.matrix * outputs.dimension + at.row * outputs.size) * step + at.column * inputs.size;
  between.resize(rows * columns);
  return product(rows, columns, rows, outputs.inverse(at.matrix, at.row), outputs.size, stack.gradient + place, step,
                 between.data(), columns) &&
         product(rows, columns, columns, between.data(), columns, inputs.inverse(at.matrix, at.column), inputs.size,
                 stack.direction + place, step);
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
  std::atomic<bool> failed{false};
  pool().parallel_for(static_cast<int>(blocks.size()), [&](int k, int) {
    if (!compute(blocks[k])) failed = true;
  });
  require(!failed, "oneDNN cannot multiply matrices");
  std::memcpy(direction + place, gradient + place, (whole - place) * sizeof(float));
}

}  // namespace

OPERATOR(thor_direction, tensors, precondition)
