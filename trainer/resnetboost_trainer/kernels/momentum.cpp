// Momentum SGD for all parameters in one call: the 65 launches for ResNet-20 would take longer than the arithmetic.
#include <algorithm>
#include <vector>

#include "kernels.h"
#include "operators.h"
#include "pool.h"

namespace {

constexpr int64_t block = 16384;

struct Piece {
  const float* gradient;
  float *weights, *velocity;
  int64_t size;
  float decay, rate;
};

// v <- mu v + (g + decay w), then w <- w - rate v, or by Nesterov's form rate (g + decay w + mu v).
VECTORIZED void update(const Piece& piece, float mu, bool nesterov) {
  const float* const g = piece.gradient;
  float *const w = piece.weights, *const v = piece.velocity;
  const float decay = piece.decay, rate = piece.rate;
#pragma GCC ivdep
  for (int64_t i = 0; i < piece.size; ++i) {
    const float gradient = g[i] + decay * w[i];
    const float velocity = mu * v[i] + gradient;
    v[i] = velocity;
    w[i] -= rate * (nesterov ? gradient + mu * velocity : velocity);
  }
}

// (flat gradient, rate, settings, n weights, n velocities) -> rate. Weights and velocities change in place; settings is
// float32 [mu, 1 for Nesterov's form, n decays, n factors on the rate].
void momentum(const Call& call, bool followed) {
  const int n = (call.count - 4) / 2;
  require(call.count == 4 + 2 * n, "weights without velocities");
  require(call.size(1) == 1 && call.size(call.count - 1) == 1, "a rate that is not one number");
  require(call.size(2) == 2 + 2 * n, "not one decay and one rate for each of the weights");
  const float *gradient = call.floats(0), *settings = call.floats(2);
  const float rate = *call.floats(1);
  std::vector<Piece> pieces;
  int64_t place = 0;
  for (int k = 0; k < n; ++k) {
    const int64_t size = call.size(3 + k);
    require(call.same_shape(3 + k, 3 + n + k), "a velocity of another shape than its weights");
    for (int64_t from = 0; from < size; from += block)
      pieces.push_back({gradient + place + from, call.floats(3 + k) + from, call.floats(3 + n + k) + from,
                        std::min(block, size - from), settings[2 + k], rate * settings[2 + n + k]});
    place += size;
  }
  require(followed ? call.size(0) >= place : call.size(0) == place, "a gradient of another size");
  const int tasks = std::min<int>(4 * pool().get_num_threads(), static_cast<int>(pieces.size()));
  pool().parallel_for(tasks, [&](int task, int count) {
    for (size_t k = task; k < pieces.size(); k += count) update(pieces[k], settings[0], settings[1] != 0);
  });
  *call.floats(call.count - 1) = rate;
}

void of_gradient(const Call& call) { momentum(call, false); }

// The same for a rank's whole buffer, in which other numbers follow the gradient.
void of_buffer(const Call& call) { momentum(call, true); }

}  // namespace

OPERATOR(momentum_step, tensors, of_gradient)
OPERATOR(momentum_step_of_buffer, tensors, of_buffer)
