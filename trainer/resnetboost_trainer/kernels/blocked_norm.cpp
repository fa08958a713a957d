#include <algorithm>
#include <cmath>
#include <vector>

#include "blocked.h"
#include "kernels.h"
#include "pool.h"
#include "vectors.h"

namespace {

constexpr int64_t numbers_in_cache = 1 << 15;  // of one tensor in a piece of work: 128 KiB

// Images of one block of channels that are worked on together: their sums are added in float32.
struct Piece {
  int64_t block, first, count;
};

// One number for each lane: those of a block's channels, repeated.
INLINE void spread(Vector& v, const float* by_channel, const Piece& piece, int width) {
  float values[lanes];
  for (int l = 0; l < lanes; ++l) values[l] = by_channel[piece.block * width + l % width];
  load(v, values);
}

// Sums of a block's channels from the lanes.
INLINE void gather(const Vector& v, int width, double* sums) {
  float values[lanes];
  store(v, values);
  for (int l = 0; l < width; ++l) sums[l] = values[l];
  for (int l = width; l < lanes; ++l) sums[l - width] += values[l];
}

int64_t images_in_piece(const Blocked& at) { return std::clamp<int64_t>(numbers_in_cache / at.plane(), 1, at.n); }

int64_t pieces_of(const Blocked& at) {
  const int64_t each = images_in_piece(at);
  return at.blocks() * ((at.n + each - 1) / each);
}

// Runs body(index, piece) for all pieces; what it computes for a piece does not depend on the others.
template <typename Body>
void each_piece(const Blocked& at, Body body) {
  const int64_t each = images_in_piece(at), groups = (at.n + each - 1) / each, pieces = at.blocks() * groups;
  // Small tensors are done before another thread wakes up.
  const int64_t worth = std::max<int64_t>(1, at.size() / 8192);
  const int tasks = static_cast<int>(std::min<int64_t>({pieces, 4 * pool().get_num_threads(), worth}));
  pool().parallel_for(tasks, [&](int task, int count) {
    for (int64_t k = pieces * task / count; k < pieces * (task + 1) / count; ++k) {
      const int64_t first = k % groups * each;
      body(k, Piece{k / groups, first, std::min(each, at.n - first)});
    }
  });
}

int64_t place(const Piece& piece, const Blocked& at, int64_t image) {
  return ((piece.first + image) * at.blocks() + piece.block) * at.plane();
}

// Sums of a piece's channels.
VECTORIZED void sum(const float* x, const Blocked& at, const Piece& piece, double* sums) {
  Vector total[4] = {}, v;
  for (int64_t n = 0; n < piece.count; ++n) {
    const float* const from = x + place(piece, at, n);
    int64_t i = 0;
    for (; i + 4 * lanes <= at.plane(); i += 4 * lanes)
      for (int u = 0; u < 4; ++u) load(v, from + i + u * lanes), total[u] += v;
    for (; i + lanes <= at.plane(); i += lanes) load(v, from + i), total[0] += v;
    if (i < at.plane()) load_part(v, from + i, at.plane() - i), total[1] += v;
  }
  gather((total[0] + total[1]) + (total[2] + total[3]), at.width, sums);
}

// Sums of the squares of a piece's differences from `mean`.
VECTORIZED void sum_squares(const float* x, const Blocked& at, const Piece& piece, const float* mean, double* sums) {
  Vector total[4] = {}, v, middle;
  float values[lanes];
  for (int l = 0; l < lanes; ++l) values[l] = mean[l % at.width];
  load(middle, values);
  for (int64_t n = 0; n < piece.count; ++n) {
    const float* const from = x + place(piece, at, n);
    int64_t i = 0;
    for (; i + 4 * lanes <= at.plane(); i += 4 * lanes)
      for (int u = 0; u < 4; ++u) load(v, from + i + u * lanes), v -= middle, total[u] += v * v;
    for (; i + lanes <= at.plane(); i += lanes) load(v, from + i), v -= middle, total[0] += v * v;
    if (const int64_t rest = at.plane() - i; rest > 0) {
      load_part(v, from + i, rest);
      v -= middle;
      for (int64_t l = rest; l < lanes; ++l) v[l] = 0;
      total[1] += v * v;
    }
  }
  gather((total[0] + total[1]) + (total[2] + total[3]), at.width, sums);
}

struct Normalization {
  Vector mean, scale, shift;
  INLINE void apply(const Normalization& by, Vector& v) { v = by.scale * (v - by.mean) + by.shift; }
};

INLINE void spread(Normalization& to, const Affine& from, const Piece& piece, int width) {
  spread(to.mean, from.mean, piece, width);
  spread(to.scale, from.scale, piece, width);
  spread(to.shift, from.shift, piece, width);
}

VECTORIZED void normalize_piece(const float* x, const Affine& affine, const Shortcut& shortcut, float* y,
                                const Blocked& at, const Piece& piece, bool rectifies, const float* gates) {
  Normalization own, other{};
  Vector gate{};
  spread(own, affine, piece, at.width);
  const bool plain = shortcut.affine == nullptr;
  if (!plain) spread(other, *shortcut.affine, piece, at.width);
  const Vector least = Vector{} + (rectifies ? 0.0f : -INFINITY);
  for (int64_t n = 0; n < piece.count; ++n) {
    const int64_t from = place(piece, at, n), until = from + at.plane();
    if (gates != nullptr) spread(gate, gates + (piece.first + n) * at.c, piece, at.width);
    for (int64_t i = from; i < until; i += lanes) {
      const int64_t count = std::min<int64_t>(lanes, until - i);
      Vector v, more;
      if (count == lanes) load(v, x + i);
      else load_part(v, x + i, count);
      Normalization::apply(own, v);
      if (gates != nullptr) v *= gate;
      if (shortcut.images != nullptr) {
        if (count == lanes) load(more, shortcut.images + i);
        else load_part(more, shortcut.images + i, count);
        if (!plain) Normalization::apply(other, more);
        v += more;
      }
      v = v < least ? least : v;
      if (count == lanes) store(v, y + i);
      else store_part(v, y + i, count);
    }
  }
}

VECTORIZED void gradient_sums_of_piece(float* dy, const float* more, const float* y, const float* x, const float* mean,
                                       const Blocked& at, const Piece& piece, double* plain, double* product) {
  Vector middle, sums[2] = {}, products[2] = {};
  const Vector zero{};
  spread(middle, mean, piece, at.width);
  for (int64_t n = 0; n < piece.count; ++n) {
    const int64_t from = place(piece, at, n), until = from + at.plane();
    for (int64_t i = from, turn = 0; i < until; i += lanes, turn ^= 1) {
      const int64_t count = std::min<int64_t>(lanes, until - i);
      Vector dz, v;
      if (count == lanes) load(dz, dy + i);
      else load_part(dz, dy + i, count);
      if (more != nullptr) {
        if (count == lanes) load(v, more + i);
        else load_part(v, more + i, count);
        dz += v;
      }
      if (y != nullptr) {
        if (count == lanes) load(v, y + i);
        else load_part(v, y + i, count);
        dz = v > zero ? dz : zero;
      }
      if (more != nullptr || y != nullptr) {
        if (count == lanes) store(dz, dy + i);
        else store_part(dz, dy + i, count);
      }
      if (count == lanes) load(v, x + i);
      else load_part(v, x + i, count);
      sums[turn] += dz;
      products[turn] += dz * (v - middle);  // dz is 0 beyond a part's end
    }
  }
  gather(sums[0] + sums[1], at.width, plain);
  gather(products[0] + products[1], at.width, product);
}

VECTORIZED void input_gradient_of_piece(const float* dz, const float* x, const float* mean, const float* scale,
                                        const float* offset, const float* slope, float* dx, const Blocked& at,
                                        const Piece& piece, const Gates& gated) {
  Vector middle, factor, away, along, gate{}, extra{};
  spread(middle, mean, piece, at.width);
  spread(factor, scale, piece, at.width);
  spread(away, offset, piece, at.width);
  spread(along, slope, piece, at.width);
  for (int64_t n = 0; n < piece.count; ++n) {
    const int64_t from = place(piece, at, n), until = from + at.plane();
    if (gated.gates != nullptr) {
      spread(gate, gated.gates + (piece.first + n) * at.c, piece, at.width);
      spread(extra, gated.more + (piece.first + n) * at.c, piece, at.width);
    }
    for (int64_t i = from; i < until; i += lanes) {
      const int64_t count = std::min<int64_t>(lanes, until - i);
      Vector g, v;
      if (count == lanes) load(g, dz + i), load(v, x + i);
      else load_part(g, dz + i, count), load_part(v, x + i, count);
      if (gated.gates != nullptr) g = g * gate + extra;
      g = factor * (g - away - along * (v - middle));
      if (count == lanes) store(g, dx + i);
      else store_part(g, dx + i, count);
    }
  }
}

}  // namespace

void moments(const float* x, const Blocked& at, Moments* found) {
  const int64_t pieces = pieces_of(at), groups = pieces / at.blocks(), each = images_in_piece(at);
  std::vector<double> means(pieces * at.width), squares(pieces * at.width);
  each_piece(at, [&](int64_t k, const Piece& piece) {
    double* const mean = &means[k * at.width];
    float rounded[lanes];
    sum(x, at, piece, mean);
    for (int l = 0; l < at.width; ++l) rounded[l] = mean[l] /= static_cast<double>(piece.count * at.h * at.w);
    sum_squares(x, at, piece, rounded, &squares[k * at.width]);
    // The squares are of differences from the rounded mean.
    for (int l = 0; l < at.width; ++l) {
      const double away = mean[l] - rounded[l];
      squares[k * at.width + l] -= away * away * static_cast<double>(piece.count * at.h * at.w);
    }
  });
  const double images = static_cast<double>(at.n);
  for (int64_t c = 0; c < at.c; ++c) {  // Chan, Golub & LeVeque 1983: moments of parts to moments of the whole
    const int64_t first = c / at.width * groups * at.width + c % at.width;
    double mean = 0, total = 0;
    for (int64_t g = 0; g < groups; ++g)
      mean += means[first + g * at.width] * static_cast<double>(std::min(each, at.n - g * each)) / images;
    for (int64_t g = 0; g < groups; ++g) {
      const double away = means[first + g * at.width] - mean;
      const auto pixels = static_cast<double>(std::min(each, at.n - g * each) * at.h * at.w);
      total += squares[first + g * at.width] + away * away * pixels;
    }
    found[c] = {mean, std::max(total, 0.0)};
  }
}

void normalize(const float* x, const Affine& affine, const Shortcut& shortcut, float* y, const Blocked& at,
               bool rectifies, const float* gates) {
  each_piece(at, [&](int64_t, const Piece& piece) {
    normalize_piece(x, affine, shortcut, y, at, piece, rectifies, gates);
  });
}

void gradient_sums(float* dy, const float* more, const float* y, const float* x, const float* mean, const Blocked& at,
                   GradientSums* found) {
  const int64_t pieces = pieces_of(at), groups = pieces / at.blocks();
  std::vector<double> plain(pieces * at.width), product(pieces * at.width);
  each_piece(at, [&](int64_t k, const Piece& piece) {
    gradient_sums_of_piece(dy, more, y, x, mean, at, piece, &plain[k * at.width], &product[k * at.width]);
  });
  for (int64_t c = 0; c < at.c; ++c) {
    found[c] = {0, 0};
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t from = (c / at.width * groups + g) * at.width + c % at.width;
      found[c].plain += plain[from];
      found[c].product += product[from];
    }
  }
}

void input_gradient(const float* dz, const float* x, const float* mean, const float* scale, const float* offset,
                    const float* slope, float* dx, const Blocked& at, const Gates& gated) {
  each_piece(at, [&](int64_t, const Piece& piece) {
    input_gradient_of_piece(dz, x, mean, scale, offset, slope, dx, at, piece, gated);
  });
}

void gradient_sums_of_images(float* dy, const float* more, const float* y, const float* x, const float* mean,
                             const Blocked& at, GradientSums* found) {
  each_piece(at, [&](int64_t, const Piece& piece) {
    double plain[lanes], product[lanes];
    for (int64_t n = piece.first; n < piece.first + piece.count; ++n) {
      gradient_sums_of_piece(dy, more, y, x, mean, at, {piece.block, n, 1}, plain, product);
      for (int l = 0; l < at.width; ++l) found[n * at.c + piece.block * at.width + l] = {plain[l], product[l]};
    }
  });
}

void rectify_gradient(float* dy, const float* more, const float* y, const Blocked& at) {
  each_piece(at, [&](int64_t, const Piece& piece) {
    for (int64_t n = 0; n < piece.count; ++n) {
      const int64_t start = place(piece, at, n);
      for (int64_t i = start; i < start + at.plane(); ++i) {
        const float whole = more == nullptr ? dy[i] : dy[i] + more[i];
        dy[i] = y[i] > 0 ? whole : 0.0f;
      }
    }
  });
}
