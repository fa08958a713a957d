// Batch normalization, pooling and shortcuts on images in oneDNN's blocked format: (n, c / block, h, w, block).
//
// Results do not depend on the number of threads: sums are split by shape alone and added in order.
#pragma once

#include <cstdint>
#include <functional>

struct Blocked {
  int64_t n, c, h, w;
  int width;  // channels in a block, 8 or 16

  int64_t size() const { return n * c * h * w; }
  int64_t blocks() const { return c / width; }
  int64_t plane() const { return h * w * width; }  // numbers of a block of one image; they are contiguous
};

// Batch normalization y = scale (x - mean) + shift, with one number for each channel.
struct Affine {
  const float *mean, *scale, *shift;
};

// A shortcut that is added to y: `images` of the same shape, normalized by `affine` if there is one. Null: none.
struct Shortcut {
  const float* images = nullptr;
  const Affine* affine = nullptr;
};

// Means of a channel's numbers, and the sums of the squares of their differences from it.
struct Moments {
  double mean, squares;
};

// Sums of dz and of dz (x - mean).
struct GradientSums {
  double plain, product;
};

// Writes c moments of x.
void moments(const float* x, const Blocked& at, Moments* found);

// y = affine(x) [gates] [+ shortcut], through relu if `rectifies`; NaN stays NaN. y may be x. `gates` are (n, c).
void normalize(const float* x, const Affine& affine, const Shortcut& shortcut, float* y, const Blocked& at,
               bool rectifies, const float* gates = nullptr);

// dz = dy [+ more] wherever y > 0, or everywhere if y is null; written over dy. Writes c sums.
void gradient_sums(float* dy, const float* more, const float* y, const float* x, const float* mean, const Blocked& at,
                   GradientSums* found);

// The same with sums for each channel of each image, (n, c).
void gradient_sums_of_images(float* dy, const float* more, const float* y, const float* x, const float* mean,
                             const Blocked& at, GradientSums* found);

// Of y = affine(x) gates, where the gates' means give x a gradient too: one number for each channel of each image.
struct Gates {
  const float *gates = nullptr, *more = nullptr;
};

// dx = scale (du - offset - slope (x - mean)), where du is dz, or dz gates + more; dx may be dz.
void input_gradient(const float* dz, const float* x, const float* mean, const float* scale, const float* offset,
                    const float* slope, float* dx, const Blocked& at, const Gates& gated = {});

// Maximum of 3x3 windows at stride 2 with one row and column around: (h - 1) / 2 + 1 rows. `chosen` are its places in
// the windows, one for each result; null if they are not needed.
void max_pool(const float* x, const Blocked& at, float* y, uint8_t* chosen);
void max_pool_gradient(const float* dy, const uint8_t* chosen, float* dx, const Blocked& at);
Blocked max_pooled(const Blocked& at);

// Mean over the pixels, blocked images -> (n, c); its gradient.
void mean_of_pixels(const float* x, const Blocked& at, float* y);
void mean_of_pixels_gradient(const float* dy, float* dx, const Blocked& at);

// Copies blocked images to dense ones (n, c, h, w).
void to_plain(const float* x, const Blocked& at, float* y);

// Every second row and column of x, then zeros as additional channels (He et al. 2015, option A); its gradient, added.
void subsample(const float* x, const Blocked& from, float* y, const Blocked& to);
void add_subsample_gradient(const float* dy, const Blocked& to, float* dx, const Blocked& from);

// Means of 2x2 windows at stride 2, at an odd border of what is inside; their gradient, added.
void average(const float* x, const Blocked& from, float* y, const Blocked& to);
void add_average_gradient(const float* dy, const Blocked& to, float* dx, const Blocked& from);

// dy = dy [+ more] wherever y > 0, else 0.
void rectify_gradient(float* dy, const float* more, const float* y, const Blocked& at);
