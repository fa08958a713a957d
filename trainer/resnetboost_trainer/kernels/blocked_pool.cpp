#include <algorithm>
#include <cmath>

#include "blocked.h"
#include "kernels.h"
#include "pool.h"

namespace {

constexpr int window = 3, stride = 2;

// Runs body(offset of the plane in the larger images, in the smaller ones, image, block) for all blocks of channels.
template <typename Body>
void each_plane(const Blocked& large, const Blocked& small, Body body) {
  const int64_t planes = large.n * large.blocks(), worth = std::max<int64_t>(1, large.size() / 8192);
  const int tasks = static_cast<int>(std::min<int64_t>({planes, 4 * pool().get_num_threads(), worth}));
  pool().parallel_for(tasks, [&](int task, int count) {
    for (int64_t k = planes * task / count; k < planes * (task + 1) / count; ++k)
      body(k * large.plane(), k * small.plane(), k / large.blocks(), k % large.blocks());
  });
}

template <int width>
VECTORIZED void max_of_plane(const float* x, const Blocked& at, float* y, uint8_t* chosen, const Blocked& to) {
  for (int64_t row = 0; row < to.h; ++row)
    for (int64_t column = 0; column < to.w; ++column, y += width) {
      float most[width];
      int32_t where[width] = {};
      for (int l = 0; l < width; ++l) most[l] = -INFINITY;
      for (int k = 0; k < window * window; ++k) {
        const int64_t r = row * stride - 1 + k / window, c = column * stride - 1 + k % window;
        if (r < 0 || r >= at.h || c < 0 || c >= at.w) continue;
        const float* const from = x + (r * at.w + c) * width;
        for (int l = 0; l < width; ++l) {
          const bool more = !(from[l] <= most[l]) && most[l] == most[l];  // NaN stays NaN
          most[l] = more ? from[l] : most[l];
          where[l] = more ? k : where[l];
        }
      }
      for (int l = 0; l < width; ++l) y[l] = most[l];
      if (chosen != nullptr) {
        for (int l = 0; l < width; ++l) chosen[l] = static_cast<uint8_t>(where[l]);
        chosen += width;
      }
    }
}

template <int width>
VECTORIZED void max_gradient_of_plane(const float* dy, const uint8_t* chosen, float* dx, const Blocked& at,
                                      const Blocked& from) {
  std::fill(dx, dx + at.plane(), 0.0f);
  for (int64_t row = 0; row < from.h; ++row)
    for (int64_t column = 0; column < from.w; ++column, dy += width, chosen += width)
      for (int k = 0; k < window * window; ++k) {
        const int64_t r = row * stride - 1 + k / window, c = column * stride - 1 + k % window;
        if (r < 0 || r >= at.h || c < 0 || c >= at.w) continue;
        float* const to = dx + (r * at.w + c) * width;
        for (int l = 0; l < width; ++l) to[l] += chosen[l] == k ? dy[l] : 0.0f;
      }
}

}  // namespace

Blocked max_pooled(const Blocked& at) { return {at.n, at.c, (at.h - 1) / stride + 1, (at.w - 1) / stride + 1, at.width}; }

void max_pool(const float* x, const Blocked& at, float* y, uint8_t* chosen) {
  const Blocked to = max_pooled(at);
  const auto of_plane = at.width == 16 ? max_of_plane<16> : max_of_plane<8>;
  each_plane(at, to, [&](int64_t from, int64_t into, int64_t, int64_t) {
    of_plane(x + from, at, y + into, chosen == nullptr ? nullptr : chosen + into, to);
  });
}

void max_pool_gradient(const float* dy, const uint8_t* chosen, float* dx, const Blocked& at) {
  const Blocked from = max_pooled(at);
  const auto of_plane = at.width == 16 ? max_gradient_of_plane<16> : max_gradient_of_plane<8>;
  each_plane(at, from, [&](int64_t into, int64_t start, int64_t, int64_t) {
    of_plane(dy + start, chosen + start, dx + into, at, from);
  });
}

void mean_of_pixels(const float* x, const Blocked& at, float* y) {
  const Blocked mean{at.n, at.c, 1, 1, at.width};
  const float share = 1.0f / static_cast<float>(at.h * at.w);
  each_plane(at, mean, [&](int64_t from, int64_t into, int64_t, int64_t) {
    float sums[16] = {};
    for (int64_t i = 0; i < at.plane(); i += at.width)
      for (int l = 0; l < at.width; ++l) sums[l] += x[from + i + l];
    for (int l = 0; l < at.width; ++l) y[into + l] = sums[l] * share;
  });
}

void mean_of_pixels_gradient(const float* dy, float* dx, const Blocked& at) {
  const Blocked mean{at.n, at.c, 1, 1, at.width};
  const float share = 1.0f / static_cast<float>(at.h * at.w);
  each_plane(at, mean, [&](int64_t into, int64_t from, int64_t, int64_t) {
    for (int64_t i = 0; i < at.plane(); i += at.width)
      for (int l = 0; l < at.width; ++l) dx[into + i + l] = dy[from + l] * share;
  });
}

void subsample(const float* x, const Blocked& from, float* y, const Blocked& to) {
  each_plane(to, to, [&](int64_t into, int64_t, int64_t image, int64_t block) {
    float* const plane = y + into;
    std::fill(plane, plane + to.plane(), 0.0f);
    if (block >= from.blocks()) return;
    const float* const start = x + (image * from.blocks() + block) * from.plane();
    for (int64_t row = 0; row < to.h; ++row)
      for (int64_t column = 0; column < to.w; ++column)
        for (int l = 0; l < to.width; ++l)
          plane[(row * to.w + column) * to.width + l] = start[(row * stride * from.w + column * stride) * to.width + l];
  });
}

namespace {

// (pixels, width) -> (width, pixels)
template <int width>
VECTORIZED void transpose(const float* x, int64_t pixels, float* y) {
  int64_t p = 0;
  for (; p + width <= pixels; p += width) {
    float tile[width][width];
    for (int k = 0; k < width; ++k)
      for (int l = 0; l < width; ++l) tile[k][l] = x[(p + k) * width + l];
    for (int l = 0; l < width; ++l)
      for (int k = 0; k < width; ++k) y[l * pixels + p + k] = tile[k][l];
  }
  for (; p < pixels; ++p)
    for (int l = 0; l < width; ++l) y[l * pixels + p] = x[p * width + l];
}

}  // namespace

void to_plain(const float* x, const Blocked& at, float* y) {
  const int64_t pixels = at.h * at.w;
  each_plane(at, at, [&](int64_t from, int64_t to, int64_t, int64_t) {
    at.width == 16 ? transpose<16>(x + from, pixels, y + to) : transpose<8>(x + from, pixels, y + to);
  });
}

void add_subsample_gradient(const float* dy, const Blocked& to, float* dx, const Blocked& from) {
  each_plane(from, from, [&](int64_t into, int64_t, int64_t image, int64_t block) {
    const float* const start = dy + (image * to.blocks() + block) * to.plane();
    for (int64_t row = 0; row < to.h; ++row)
      for (int64_t column = 0; column < to.w; ++column)
        for (int l = 0; l < to.width; ++l)
          dx[into + (row * stride * from.w + column * stride) * to.width + l] +=
              start[(row * to.w + column) * to.width + l];
  });
}

namespace {

// Runs body(index of the result in a plane of `to`, that of the input in one of `from`, the input's share) for the
// windows of a plane, with all inputs of a window in order.
template <typename Body>
void each_averaged(const Blocked& from, const Blocked& to, Body body) {
  for (int64_t row = 0; row < to.h; ++row)
    for (int64_t column = 0; column < to.w; ++column) {
      const int64_t rows = std::min<int64_t>(2, from.h - 2 * row), columns = std::min<int64_t>(2, from.w - 2 * column);
      const float share = 1.0f / static_cast<float>(rows * columns);
      for (int64_t k = 0; k < rows * columns; ++k) {
        const int64_t r = 2 * row + k / columns, c = 2 * column + k % columns;
        body((row * to.w + column) * to.width, (r * from.w + c) * from.width, share);
      }
    }
}

}  // namespace

void average(const float* x, const Blocked& from, float* y, const Blocked& to) {
  std::fill(y, y + to.size(), 0.0f);
  each_plane(from, to, [&](int64_t start, int64_t into, int64_t, int64_t) {
    each_averaged(from, to, [&](int64_t result, int64_t input, float share) {
      for (int l = 0; l < to.width; ++l) y[into + result + l] += share * x[start + input + l];
    });
  });
}

void add_average_gradient(const float* dy, const Blocked& to, float* dx, const Blocked& from) {
  each_plane(from, to, [&](int64_t into, int64_t start, int64_t, int64_t) {
    each_averaged(from, to, [&](int64_t result, int64_t input, float share) {
      for (int l = 0; l < to.width; ++l) dx[into + input + l] += share * dy[start + result + l];
    });
  });
}
