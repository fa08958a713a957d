// Batch normalization (Ioffe & Szegedy 2015) fused with the addition of a shortcut and relu, in one pass over memory:
// y = relu(gamma (x - mean) / deviation + beta + shortcut), forward and backward, one channel at a time in cache.
//
// x is (n, c, h, w); `settings` is float32 [epsilon, share of the running statistics kept per step, 1 for relu]. An
// optional shortcut of x's shape comes last. Results do not depend on the number of threads.
#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "kernels.h"
#include "operators.h"
#include "pool.h"

namespace {

constexpr int lanes = 16;
constexpr int64_t most = 1024;  // numbers summed in float32 per lane before adding to a float64 sum

// One channel of (n, c, h, w): `count` planes of `size` numbers, `step` apart.
struct Channel {
  int64_t count, size, step;
  double numbers() const { return static_cast<double>(count * size); }
};

struct Sum {
  float part[lanes] = {};
  double whole = 0;
  void flush() {
    for (float& value : part) whole += value, value = 0;
  }
};

VECTORIZED double sum_of(const float* x, Channel at) {
  Sum sum;
  for (int64_t n = 0, seen = 0; n < at.count; ++n, x += at.step) {
    int64_t i = 0;
    for (; i + lanes <= at.size; i += lanes)
      for (int l = 0; l < lanes; ++l) sum.part[l] += x[i + l];
    for (int l = 0; i < at.size; ++i, ++l) sum.part[l] += x[i];
    if ((seen += at.size) >= most * lanes || n + 1 == at.count) sum.flush(), seen = 0;
  }
  return sum.whole;
}

VECTORIZED double squares_of(const float* x, Channel at, float mean) {
  Sum sum;
  for (int64_t n = 0, seen = 0; n < at.count; ++n, x += at.step) {
    int64_t i = 0;
    for (; i + lanes <= at.size; i += lanes)
      for (int l = 0; l < lanes; ++l) sum.part[l] += (x[i + l] - mean) * (x[i + l] - mean);
    for (int l = 0; i < at.size; ++i, ++l) sum.part[l] += (x[i] - mean) * (x[i] - mean);
    if ((seen += at.size) >= most * lanes || n + 1 == at.count) sum.flush(), seen = 0;
  }
  return sum.whole;
}

// y = scale (x - mean) + shift [+ shortcut]; NaN stays NaN.
VECTORIZED void scaled(const float* x, const float* shortcut, float* y, Channel at, float mean, float scale, float shift,
                       bool relu) {
  const float least = relu ? 0.0f : -INFINITY;
  for (int64_t n = 0; n < at.count; ++n, x += at.step, y += at.step) {
    if (shortcut != nullptr) {
#pragma GCC ivdep
      for (int64_t i = 0; i < at.size; ++i) {
        const float z = scale * (x[i] - mean) + shift + shortcut[i];
        y[i] = z < least ? least : z;
      }
      shortcut += at.step;
    } else {
#pragma GCC ivdep
      for (int64_t i = 0; i < at.size; ++i) {
        const float z = scale * (x[i] - mean) + shift;
        y[i] = z < least ? least : z;
      }
    }
  }
}

// relu's gradient. Both numbers are passed by value: conditional loads would not be vectorized.
inline float passed(float dy, float y, float least) { return y > least ? dy : 0.0f; }

struct Sums {
  double gradient, with_input;
};

// Sums of dz and of dz (x - mean), where dz is dy wherever y is above `least`.
VECTORIZED Sums gradient_sums(const float* x, const float* y, const float* dy, Channel at, float mean, float least) {
  Sum plain, product;
  for (int64_t n = 0, seen = 0; n < at.count; ++n, x += at.step, y += at.step, dy += at.step) {
    int64_t i = 0;
    for (; i + lanes <= at.size; i += lanes)
      for (int l = 0; l < lanes; ++l) {
        const float dz = passed(dy[i + l], y[i + l], least);
        plain.part[l] += dz;
        product.part[l] += dz * (x[i + l] - mean);
      }
    for (int l = 0; i < at.size; ++i, ++l) {
      const float dz = passed(dy[i], y[i], least);
      plain.part[l] += dz;
      product.part[l] += dz * (x[i] - mean);
    }
    if ((seen += at.size) >= most * lanes || n + 1 == at.count) plain.flush(), product.flush(), seen = 0;
  }
  return {plain.whole, product.whole};
}

// dx = scale (dz - offset - slope (x - mean)), and dz for the shortcut.
VECTORIZED void gradients(const float* x, const float* y, const float* dy, float* dx, float* dshortcut, Channel at,
                          float mean, float scale, float offset, float slope, float least) {
  for (int64_t n = 0; n < at.count; ++n, x += at.step, y += at.step, dy += at.step, dx += at.step) {
    if (dshortcut != nullptr) {
#pragma GCC ivdep
      for (int64_t i = 0; i < at.size; ++i) {
        const float dz = passed(dy[i], y[i], least);
        dshortcut[i] = dz;
        dx[i] = scale * (dz - offset - slope * (x[i] - mean));
      }
      dshortcut += at.step;
    } else {
#pragma GCC ivdep
      for (int64_t i = 0; i < at.size; ++i) {
        const float dz = passed(dy[i], y[i], least);
        dx[i] = scale * (dz - offset - slope * (x[i] - mean));
      }
    }
  }
}

// Runs body(channel, offset of its first number, Channel) for all channels of the first tensor.
template <typename Body>
void each_channel(const Call& call, Body body) {
  const int64_t* const sizes = call.shapes[0];
  const int64_t channels = sizes[1], plane = sizes[2] * sizes[3];
  const Channel at{sizes[0], plane, channels * plane};
  // Small tensors are done before another thread wakes up.
  const int64_t worth = std::max<int64_t>(1, at.count * at.step / 8192);
  const int tasks = static_cast<int>(std::min<int64_t>({channels, 4 * pool().get_num_threads(), worth}));
  pool().parallel_for(tasks, [&](int task, int count) {
    for (int64_t c = channels * task / count; c < channels * (task + 1) / count; ++c) body(c, c * plane, at);
  });
}

// Checks shapes: `images` have x's shape, `vectors` one number per channel, `settings` three numbers.
void require_shapes(const Call& call, std::initializer_list<int> images, std::initializer_list<int> vectors,
                    int settings) {
  require(call.ranks[0] == 4, "a tensor without 4 axes");
  for (int k : images) require(call.same_shape(k, 0), "a tensor of another shape than the images");
  for (int k : vectors) require(call.size(k) == call.shapes[0][1], "not one number for each channel");
  require(call.size(settings) == 3, "not three settings");
}

// (x, gamma, beta, running mean, running variance, settings [, shortcut]) -> y, means, 1 / deviations. The running
// statistics are updated in place, with the sample variance (divisor n - 1), as in other frameworks.
void forward(const Call& call) {
  const bool adds = call.count == 10;
  require_shapes(call, {6, 6 + adds}, {1, 2, 3, 4, 7 + adds, 8 + adds}, 5);
  const float *x = call.floats(0), *gamma = call.floats(1), *beta = call.floats(2), *settings = call.floats(5);
  float *running_mean = call.floats(3), *running_variance = call.floats(4);
  const float* const shortcut = adds ? call.floats(6) : nullptr;
  float *y = call.floats(6 + adds), *means = call.floats(7 + adds), *inverses = call.floats(8 + adds);
  const float epsilon = settings[0], keep = settings[1];
  const bool relu = settings[2] != 0;
  each_channel(call, [&](int64_t c, int64_t first, Channel at) {
    const double numbers = at.numbers();
    const float mean = static_cast<float>(sum_of(x + first, at) / numbers);
    const double squares = squares_of(x + first, at, mean);
    const float inverse = static_cast<float>(1 / std::sqrt(squares / numbers + epsilon));
    scaled(x + first, adds ? shortcut + first : nullptr, y + first, at, mean, gamma[c] * inverse, beta[c], relu);
    means[c] = mean;
    inverses[c] = inverse;
    const float variance = static_cast<float>(squares / std::max(numbers - 1, 1.0));
    running_mean[c] = keep * running_mean[c] + (1 - keep) * mean;
    running_variance[c] = keep * running_variance[c] + (1 - keep) * variance;
  });
}

// (x, gamma, means, 1 / deviations, y, gradient of y, settings) -> gradients of x, gamma, beta [, shortcut]
void backward(const Call& call) {
  const bool adds = call.count == 11;
  require_shapes(call, {4, 5, 7, adds ? 10 : 7}, {1, 2, 3, 8, 9}, 6);
  const float *x = call.floats(0), *gamma = call.floats(1), *means = call.floats(2), *inverses = call.floats(3);
  const float *y = call.floats(4), *dy = call.floats(5);
  float *dx = call.floats(7), *dgamma = call.floats(8), *dbeta = call.floats(9);
  float* const dshortcut = adds ? call.floats(10) : nullptr;
  const float least = call.floats(6)[2] != 0 ? 0.0f : -INFINITY;
  each_channel(call, [&](int64_t c, int64_t first, Channel at) {
    const float mean = means[c], inverse = inverses[c];
    const Sums sums = gradient_sums(x + first, y + first, dy + first, at, mean, least);
    dgamma[c] = static_cast<float>(sums.with_input * inverse);
    dbeta[c] = static_cast<float>(sums.gradient);
    const float offset = static_cast<float>(sums.gradient / at.numbers());
    const float slope = static_cast<float>(sums.with_input / at.numbers() * inverse * inverse);
    gradients(x + first, y + first, dy + first, dx + first, adds ? dshortcut + first : nullptr, at, mean,
              gamma[c] * inverse, offset, slope, least);
  });
}

// (x, gamma, beta, running mean, running variance, settings [, shortcut]) -> y
void inference(const Call& call) {
  const bool adds = call.count == 8;
  require_shapes(call, {6, 6 + adds}, {1, 2, 3, 4}, 5);
  const float *x = call.floats(0), *gamma = call.floats(1), *beta = call.floats(2);
  const float *means = call.floats(3), *variances = call.floats(4), *settings = call.floats(5);
  const float* const shortcut = adds ? call.floats(6) : nullptr;
  float* const y = call.floats(6 + adds);
  each_channel(call, [&](int64_t c, int64_t first, Channel at) {
    const float scale = gamma[c] / std::sqrt(variances[c] + settings[0]);
    scaled(x + first, adds ? shortcut + first : nullptr, y + first, at, means[c], scale, beta[c], settings[2] != 0);
  });
}

}  // namespace

OPERATOR(normalization, 9, forward)
OPERATOR(normalization_added, 10, forward)
OPERATOR(normalization_gradients, 10, backward)
OPERATOR(normalization_added_gradients, 11, backward)
OPERATOR(normalization_inference, 7, inference)
OPERATOR(normalization_added_inference, 8, inference)
