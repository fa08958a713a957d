// A residual network up to its head, in one call: stem, [max pooling,] residual blocks, mean over the pixels.
//
// Images stay in oneDNN's blocked format from the stem to the mean. `program` is int32 [1 if pooled, the stem's stride
// and padding, then for each block: convolutions of its branch, kind of its shortcut, 1 if it squeezes and excites, and
// the stride and padding of each convolution, the shortcut's last]. `constants` is float32 [epsilon, share of the
// running statistics kept].
//
// Tensors come in units in the program's order: a unit is a convolution with its normalization, or, after those of its
// block, a squeeze and excitation.
#include <chrono>
#include <cmath>
#include <functional>
#include <vector>

#include "blocked.h"
#include "convolution.h"
#include "operators.h"
#include "space.h"
#include "squeeze.h"

namespace {

enum ShortcutKind { identity, convolved, subsampled };

// A convolution and its normalization. Places are offsets of float32 in what a forward pass saves for the backward one.
struct Layer {
  int number, squeezes;  // layers and squeezes before it
  Dims weights;
  int64_t stride, padding;
  Dims images, results;
  Blocked in, out;
  int64_t convolved, mean, inverse, normalized;

  ConvolutionShape shape(Pass pass, bool stem, Epilogue epilogue = {}) const {
    return {pass, images, weights, results, stride, padding, stem ? plain : blocked, blocked, epilogue};
  }
};

struct Squeeze {
  int number, layers;  // squeezes and layers before it
  int64_t inner, means, hidden, gates;
};

struct Block {
  int first, count;  // layers of its branch; a shortcut's convolution is the one after them
  ShortcutKind shortcut;
  int squeeze;  // -1: none
  int64_t input;  // place of its input
};

// Where the tensors of units are in a call: the first one, and how many a layer and a squeeze have.
struct Places {
  int first, of_layer, of_squeeze;
  int at(const Layer& layer) const { return first + of_layer * layer.number + of_squeeze * layer.squeezes; }
  int at(const Squeeze& squeeze) const { return first + of_layer * squeeze.layers + of_squeeze * squeeze.number; }
};

struct Trunk {
  bool pooled = false;
  Blocked pool{};
  int64_t pooled_place = 0, chosen_place = 0;
  std::vector<Layer> layers;
  std::vector<Squeeze> squeezes;
  std::vector<Block> blocks;
  int64_t saved = 0, largest = 0;

  const Layer& last(const Block& block) const { return layers[block.first + block.count - 1]; }
  int tensors(const Places& places) const {
    return places.of_layer * static_cast<int>(layers.size()) + places.of_squeeze * static_cast<int>(squeezes.size());
  }
};

Blocked in_blocks(const Dims& dims) { return {dims[0], dims[1], dims[2], dims[3], block()}; }

// Gives the shape of a unit's weights by the numbers of layers and squeezes before it.
using Weights = std::function<Dims(int layers, int squeezes)>;

// Reads a program for images and weights of these shapes. Throws invalid_argument if they do not fit.
class Reader {
 public:
  Reader(const int* program, int64_t length, const Dims& images, const Weights& weights)
      : program_(program), length_(length), weights_(weights) {
    require(block() > 0, "a CPU without AVX2");
    trunk.pooled = next() != 0;
    int64_t place = layer(images, true);
    Dims from = trunk.layers[0].results;
    if (trunk.pooled) {
      trunk.pool = max_pooled(in_blocks(from));
      from = {from[0], from[1], trunk.pool.h, trunk.pool.w};
      place = trunk.pooled_place = reserve(trunk.pool.size());
      trunk.chosen_place = reserve((trunk.pool.size() + 3) / 4);
    }
    while (at_ < length_) place = read_block(from, place);
  }

  Trunk trunk;

 private:
  // Reads a block whose input is of shape `from`, which becomes that of its output; returns the output's place.
  int64_t read_block(Dims& from, int64_t input) {
    const int first = static_cast<int>(trunk.layers.size()), count = next();
    const auto shortcut = static_cast<ShortcutKind>(next());
    const bool squeezes = next() != 0;
    require(count > 0 && shortcut >= identity && shortcut <= subsampled, "an unknown block");
    Dims to = from;
    int64_t place = 0;
    for (int k = 0; k < count; ++k) place = layer(to, true), to = trunk.layers.back().results;
    if (shortcut == convolved) {
      layer(from, false);
      require(trunk.layers.back().results == to, "a shortcut of another shape");
    }
    require(shortcut != identity || to == from, "an identity that changes its shape");
    require(shortcut != subsampled || (to[1] >= from[1] && to[2] == (from[2] - 1) / 2 + 1), "a subsampling");
    trunk.blocks.push_back({first, count, shortcut, squeezes ? squeeze(to) : -1, input});
    from = to;
    return place;
  }

  int next() {
    require(at_ < length_, "a program that ends too early");
    return program_[at_++];
  }

  int64_t reserve(int64_t numbers) {
    const int64_t place = trunk.saved;
    trunk.saved += (numbers + 15) / 16 * 16;
    return place;
  }

  Dims weights() { return weights_(static_cast<int>(trunk.layers.size()), static_cast<int>(trunk.squeezes.size())); }

  // Adds the next layer, whose input is of that shape; returns the place of its normalized results.
  int64_t layer(const Dims& images, bool normalized) {
    const Dims shape = weights();
    const int64_t stride = next(), padding = next();
    const Dims results = results_of(images, shape, stride, padding);
    require(results[1] % block() == 0, "a number of channels that is not a multiple of the block");
    const auto layers = static_cast<int>(trunk.layers.size()), squeezes = static_cast<int>(trunk.squeezes.size());
    Layer made{layers, squeezes, shape, stride, padding, images, results, in_blocks(images), in_blocks(results),
               0, 0, 0, 0};
    made.convolved = reserve(made.out.size());
    made.mean = reserve(made.out.c);
    made.inverse = reserve(made.out.c);
    made.normalized = normalized ? reserve(made.out.size()) : -1;
    trunk.largest = std::max(trunk.largest, made.out.size());
    trunk.layers.push_back(made);
    return made.normalized;
  }

  // Adds the next squeeze, of images of that shape; returns its number.
  int squeeze(const Dims& images) {
    const Dims shape = weights();
    require(shape[1] == images[1] && shape[2] == 1 && shape[3] == 1, "weights that do not squeeze the channels");
    Squeeze made{static_cast<int>(trunk.squeezes.size()), static_cast<int>(trunk.layers.size()), shape[0], 0, 0, 0};
    made.means = reserve(images[0] * images[1]);
    made.hidden = reserve(images[0] * shape[0]);
    made.gates = reserve(images[0] * images[1]);
    trunk.squeezes.push_back(made);
    return made.number;
  }

  const int* program_;
  int64_t length_, at_ = 0;
  const Weights& weights_;
};

Dims dims_of(const int64_t* sizes) { return {sizes[0], sizes[1], sizes[2], sizes[3]}; }

constexpr Places forward_places{3, 5, 4}, backward_places{4, 2, 2};

// The trunk of a call: tensor 0 has the images, 1 the program, and a unit's weights are the first of its tensors.
Trunk trunk_of(const Call& call, const Places& places) {
  const auto dims = [&](int k) {
    require(k < call.count && call.ranks[k] == 4, "a tensor without 4 axes");
    return dims_of(call.shapes[k]);
  };
  const Weights weights = [&](int layers, int squeezes) {
    return dims(places.first + places.of_layer * layers + places.of_squeeze * squeezes);
  };
  const Trunk trunk = Reader(call.integers(1), call.size(1), dims(0), weights).trunk;
  require(call.count >= places.first + trunk.tensors(places), "too few tensors");
  for (const Layer& layer : trunk.layers)
    for (int k = 1; k < places.of_layer; ++k)
      require(call.size(places.at(layer) + k) == layer.out.c, "not one number for each channel");
  for (const Squeeze& squeeze : trunk.squeezes) {
    const int k = places.at(squeeze), last = places.of_squeeze - 1;
    require(call.size(k + (last + 1) / 2) == call.size(k), "weights of another shape");
    if (last == 1) continue;
    require(call.size(k + 1) == squeeze.inner && call.size(k + last) * squeeze.inner == call.size(k), "biases");
  }
  return trunk;
}

// Seconds of each layer, for profiles: empty while none is made.
enum Work { convolving, normalizing, normalizing_gradient, images_gradient, weights_gradient, works };

std::vector<double>& seconds() {
  static auto* const one = new std::vector<double>;
  return *one;
}

// Adds the time until its end to that of a layer's work.
class Timed {
 public:
  Timed(int layer, Work work) : index_(static_cast<size_t>(layer) * works + work), begun_(Clock::now()) {}
  ~Timed() {
    if (index_ < seconds().size()) seconds()[index_] += std::chrono::duration<double>(Clock::now() - begun_).count();
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  size_t index_;
  Clock::time_point begun_;
};

Space& space() {
  static Space* const one = new Space;
  return *one;
}

// Buffers of the same size, taken and given back.
class Buffers {
 public:
  Buffers(int count, int64_t numbers) {
    const int64_t each = (numbers + 1023) / 1024 * 1024;
    auto* const start = reinterpret_cast<float*>(space().of(count * each * sizeof(float)));
    for (int k = 0; k < count; ++k) free_.push_back(start + k * each);
  }
  float* take() {
    require(!free_.empty(), "too few buffers");
    float* const one = free_.back();
    free_.pop_back();
    return one;
  }
  void give(float* one) {
    if (one != nullptr) free_.push_back(one);
  }

 private:
  std::vector<float*> free_;
};

struct Parameters {
  const float *weights, *gamma, *beta;
  float *mean, *variance;  // running
};

Parameters parameters_of(const Call& call, const Layer& layer) {
  const int k = forward_places.at(layer);
  return {call.floats(k), call.floats(k + 1), call.floats(k + 2), call.floats(k + 3), call.floats(k + 4)};
}

Excitation excitation_of(const Call& call, const Squeeze& squeeze, const Layer& layer) {
  const int k = forward_places.at(squeeze);
  return {layer.out.n, layer.out.c, squeeze.inner, call.floats(k), call.floats(k + 1), call.floats(k + 2),
          call.floats(k + 3)};
}

// Means over the pixels of affine(x), (n, c).
void normalized_means(const float* x, const Affine& affine, const Blocked& at, float* means) {
  mean_of_pixels(x, at, means);
  for (int64_t k = 0; k < at.n * at.c; ++k) {
    const int64_t c = k % at.c;
    means[k] = affine.scale[c] * (means[k] - affine.mean[c]) + affine.shift[c];
  }
}

class Forward {
 public:
  explicit Forward(const Call& call)
      : call_(call), trunk_(trunk_of(call, forward_places)), saved_(call.floats(call.count - 1)) {
    require(call.count == forward_places.first + trunk_.tensors(forward_places) + 2, "wrong number of tensors");
    require(call.size(2) == 2, "not two constants");
    require(call.size(call.count - 1) == trunk_.saved, "a wrong size of what is saved");
  }

  void run() {
    const Layer& stem = trunk_.layers[0];
    convolve(0, call_.floats(0));
    normalized(0, {});
    if (trunk_.pooled)
      max_pool(saved_ + stem.normalized, stem.out, saved_ + trunk_.pooled_place, chosen());
    for (const Block& block : trunk_.blocks) run(block);
    const Layer& last = trunk_.blocks.empty() ? stem : trunk_.last(trunk_.blocks.back());
    mean_of_pixels(saved_ + last.normalized, last.out, call_.floats(call_.count - 2));
  }

 private:
  uint8_t* chosen() { return reinterpret_cast<uint8_t*>(saved_ + trunk_.chosen_place); }

  void run(const Block& block) {
    const float* const input = saved_ + block.input;
    const float* x = input;
    const int last = block.first + block.count - 1;
    for (int k = block.first; k < last; ++k) {
      convolve(k, x);
      normalized(k, {});
      x = saved_ + trunk_.layers[k].normalized;
    }
    convolve(last, x);
    const Layer& layer = trunk_.layers[last];
    if (block.shortcut == identity) {
      normalized(last, {input, nullptr}, block.squeeze);
    } else if (block.shortcut == subsampled) {
      Buffers buffers(1, layer.out.size());
      float* const sample = buffers.take();
      subsample(input, trunk_.layers[block.first].in, sample, layer.out);
      normalized(last, {sample, nullptr}, block.squeeze);
    } else {
      convolve(last + 1, input);
      std::vector<float> scale;
      const Affine affine = timed_statistics(last + 1, scale);
      normalized(last, {saved_ + trunk_.layers[last + 1].convolved, &affine}, block.squeeze);
    }
  }

  void convolve(int k, const float* x) {
    const Timed timed(k, convolving);
    const Layer& layer = trunk_.layers[k];
    convolution_of(layer.shape(forward, k == 0)).run({saved_ + layer.convolved, x, parameters_of(call_, layer).weights});
  }

  Affine timed_statistics(int k, std::vector<float>& scale) {
    const Timed timed(k, normalizing);
    return statistics(k, scale);
  }

  // Computes the batch's statistics of a layer, and moves its running ones, with the sample variance (divisor n - 1).
  Affine statistics(int k, std::vector<float>& scale) {
    const Layer& layer = trunk_.layers[k];
    const Parameters own = parameters_of(call_, layer);
    const float epsilon = call_.floats(2)[0], keep = call_.floats(2)[1];
    float *const mean = saved_ + layer.mean, *const inverse = saved_ + layer.inverse;
    const auto numbers = static_cast<double>(layer.out.n * layer.out.h * layer.out.w);
    std::vector<Moments> found(layer.out.c);
    moments(saved_ + layer.convolved, layer.out, found.data());
    scale.resize(layer.out.c);
    for (int64_t c = 0; c < layer.out.c; ++c) {
      mean[c] = static_cast<float>(found[c].mean);
      inverse[c] = static_cast<float>(1 / std::sqrt(found[c].squares / numbers + epsilon));
      scale[c] = own.gamma[c] * inverse[c];
      const float variance = static_cast<float>(found[c].squares / std::max(numbers - 1, 1.0));
      own.mean[c] = keep * own.mean[c] + (1 - keep) * mean[c];
      own.variance[c] = keep * own.variance[c] + (1 - keep) * variance;
    }
    return {mean, scale.data(), own.beta};
  }

  void normalized(int k, const Shortcut& shortcut, int squeeze = -1) {
    const Timed timed(k, normalizing);
    const Layer& layer = trunk_.layers[k];
    std::vector<float> scale;
    const Affine affine = statistics(k, scale);
    const float* const gates = squeeze < 0 ? nullptr : excited(trunk_.squeezes[squeeze], layer, affine);
    normalize(saved_ + layer.convolved, affine, shortcut, saved_ + layer.normalized, layer.out, true, gates);
  }

  const float* excited(const Squeeze& squeeze, const Layer& layer, const Affine& affine) {
    float *const means = saved_ + squeeze.means, *const gates = saved_ + squeeze.gates;
    normalized_means(saved_ + layer.convolved, affine, layer.out, means);
    excite(excitation_of(call_, squeeze, layer), means, saved_ + squeeze.hidden, gates);
    return gates;
  }

  const Call& call_;
  Trunk trunk_;
  float* saved_;
};

// The gradient of an image is the sum of two parts, one of them optional.
struct Parts {
  float *one, *more;
};

class Backward {
 public:
  explicit Backward(const Call& call)
      : call_(call), trunk_(trunk_of(call, backward_places)), saved_(call.floats(2)), buffers_(4, trunk_.largest),
        found_{backward_places.first + trunk_.tensors(backward_places), 3, 4} {
    require(call.count == found_.first + trunk_.tensors(found_), "wrong number of gradients");
    require(call.size(2) == trunk_.saved, "a wrong size of what is saved");
  }

  void run() {
    const Layer& stem = trunk_.layers[0];
    const Layer& last = trunk_.blocks.empty() ? stem : trunk_.last(trunk_.blocks.back());
    Parts parts{buffers_.take(), nullptr};
    mean_of_pixels_gradient(call_.floats(3), parts.one, last.out);
    for (size_t k = trunk_.blocks.size(); k-- > 0;) parts = through(trunk_.blocks[k], parts);
    if (trunk_.pooled) {
      if (parts.more != nullptr) add(parts.more, parts.one, trunk_.pool);
      float* const whole = buffers_.take();
      max_pool_gradient(parts.one, reinterpret_cast<const uint8_t*>(saved_ + trunk_.chosen_place), whole, stem.out);
      parts = {whole, nullptr};
    }
    rectified(0, parts);
    of_convolved(0, parts.one, parts.one);
    of_weights(0, parts.one, call_.floats(0));
  }

 private:
  // Gradients of a block's output -> those of its input.
  Parts through(const Block& block, Parts parts) {
    const float* const input = saved_ + block.input;
    int k = block.first + block.count - 1;
    Gates gated;
    if (block.squeeze < 0) rectified(k, parts);
    else gated = rectified(k, parts, trunk_.squeezes[block.squeeze]);
    buffers_.give(parts.more);
    float* const dz = parts.one;
    float* dc = buffers_.take();
    of_convolved(k, dz, dc, gated);
    float* dx = below(k, dc, k == block.first ? input : saved_ + trunk_.layers[k - 1].normalized);
    while (--k >= block.first) {
      rectified(k, {dx, nullptr});
      of_convolved(k, dx, dx);
      dx = below(k, dx, k == block.first ? input : saved_ + trunk_.layers[k - 1].normalized);
    }
    if (block.shortcut == identity) return {dx, dz};
    const int last = block.first + block.count - 1;
    if (block.shortcut == subsampled) {
      add_subsample_gradient(dz, trunk_.layers[last].out, dx, trunk_.layers[block.first].in);
      buffers_.give(dz);
      return {dx, nullptr};
    }
    sums(last + 1, dz, nullptr, nullptr);
    of_convolved(last + 1, dz, dz);
    return {dx, below(last + 1, dz, input)};
  }

  // The sum of the parts wherever the layer's results passed relu, written over the first; and sums over it.
  void rectified(int k, const Parts& parts) {
    sums(k, parts.one, parts.more, saved_ + trunk_.layers[k].normalized);
  }

  void sums(int k, float* dy, const float* more, const float* y) {
    const Timed timed(k, normalizing_gradient);
    const Layer& layer = trunk_.layers[k];
    sums_.resize(layer.out.c);
    gradient_sums(dy, more, y, saved_ + layer.convolved, saved_ + layer.mean, layer.out, sums_.data());
  }

  // The same for a layer whose results are multiplied by gates. Gradients of the squeeze's parameters, and sums of the
  // gradient of what the gates multiply, which is dz gates + more.
  Gates rectified(int k, const Parts& parts, const Squeeze& squeeze) {
    const Timed timed(k, normalizing_gradient);
    const Layer& layer = trunk_.layers[k];
    const Blocked& at = layer.out;
    const int place = backward_places.at(squeeze), into = found_.at(squeeze);
    const float *const mean = saved_ + layer.mean, *const inverse = saved_ + layer.inverse;
    const float *const gamma = call_.floats(backward_places.at(layer) + 1), *const x = saved_ + layer.convolved;
    const float *const means = saved_ + squeeze.means, *const gates = saved_ + squeeze.gates;
    std::vector<GradientSums> of_images(at.n * at.c);
    gradient_sums_of_images(parts.one, parts.more, saved_ + layer.normalized, x, mean, at, of_images.data());
    // What the gates multiply is gamma inverse (x - mean) + beta, and beta is its mean less that of the first term.
    std::vector<float> centred(at.n * at.c), dgates(at.n * at.c);
    mean_of_pixels(x, at, centred.data());
    more_.resize(at.n * at.c);
    for (int64_t i = 0; i < at.n * at.c; ++i) {
      const int64_t c = i % at.c;
      centred[i] -= mean[c];
      const double scale = static_cast<double>(gamma[c]) * inverse[c];
      const double beta = means[i] - scale * centred[i];
      dgates[i] = static_cast<float>(scale * of_images[i].product + beta * of_images[i].plain);
    }
    const Excitation by{at.n, at.c, squeeze.inner, call_.floats(place), nullptr, call_.floats(place + 1), nullptr};
    excite_gradient(by, means, saved_ + squeeze.hidden, gates, dgates.data(),
                    {call_.floats(into), call_.floats(into + 1), call_.floats(into + 2), call_.floats(into + 3)},
                    more_.data());
    const auto pixels = static_cast<float>(at.h * at.w);
    sums_.assign(at.c, {0, 0});
    for (int64_t i = 0; i < at.n * at.c; ++i) {
      const int64_t c = i % at.c;
      sums_[c].plain += of_images[i].plain * gates[i] + more_[i];
      sums_[c].product += of_images[i].product * gates[i] + static_cast<double>(more_[i]) * centred[i];
      more_[i] /= pixels;
    }
    return {gates, more_.data()};
  }

  // Gradients of gamma and beta, and that of the normalization's input, from the sums; dx may be dz.
  void of_convolved(int k, const float* dz, float* dx, const Gates& gated = {}) {
    const Timed timed(k, normalizing_gradient);
    const Layer& layer = trunk_.layers[k];
    const int into = found_.at(layer);
    const float *const gamma = call_.floats(backward_places.at(layer) + 1), *const inverse = saved_ + layer.inverse;
    float *const dgamma = call_.floats(into + 1), *const dbeta = call_.floats(into + 2);
    const auto numbers = static_cast<double>(layer.out.n * layer.out.h * layer.out.w);
    std::vector<float> scale(layer.out.c), offset(layer.out.c), slope(layer.out.c);
    for (int64_t c = 0; c < layer.out.c; ++c) {
      dgamma[c] = static_cast<float>(sums_[c].product * inverse[c]);
      dbeta[c] = static_cast<float>(sums_[c].plain);
      scale[c] = gamma[c] * inverse[c];
      offset[c] = static_cast<float>(sums_[c].plain / numbers);
      slope[c] = static_cast<float>(sums_[c].product / numbers * inverse[c] * inverse[c]);
    }
    input_gradient(dz, saved_ + layer.convolved, saved_ + layer.mean, scale.data(), offset.data(), slope.data(), dx,
                   layer.out, gated);
  }

  // Gradients of a layer's weights and of its input x; gives the buffer of the results' gradient back.
  float* below(int k, float* dc, const float* x) {
    const Layer& layer = trunk_.layers[k];
    of_weights(k, dc, x);
    const Timed timed(k, images_gradient);
    float* const dx = buffers_.take();
    convolution_of(layer.shape(backward_images, false)).run({dc, dx, call_.floats(backward_places.at(layer))});
    buffers_.give(dc);
    return dx;
  }

  void of_weights(int k, const float* dc, const float* x) {
    const Timed timed(k, weights_gradient);
    const Layer& layer = trunk_.layers[k];
    convolution_of(layer.shape(backward_weights, k == 0)).run({dc, x, call_.floats(found_.at(layer))});
  }

  const Call& call_;
  Trunk trunk_;
  const float* saved_;
  Buffers buffers_;
  Places found_;  // of the gradients
  std::vector<GradientSums> sums_;
  std::vector<float> more_;
};

class Inference {
 public:
  explicit Inference(const Call& call)
      : call_(call), trunk_(trunk_of(call, forward_places)), buffers_(4, trunk_.largest) {
    require(call.count == forward_places.first + trunk_.tensors(forward_places) + 1, "wrong number of tensors");
    require(call.size(2) == 2, "not two constants");
  }

  void run() {
    const Layer& stem = trunk_.layers[0];
    float* x = buffers_.take();
    convolve(0, call_.floats(0), x, {true, false, true});
    if (trunk_.pooled) {
      float* const pooled = buffers_.take();
      max_pool(x, stem.out, pooled, nullptr);
      buffers_.give(x);
      x = pooled;
    }
    for (const Block& block : trunk_.blocks) x = through(block, x);
    mean_of_pixels(x, (trunk_.blocks.empty() ? stem : trunk_.last(trunk_.blocks.back())).out,
                   call_.floats(call_.count - 1));
  }

 private:
  float* through(const Block& block, float* input) {
    const int last = block.first + block.count - 1;
    float* x = input;
    for (int k = block.first; k < last; ++k) {
      float* const y = buffers_.take();
      convolve(k, x, y, {true, false, true});
      if (x != input) buffers_.give(x);
      x = y;
    }
    float *const shortcut = shortcut_of(block, input), *const y = buffers_.take();
    if (block.squeeze < 0) convolve(last, x, y, {true, true, true}, shortcut);
    else squeezed(block, x, y, shortcut);
    if (x != input) buffers_.give(x);
    if (shortcut != input) buffers_.give(shortcut);
    buffers_.give(input);
    return y;
  }

  float* shortcut_of(const Block& block, float* input) {
    if (block.shortcut == identity) return input;
    float* const shortcut = buffers_.take();
    const int last = block.first + block.count - 1;
    if (block.shortcut == subsampled)
      subsample(input, trunk_.layers[block.first].in, shortcut, trunk_.layers[last].out);
    else
      convolve(last + 1, input, shortcut, {true, false, false});
    return shortcut;
  }

  // The last convolution of a block, whose results are multiplied by gates before the shortcut is added.
  void squeezed(const Block& block, const float* x, float* y, const float* shortcut) {
    const int last = block.first + block.count - 1;
    const Squeeze& squeeze = trunk_.squeezes[block.squeeze];
    const Layer& layer = trunk_.layers[last];
    convolve(last, x, y, {true, false, false});
    std::vector<float> means(layer.out.n * layer.out.c), hidden(layer.out.n * squeeze.inner), gates(means.size());
    mean_of_pixels(y, layer.out, means.data());
    excite(excitation_of(call_, squeeze, layer), means.data(), hidden.data(), gates.data());
    const std::vector<float> zero(layer.out.c), one(layer.out.c, 1);
    normalize(y, {zero.data(), one.data(), zero.data()}, {shortcut, nullptr}, y, layer.out, true, gates.data());
  }

  // A convolution with the normalization by running statistics folded into it.
  void convolve(int k, const float* x, float* y, Epilogue epilogue, const float* added = nullptr) {
    const Layer& layer = trunk_.layers[k];
    const Parameters own = parameters_of(call_, layer);
    scale_.resize(layer.out.c);
    shift_.resize(layer.out.c);
    for (int64_t c = 0; c < layer.out.c; ++c) {
      scale_[c] = own.gamma[c] / std::sqrt(own.variance[c] + call_.floats(2)[0]);
      shift_[c] = own.beta[c] - own.mean[c] * scale_[c];
    }
    if (layer.out.n * layer.out.h * layer.out.w > 1) {
      convolution_of(layer.shape(forward, k == 0, epilogue)).run({y, x, own.weights}, nullptr,
                                                                {scale_.data(), shift_.data(), added});
    } else {  // oneDNN then has only its reference loops for the epilogue
      convolution_of(layer.shape(forward, k == 0)).run({y, x, own.weights});
      const std::vector<float> nothing(layer.out.c);
      normalize(y, {nothing.data(), scale_.data(), shift_.data()}, {added, nullptr}, y, layer.out, epilogue.rectifies);
    }
  }

  const Call& call_;
  Trunk trunk_;
  Buffers buffers_;
  std::vector<float> scale_, shift_;
};

}  // namespace

// Returns the number of float32 that a forward pass saves, or 0 if this CPU or these shapes are not supported.
// `weights` are the shapes of the `count` units' weights, 4 numbers each.
EXPORTED int64_t resnetboost_trunk_saved(const int* program, int64_t length, const int64_t* images,
                                         const int64_t* weights, int64_t count) {
  const Weights shapes = [&](int layers, int squeezes) {
    require(layers + squeezes < count, "a unit without weights");
    return dims_of(weights + 4 * (layers + squeezes));
  };
  try {
    return Reader(program, length, dims_of(images), shapes).trunk.saved;
  } catch (const std::invalid_argument&) {
    return 0;
  }
}

// Starts to add up the seconds of each of the layers anew, or stops with 0.
EXPORTED void resnetboost_trunk_record(int64_t layers) {
  const std::lock_guard<std::mutex> lock(turn());
  seconds().assign(layers * works, 0);
}

// Copies the seconds: of each layer its convolution, normalization, the normalization's gradient, and the gradients of
// its images and of its weights.
EXPORTED void resnetboost_trunk_recorded(double* found) {
  const std::lock_guard<std::mutex> lock(turn());
  std::copy(seconds().begin(), seconds().end(), found);
}

// (images, program, constants, then of each layer: weights, gamma, beta, running mean, running variance, and of each
// squeeze: W1, b1, W2, b2) -> features (n, channels), what the gradients need. The running statistics are updated in
// place.
OPERATOR(trunk, tensors, [](const Call& call) { Forward(call).run(); })

// (images, program, saved, gradient of the features, then of each layer: weights, gamma, and of each squeeze: W1, W2)
// -> of each layer: gradients of its weights, gamma and beta; of each squeeze: those of all its tensors
OPERATOR(trunk_gradients, tensors, [](const Call& call) { Backward(call).run(); })

// The same arguments as for `trunk` -> features, by the running statistics
OPERATOR(trunk_inference, tensors, [](const Call& call) { Inference(call).run(); })
