// Sums of products of a convolution's patches: the diagonal blocks of M M^T for M = im2col(x) (C kh kw, N H' W'), without
// im2col. An entry for the window's pixels i and j depends on j - i and on which pixels of the image i covers, so
// that 81 pairs of a 3x3 window's pixels need 25 sums over the image, of which 13 differ by symmetry. An image's border
// is a sum of its own: nothing is subtracted, so rounding is that of the plain product.
//
// An axis of `size` pixels is seen through a window of `kernel` pixels, `dilation` apart, that starts at
// p stride - pad for p in 0 .. outputs - 1; pixels outside of the image are 0.
#pragma GCC optimize("O3", "fp-contract=fast")
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "operators.h"
#include "pool.h"

namespace {

constexpr int64_t lanes = 16, tile = 4;
constexpr int64_t most = 1024;  // vectors summed in float32 before they are added to a float64 sum
typedef float Lanes __attribute__((vector_size(4 * lanes), aligned(4), may_alias));

struct Window {
  int64_t kernel, stride, dilation, pad, size, outputs;
};

// The products of the pixels at start, start + stride, ... with those `shift` pixels further.
struct Span {
  int64_t shift, start, count;
};

// The spans of an axis, and for each pair of the window's pixels the range of those that sum up to its products.
struct Plan {
  std::vector<Span> spans;
  std::vector<std::array<int64_t, 2>> ranges;  // (kernel, kernel)
};

// Pixels of the image in a window's pixel i that have one in pixel j too: [first, end), `stride` apart.
std::array<int64_t, 2> common(const Window& window, int64_t i, int64_t j) {
  const int64_t start = i * window.dilation - window.pad, shift = (j - i) * window.dilation;
  const int64_t least = std::max<int64_t>(0, -shift), limit = std::min(window.size, window.size - shift);
  const auto up = [&](int64_t number) { return number > 0 ? (number + window.stride - 1) / window.stride : 0; };
  const int64_t before = up(least - start), end = std::min(window.outputs, up(limit - start));
  return {start + before * window.stride, start + std::max(before, end) * window.stride};
}

Plan plan(const Window& window) {
  using Key = std::pair<int64_t, int64_t>;  // shift, phase
  std::map<Key, std::vector<int64_t>> cuts;
  std::map<Key, int64_t> begins;
  const auto key = [&](int64_t i, int64_t j, int64_t first) { return Key((j - i) * window.dilation, first % window.stride); };
  for (int64_t i = 0; i < window.kernel; ++i)
    for (int64_t j = 0; j < window.kernel; ++j)
      if (const auto [first, end] = common(window, i, j); first < end)
        for (const int64_t cut : {first, end}) cuts[key(i, j, first)].push_back(cut);
  Plan made;
  for (auto& [at, all] : cuts) {
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    begins[at] = static_cast<int64_t>(made.spans.size());
    for (size_t k = 0; k + 1 < all.size(); ++k)
      made.spans.push_back({at.first, all[k], (all[k + 1] - all[k]) / window.stride});
  }
  for (int64_t i = 0; i < window.kernel; ++i)
    for (int64_t j = 0; j < window.kernel; ++j) {
      const auto [first, end] = common(window, i, j);
      if (first == end) {
        made.ranges.push_back({0, 0});
        continue;
      }
      const auto& all = cuts[key(i, j, first)];
      const auto span = [&](int64_t cut) {
        return begins[key(i, j, first)] + (std::lower_bound(all.begin(), all.end(), cut) - all.begin());
      };
      made.ranges.push_back({span(first), span(end)});
    }
  return made;
}

// A part of the sums: `rows` runs of `count` vectors, which are `of_row` numbers apart; runs of stride 1 are one run.
struct Region {
  int64_t rows, of_row, runs, of_run, count;
};

// Adds the products of 4 channels from `a` and 4 from `b`, which are `of_channel` numbers apart, to `sums`.
__attribute__((target_clones("avx512f", "fma", "default"))) void add_products(const float* a, const float* b,
                                                                              int64_t of_channel, const Region& region,
                                                                              double* sums) {
  Lanes sum[tile][tile] = {};
  for (int64_t row = 0; row < region.rows; ++row)
    for (int64_t run = 0; run < region.runs; ++run) {
      const int64_t place = row * region.of_row + run * region.of_run;
      for (int64_t k = 0; k < region.count; ++k) {
        Lanes x[tile], y[tile];
        for (int64_t c = 0; c < tile; ++c) {
          x[c] = *reinterpret_cast<const Lanes*>(a + c * of_channel + place + k * lanes);
          y[c] = *reinterpret_cast<const Lanes*>(b + c * of_channel + place + k * lanes);
        }
        for (int64_t c = 0; c < tile; ++c)
          for (int64_t d = 0; d < tile; ++d) sum[c][d] += x[c] * y[d];
      }
    }
  for (int64_t c = 0; c < tile; ++c)
    for (int64_t d = 0; d < tile; ++d) {
      float part[lanes];
      std::memcpy(part, &sum[c][d], sizeof part);
      for (int64_t half = lanes / 2; half > 0; half /= 2)
        for (int64_t l = 0; l < half; ++l) part[l] += part[l + half];
      sums[c * tile + d] += part[0];
    }
}

// One factor: images (n, channels, height, width) -> blocks (groups * count, size, size), times `scale`.
struct Job {
  const float* images;
  int64_t samples, channels;
  Window rows, columns;
  int64_t groups, count, size;
  float scale;
  float* blocks;
  Plan by_row, by_column;

  int64_t pixels() const { return rows.size * columns.size; }
  int64_t unit() const { return rows.kernel * columns.kernel; }
};

// Copies channels of all images to (channels, pixels, samples), padded with zeros to whole tiles and vectors.
__attribute__((target_clones("avx512f", "avx2", "default"))) void transpose(const Job& job, int64_t first,
                                                                            int64_t channels, int64_t padded,
                                                                            float* target) {
  const int64_t numbers = channels * job.pixels(), of_image = job.channels * job.pixels();
  const float* const source = job.images + first * job.pixels();
  for (int64_t from = 0; from < numbers; from += lanes)
    for (int64_t n = 0; n < padded; n += lanes) {
      const int64_t across = std::min(lanes, numbers - from), along = std::min(lanes, job.samples - n);
      if (across == lanes && along == lanes) {
        float block[lanes][lanes];
        for (int64_t k = 0; k < lanes; ++k)
          for (int64_t i = 0; i < lanes; ++i) block[k][i] = source[(n + k) * of_image + from + i];
        for (int64_t i = 0; i < lanes; ++i)
          for (int64_t k = 0; k < lanes; ++k) target[(from + i) * padded + n + k] = block[k][i];
      } else {
        for (int64_t i = 0; i < across; ++i)
          for (int64_t k = 0; k < lanes; ++k)
            target[(from + i) * padded + n + k] = k < along ? source[(n + k) * of_image + from + i] : 0.0f;
      }
    }
}

// Sums of products over one pair of spans, for all pairs of channels (channels, channels).
void products(const Job& job, const Span& y, const Span& x, const float* planes, int64_t channels, int64_t padded,
              double* sums) {
  const int64_t of_channel = job.pixels() * padded, width = job.columns.size, step = job.columns.stride;
  const bool whole = step == 1;
  const int64_t vectors = padded / lanes * x.count;
  Region region{0, job.rows.stride * width * padded, whole ? 1 : x.count, step * padded,
                whole ? vectors : padded / lanes};
  const int64_t at_once = std::max<int64_t>(1, most / vectors);
  const int64_t shift = (y.shift * width + x.shift) * padded;
  for (int64_t row = 0; row < y.count; row += at_once) {
    const float* const start = planes + ((y.start + row * job.rows.stride) * width + x.start) * padded;
    region.rows = std::min(at_once, y.count - row);
    for (int64_t c = 0; c < channels; c += tile)
      for (int64_t d = shift == 0 ? c : 0; d < channels; d += tile) {
        double some[tile * tile] = {};
        add_products(start + c * of_channel, start + shift + d * of_channel, of_channel, region, some);
        for (int64_t k = 0; k < tile * tile; ++k) sums[(c + k / tile) * channels + d + k % tile] += some[k];
      }
  }
}

// Adds sums by channel to the entries (c, i), (d, j) of a block, which begins with row `first` of the matrix.
void place(const Job& job, int64_t i, int64_t j, const double* sums, int64_t channel, int64_t channels, int64_t stored,
           int64_t first, double* block) {
  const int64_t unit = job.unit();
  for (int64_t c = 0; c < channels; ++c) {
    const int64_t row = (channel + c) * unit + i - first;
    if (row < 0 || row >= job.size) continue;
    for (int64_t d = i == j ? c : 0; d < channels; ++d) {
      const int64_t column = (channel + d) * unit + j - first;
      if (column < 0 || column >= job.size) continue;
      block[row * job.size + column] += sums[c * stored + d];
    }
  }
}

// Returns whether a shift counts: one of two opposite ones does, since the entries are symmetric.
bool counts(const Span& y, const Span& x) { return y.shift > 0 || (y.shift == 0 && x.shift >= 0); }

void compute(const Job& job, int64_t group, int64_t number) {
  thread_local std::vector<float> planes;
  thread_local std::vector<double> sums, block;
  const int64_t unit = job.unit(), dimension = job.channels / job.groups * unit, size = job.size;
  const int64_t first = number * size, end = std::min(dimension, first + size);
  const int64_t channel = first / unit, channels = (end + unit - 1) / unit - channel;
  const int64_t stored = (channels + tile - 1) / tile * tile, padded = (job.samples + lanes - 1) / lanes * lanes;
  planes.assign(stored * job.pixels() * padded, 0.0f);
  block.assign(size * size, 0.0);
  transpose(job, group * (job.channels / job.groups) + channel, channels, padded, planes.data());
  const auto &by_row = job.by_row, &by_column = job.by_column;
  const int64_t height = job.rows.kernel, width = job.columns.kernel;
  for (size_t y = 0; y < by_row.spans.size(); ++y)
    for (size_t x = 0; x < by_column.spans.size(); ++x) {
      const Span &down = by_row.spans[y], &along = by_column.spans[x];
      if (!counts(down, along) || down.count == 0 || along.count == 0) continue;
      sums.assign(stored * stored, 0.0);
      products(job, down, along, planes.data(), stored, padded, sums.data());
      for (int64_t i = 0; i < height * height; ++i) {
        if (by_row.ranges[i][0] > static_cast<int64_t>(y) || by_row.ranges[i][1] <= static_cast<int64_t>(y)) continue;
        for (int64_t j = 0; j < width * width; ++j) {
          if (by_column.ranges[j][0] > static_cast<int64_t>(x) || by_column.ranges[j][1] <= static_cast<int64_t>(x))
            continue;
          place(job, i / height * width + j / width, i % height * width + j % width, sums.data(), channel, channels,
                stored, first, block.data());
        }
      }
    }
  float* const target = job.blocks + (group * job.count + number) * size * size;
  for (int64_t row = 0; row < size; ++row)
    for (int64_t column = 0; column < size; ++column) {
      // Of an entry and its mirror image, the one that was not added to is 0.
      const double found = row == column ? block[row * size + row] : block[row * size + column] + block[column * size + row];
      target[row * size + column] = static_cast<float>(found) * job.scale;
    }
}

constexpr int numbers = 13;  // of a form

Window window(const int* form, int64_t size) { return {form[0], form[1], form[2], form[3], size, form[4]}; }

Job job(const Call& call, int k, int count) {
  const int *const form = call.integers(0) + numbers * k, images = 2 + k, blocks = 2 + count + k;
  require(call.ranks[images] == 4, "images that are not (n, c, h, w)");
  const int64_t* const shape = call.shapes[images];
  Job made{call.floats(images), shape[0], shape[1], window(form, shape[2]), window(form + 5, shape[3]), form[10],
           form[11], form[12], call.floats(1)[k], call.floats(blocks), {}, {}};
  for (const Window& side : {made.rows, made.columns}) {
    require(side.kernel > 0 && side.stride > 0 && side.dilation > 0 && side.pad >= 0, "no window");
    require(side.outputs > 0 && side.size > 0, "a window without a place");
  }
  require(made.groups > 0 && made.channels % made.groups == 0, "groups of different sizes");
  const int64_t dimension = made.channels / made.groups * made.unit();
  require(made.size > 0 && made.count == (dimension + made.size - 1) / made.size, "blocks that are no axis");
  require(call.size(blocks) == made.groups * made.count * made.size * made.size, "blocks of another size");
  made.by_row = plan(made.rows), made.by_column = plan(made.columns);
  return made;
}

// (forms, scales (k,), k images (n, c, h, w)) -> k times (groups * count, size, size). `forms` is int32 (k, 13): of the
// window's rows kernel, stride, dilation, pad and outputs, the same of its columns, then groups, count and size.
void all_covariances(const Call& call) {
  const int count = (call.count - 2) / 2;
  require(call.count == 2 + 2 * count && count > 0, "images without blocks");
  require(call.size(0) == numbers * count && call.size(1) == count, "not one form for each of the images");
  struct Task {
    const Job* job;
    int64_t group, number;
  };
  std::vector<Job> jobs;
  for (int k = 0; k < count; ++k) jobs.push_back(job(call, k, count));
  std::vector<Task> tasks;
  for (const Job& one : jobs)
    for (int64_t group = 0; group < one.groups; ++group)
      for (int64_t number = 0; number < one.count; ++number) tasks.push_back({&one, group, number});
  pool().parallel_for(static_cast<int>(tasks.size()), [&](int k, int) {
    compute(*tasks[k].job, tasks[k].group, tasks[k].number);
  });
}

// Sum of x^2 weight over x (total,) and weights that repeat after `period` numbers, a multiple of the lanes.
__attribute__((target_clones("avx512f", "fma", "default"))) double weighted(const float* x, int64_t total,
                                                                          const float* weights, int64_t period) {
  double whole = 0;
  for (int64_t from = 0; from < total; from += period)
    for (int64_t begin = 0; begin < std::min(period, total - from); begin += most * lanes) {
      const int64_t end = std::min({begin + most * lanes, period, total - from});
      Lanes sum{};
      int64_t i = begin;
      for (; i + lanes <= end; i += lanes) {
        const Lanes value = *reinterpret_cast<const Lanes*>(x + from + i);
        sum += value * value * *reinterpret_cast<const Lanes*>(weights + i);
      }
      for (; i < end; ++i) whole += static_cast<double>(x[from + i]) * x[from + i] * weights[i];
      for (int64_t l = 0; l < lanes; ++l) whole += sum[l];
    }
  return whole;
}

// (k tensors x, k weights) -> (k,): sums of x^2 weight, with weights (p,) that repeat along x.
void squares(const Call& call) {
  const int count = (call.count - 1) / 2, last = call.count - 1;
  require(call.count == 1 + 2 * count && count > 0 && call.size(last) == count, "not one sum for each tensor");
  std::vector<const float*> given, weights;
  for (int k = 0; k < count; ++k) given.push_back(call.floats(k)), weights.push_back(call.floats(count + k));
  for (int k = 0; k < count; ++k)
    require(call.size(count + k) > 0 && call.size(k) % call.size(count + k) == 0, "weights that do not repeat");
  float* const sums = call.floats(last);
  pool().parallel_for(count, [&](int k, int) {
    const int64_t own = call.size(count + k), times = (most + own - 1) / own * lanes;
    std::vector<float> repeated(own * times);
    for (int64_t from = 0; from < own * times; from += own)
      std::memcpy(repeated.data() + from, weights[k], own * sizeof(float));
    sums[k] = static_cast<float>(weighted(given[k], call.size(k), repeated.data(), own * times));
  });
}

}  // namespace

OPERATOR(covariances, tensors, all_covariances)
OPERATOR(weighted_squares, tensors, squares)
