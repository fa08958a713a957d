// Cuts a box out of an image of bytes, resizes it with a triangle filter, mirrors it and normalises it, in one call.
// The bytes before normalising are those of Pillow 13's BILINEAR: weights of 22 bits, and both passes round to bytes.
// 16 rows are resized at a time, so that what is between the passes stays in a core's cache.
#include <array>
#include <cmath>
#include <vector>

#include "kernels.h"
#include "operators.h"
#include "vectors.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace {

constexpr int fraction = 22;
constexpr int64_t colours = 3;
// Half the lanes: g++ 12 converts bytes to wider vectors one by one.
using Integers = int32_t __attribute__((vector_size(lanes / 2 * sizeof(int32_t))));

int64_t padded(int64_t count) { return (count + lanes - 1) / lanes * lanes; }

// What one pixel of a resized axis is made of: `count` pixels from `first` on, times `weights`.
struct Pixel {
  int64_t first, count;
  const int32_t* weights;
};

// A part of an axis of pixels that is resized.
struct Axis {
  std::vector<Pixel> pixels;
  std::vector<int32_t> weights;
  int64_t most;  // pixels that make up one

  // From `begin` to `end` of `size` pixels, to `target`; with Pillow's order of operations.
  Axis(int size, float begin, float end, int64_t target, bool mirrored) : pixels(target) {
    require(0 <= begin && begin < end && end <= size, "a box that is not in its piece");
    const double scale = static_cast<double>(end - begin) / target, support = std::max(scale, 1.0);
    most = 2 * static_cast<int64_t>(std::ceil(support)) + 1;
    weights.resize(target * most);
    std::vector<double> exact(most);
    for (int64_t k = 0; k < target; ++k) {
      const double center = begin + (k + 0.5) * scale;
      const int first = std::max(0, static_cast<int>(center - support + 0.5));
      const int count = std::min(size, static_cast<int>(center + support + 0.5)) - first;
      double sum = 0;
      for (int i = 0; i < count; ++i)
        sum += exact[i] = std::max(0.0, 1 - std::abs((i + first - center + 0.5) * (1.0 / support)));
      int32_t* const own = weights.data() + k * most;
      for (int i = 0; i < count; ++i) own[i] = static_cast<int32_t>(0.5 + exact[i] / sum * (1 << fraction));
      pixels[mirrored ? target - 1 - k : k] = {first, count, own};
    }
  }
};

// Writes 16 bytes of each of 16 rows as columns: byte k of row l to to[k * step + l].
INLINE void transpose(const uint8_t* const* rows, int64_t offset, uint8_t* to, int64_t step) {
#ifdef __SSE2__
  __m128i a[lanes], b[lanes];
  const auto interleave = [](const __m128i* x, __m128i* y) __attribute__((always_inline)) {
    for (int k = 0; k < lanes / 2; ++k) {
      y[2 * k] = _mm_unpacklo_epi8(x[k], x[k + lanes / 2]);
      y[2 * k + 1] = _mm_unpackhi_epi8(x[k], x[k + lanes / 2]);
    }
  };
  for (int k = 0; k < lanes; ++k) a[k] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[k] + offset));
  interleave(a, b), interleave(b, a), interleave(a, b), interleave(b, a);
  for (int k = 0; k < lanes; ++k) _mm_storeu_si128(reinterpret_cast<__m128i*>(to + k * step), a[k]);
#else
  for (int k = 0; k < lanes; ++k)
    for (int l = 0; l < lanes; ++l) to[k * step + l] = rows[l][offset + k];
#endif
}

// 16 sums of products, which begin with a half to be rounded.
struct Sums {
  Integers low = Integers{} + (1 << (fraction - 1)), high = low;
};

INLINE void widen(const uint8_t* from, Integers& to) {
  for (int l = 0; l < lanes / 2; ++l) to[l] = from[l];
}

INLINE void add_products(Sums& sums, const uint8_t* from, int32_t weight) {
  Integers low, high;
  widen(from, low), widen(from + lanes / 2, high);
  sums.low += low * weight, sums.high += high * weight;
}

// Weights are not negative, and a sum exceeds 255 by rounding only.
INLINE void store_bytes(const Sums& sums, uint8_t* to) {
  const Integers low = sums.low >> fraction, high = sums.high >> fraction;
#ifdef __SSE2__
  __m128i parts[4];
  std::memcpy(parts, &low, sizeof low), std::memcpy(parts + 2, &high, sizeof high);
  const __m128i first = _mm_packs_epi32(parts[0], parts[1]), second = _mm_packs_epi32(parts[2], parts[3]);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(first, second));
#else
  for (int l = 0; l < lanes / 2; ++l) to[l] = std::min(low[l], 255), to[lanes / 2 + l] = std::min(high[l], 255);
#endif
}

// Resizes 16 rows of `width` pixels; each colour of the result is 16 rows of padded bytes. `tile` and `strip` are work
// space for 48 bytes of each pixel, before and after.
VECTORIZED void resize_columns(const uint8_t* const* rows, int64_t width, const Axis& axis, uint8_t* tile,
                               uint8_t* strip, uint8_t* const* results) {
  const int64_t length = width * colours, whole = length / lanes * lanes;
  for (int64_t k = 0; k < whole; k += lanes) transpose(rows, k, tile + k * lanes, lanes);
  for (int64_t k = whole; k < length; ++k)
    for (int l = 0; l < lanes; ++l) tile[k * lanes + l] = rows[l][k];
  const int64_t target = static_cast<int64_t>(axis.pixels.size()), step = padded(target);
  for (int64_t x = 0; x < target; ++x) {
    const Pixel pixel = axis.pixels[x];
    const uint8_t* from = tile + pixel.first * colours * lanes;
    Sums sums[colours];
    for (int64_t k = 0; k < pixel.count; ++k)
      for (int64_t c = 0; c < colours; ++c, from += lanes) add_products(sums[c], from, pixel.weights[k]);
    for (int64_t c = 0; c < colours; ++c) store_bytes(sums[c], strip + (c * step + x) * lanes);
  }
  for (int64_t c = 0; c < colours; ++c)
    for (int64_t x = 0; x < step; x += lanes) {
      const uint8_t* from[lanes];
      for (int l = 0; l < lanes; ++l) from[l] = strip + (c * step + x + l) * lanes;
      transpose(from, 0, results[c] + x, step);
    }
}

// Makes `count` bytes, padded, of the rows of a pixel's taps.
VECTORIZED void resize_row(const uint8_t* const* rows, const Pixel& pixel, uint8_t* result, int64_t count) {
  int64_t x = 0;
  for (; x + lanes <= count; x += lanes) {
    Sums sums;
    for (int64_t k = 0; k < pixel.count; ++k) add_products(sums, rows[k] + x, pixel.weights[k]);
    store_bytes(sums, result + x);
  }
  if (x == count) return;
  Sums sums;
  for (int64_t k = 0; k < pixel.count; ++k) {
    uint8_t part[lanes] = {};
    std::memcpy(part, rows[k] + x, count - x);
    add_products(sums, part, pixel.weights[k]);
  }
  store_bytes(sums, result + x);
}

VECTORIZED void normalise(const uint8_t* bytes, float mean, float deviation, float* result, int64_t count) {
  for (int64_t x = 0; x < count; ++x) result[x] = (static_cast<float>(bytes[x]) - mean) / deviation;
}

// One call: an image's piece (down, across) and its resized axes.
struct Image {
  const uint8_t* pixels;
  int64_t step;  // bytes from row to row
  int64_t down, across;
  Axis rows, columns;
  const float *means, *deviations;
  float* result;

  int64_t height() const { return static_cast<int64_t>(rows.pixels.size()); }
  int64_t width() const { return static_cast<int64_t>(columns.pixels.size()); }
  const uint8_t* row(int64_t y) const { return pixels + std::min(y, down - 1) * step; }
  void write(const uint8_t* bytes, int64_t colour, int64_t y) const {
    normalise(bytes, means[colour], deviations[colour], result + (colour * height() + y) * width(), width());
  }
};

// Columns, then rows. Rows of resized columns are in a ring, in blocks of 16.
void columns_first(const Image& image) {
  const int64_t step = padded(image.width()), ring = padded(image.rows.most + lanes);
  std::vector<uint8_t> tile(image.across * colours * lanes), strip(step * colours * lanes);
  std::vector<uint8_t> kept(colours * ring * step), made(step);
  std::vector<const uint8_t*> taps(image.rows.most);
  const auto place = [&](int64_t c, int64_t y) { return kept.data() + (c * ring + y % ring) * step; };
  int64_t next = image.rows.pixels[0].first / lanes * lanes;
  for (int64_t y = 0; y < image.height(); ++y) {
    const Pixel& pixel = image.rows.pixels[y];
    for (; next < pixel.first + pixel.count; next += lanes) {
      const uint8_t* rows[lanes];
      for (int l = 0; l < lanes; ++l) rows[l] = image.row(next + l);
      uint8_t* const results[] = {place(0, next), place(1, next), place(2, next)};
      resize_columns(rows, image.across, image.columns, tile.data(), strip.data(), results);
    }
    for (int64_t c = 0; c < colours; ++c) {
      for (int64_t k = 0; k < pixel.count; ++k) taps[k] = place(c, pixel.first + k);
      resize_row(taps.data(), pixel, made.data(), image.width());
      image.write(made.data(), c, y);
    }
  }
}

// Rows, then columns, of 16 rows of the result at a time.
void rows_first(const Image& image) {
  const int64_t step = padded(image.width()), length = padded(image.across * colours);
  std::vector<uint8_t> resized(lanes * length), tile(length * lanes);
  std::vector<uint8_t> strip(step * colours * lanes), made(colours * lanes * step);
  std::vector<const uint8_t*> taps(image.rows.most);
  const uint8_t* rows[lanes];
  uint8_t* results[colours];
  for (int l = 0; l < lanes; ++l) rows[l] = resized.data() + l * length;
  for (int64_t c = 0; c < colours; ++c) results[c] = made.data() + c * lanes * step;
  for (int64_t y = 0; y < image.height(); y += lanes) {
    const int64_t count = std::min<int64_t>(lanes, image.height() - y);
    for (int64_t l = 0; l < count; ++l) {
      const Pixel& pixel = image.rows.pixels[y + l];
      for (int64_t k = 0; k < pixel.count; ++k) taps[k] = image.row(pixel.first + k);
      resize_row(taps.data(), pixel, resized.data() + l * length, image.across * colours);
    }
    resize_columns(rows, image.across, image.columns, tile.data(), strip.data(), results);
    for (int64_t c = 0; c < colours; ++c)
      for (int64_t l = 0; l < count; ++l) image.write(results[c] + l * step, c, y + l);
  }
}

// (pixels uint8 (h, w, 3), piece int32 (5), box float32 (4), means and deviations float32 (3)) -> float32 (3, h', w').
// The piece is [left, top, right, bottom, 1 to mirror]: pixels outside of it do not count. The box is [left, top, right,
// bottom] in the piece.
void fill(const Call& call) {
  require(call.ranks[0] == 3 && call.shapes[0][2] == colours && call.ranks[5] == 3 && call.shapes[5][0] == colours,
          "not an image of three colours");
  require(call.size(1) == 5 && call.size(2) == 4 && call.size(3) == colours && call.size(4) == colours,
          "not one piece, one box and three colours");
  const int* const piece = call.integers(1);
  const auto [left, top, right, bottom] = std::array{piece[0], piece[1], piece[2], piece[3]};
  const int64_t step = call.shapes[0][1] * colours, height = call.shapes[5][1], width = call.shapes[5][2];
  require(0 <= left && left < right && right <= call.shapes[0][1], "a piece outside of the image");
  require(0 <= top && top < bottom && bottom <= call.shapes[0][0], "a piece outside of the image");
  require(height > 0 && width > 0, "a result without pixels");
  const float* const box = call.floats(2);
  const Image image{
      .pixels = call.bytes(0) + top * step + left * colours,
      .step = step,
      .down = bottom - top,
      .across = right - left,
      .rows = Axis(bottom - top, box[1], box[3], height, false),
      .columns = Axis(right - left, box[0], box[2], width, piece[4] != 0),
      .means = call.floats(3),
      .deviations = call.floats(4),
      .result = call.floats(5),
  };
  // The order, and with it the rounding, is that of Pillow 13; earlier versions always begin with the columns.
  if (image.down > height && image.down - height > 2 * (image.across - width))
    rows_first(image);
  else
    columns_first(image);
}

}  // namespace

CONCURRENT_OPERATOR(resize_image, 6, fill)
