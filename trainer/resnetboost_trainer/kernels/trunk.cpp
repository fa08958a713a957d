// A residual network up to its head, in one call: stem, [max pooling,] residual blocks, mean over the pixels.
//
// Images stay in oneDNN's blocked format from the stem to the mean. `program` is int32 [1 if pooled, the stem's stride
// and padding, then for each block: convolutions of its branch, kind of its shortcut, and the stride and padding of
// each convolution, the shortcut's last]. `constants` is float32 [epsilon, share of the running statistics kept].
// Convolutions and their normalizations are numbered in the program's order.
#include <cmath>
#include <memory>
#include <vector>

#include "blocked.h"
#include "convolution.h"
#include "operators.h"
#include "space.h"

namespace {

enum ShortcutKind { identity, convolved, subsampled };

// A convolution and its normalization. Places are offsets of float32 in what a forward pass saves for the backward one.
struct Layer {
  Dims weights;
  int64_t stride, padding;
  Dims images, results;
  Blocked in, out;
  int64_t convolved, mean, inverse, normalized;

  ConvolutionShape shape(Pass pass, bool stem, Epilogue epilogue = {}) const {
    return {pass, images, weights, results, stride, padding, stem ? plain : blocked, blocked, epilogue};
  }
};

struct Block {
  int first, count;  // layers of its branch; a shortcut's convolution is the one after them
  ShortcutKind shortcut;
};

struct Trunk {
  bool pooled = false;
  Blocked pool{};
  int64_t pooled_place = 0, chosen_place = 0;
  std::vector<Layer> layers;
  std::vector<Block> blocks;
  int64_t saved = 0, largest = 0;

  const Layer& last(const Block& block) const { return layers[block.first + block.count - 1]; }
  int64_t input_place(const Block& block) const { return inputs[&block - blocks.data()]; }
  std::vector<int64_t> inputs;  // places of the blocks' inputs
};

Blocked in_blocks(const Dims& dims) { return {dims[0], dims[1], dims[2], dims[3], block()}; }

// Reads a program for images and weights of these shapes. Throws invalid_argument if they do not fit.
class Reader {
 public:
  Reader(const int* program, int64_t length, const Dims& images, const std::vector<Dims>& weights)
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
    while (at_ < length_) {
      trunk.inputs.push_back(place);
      Block block{static_cast<int>(trunk.layers.size()), next(), static_cast<ShortcutKind>(next())};
      require(block.count > 0 && block.shortcut >= identity && block.shortcut <= subsampled, "an unknown block");
      Dims to = from;
      for (int k = 0; k < block.count; ++k) place = layer(to, true), to = trunk.layers.back().results;
      if (block.shortcut == convolved) {
        layer(from, false);
        require(trunk.layers.back().results == to, "a shortcut of another shape");
      }
      require(block.shortcut != identity || to == from, "an identity that changes its shape");
      require(block.shortcut != subsampled || (to[1] >= from[1] && to[2] == (from[2] - 1) / 2 + 1), "a subsampling");
      trunk.blocks.push_back(block);
      from = to;
    }
    require(trunk.layers.size() == weights.size(), "weights that the program has no layer for");
  }

  Trunk trunk;

 private:
  int next() {
    require(at_ < length_, "a program that ends too early");
    return program_[at_++];
  }

  int64_t reserve(int64_t numbers) {
    const int64_t place = trunk.saved;
    trunk.saved += (numbers + 15) / 16 * 16;
    return place;
  }

  // Adds the next layer, whose input is of that shape; returns the place of its normalized results.
  int64_t layer(const Dims& images, bool normalized) {
    const size_t number = trunk.layers.size();
    require(number < weights_.size(), "a layer without weights");
    const int64_t stride = next(), padding = next();
    const Dims results = results_of(images, weights_[number], stride, padding);
    require(results[1] % block() == 0, "a number of channels that is not a multiple of the block");
    Layer made{weights_[number], stride, padding, images, results, in_blocks(images), in_blocks(results), 0, 0, 0, 0};
    made.convolved = reserve(made.out.size());
    made.mean = reserve(made.out.c);
    made.inverse = reserve(made.out.c);
    made.normalized = normalized ? reserve(made.out.size()) : -1;
    trunk.largest = std::max(trunk.largest, made.out.size());
    trunk.layers.push_back(made);
    return made.normalized;
  }

  const int* program_;
  int64_t length_, at_ = 0;
  const std::vector<Dims>& weights_;
};

Dims dims_of(const int64_t* sizes) { return {sizes[0], sizes[1], sizes[2], sizes[3]}; }

// The trunk of a call: tensor 0 has the images, 1 the program, and every `each`-th one from `first` on the weights.
Trunk trunk_of(const Call& call, int first, int each, int last) {
  const auto dims = [&](int k) {
    require(call.ranks[k] == 4, "a tensor without 4 axes");
    return dims_of(call.shapes[k]);
  };
  std::vector<Dims> weights;
  for (int k = first; k < last; k += each) {
    weights.push_back(dims(k));
    for (int vector = 1; vector < each; ++vector)
      require(call.size(k + vector) == weights.back()[0], "not one number for each channel");
  }
  return Reader(call.integers(1), call.size(1), dims(0), weights).trunk;
}

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

Parameters parameters_of(const Call& call, int layer) {
  const int k = 3 + 5 * layer;
  return {call.floats(k), call.floats(k + 1), call.floats(k + 2), call.floats(k + 3), call.floats(k + 4)};
}

class Forward {
 public:
  explicit Forward(const Call& call)
      : call_(call), trunk_(trunk_of(call, 3, 5, call.count - 2)), saved_(call.floats(call.count - 1)) {
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
    const float* const input = saved_ + trunk_.input_place(block);
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
      normalized(last, {input, nullptr});
    } else if (block.shortcut == subsampled) {
      Buffers buffers(1, layer.out.size());
      float* const sample = buffers.take();
      subsample(input, trunk_.layers[block.first].in, sample, layer.out);
      normalized(last, {sample, nullptr});
    } else {
      convolve(last + 1, input);
      std::vector<float> scale;
      const Affine affine = statistics(last + 1, scale);
      normalized(last, {saved_ + trunk_.layers[last + 1].convolved, &affine});
    }
  }

  void convolve(int k, const float* x) {
    const Layer& layer = trunk_.layers[k];
    convolution_of(layer.shape(forward, k == 0)).run({saved_ + layer.convolved, x, parameters_of(call_, k).weights});
  }

  // Computes the batch's statistics of a layer, and moves its running ones, with the sample variance (divisor n - 1).
  Affine statistics(int k, std::vector<float>& scale) {
    const Layer& layer = trunk_.layers[k];
    const Parameters own = parameters_of(call_, k);
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

  void normalized(int k, const Shortcut& shortcut) {
    const Layer& layer = trunk_.layers[k];
    std::vector<float> scale;
    const Affine affine = statistics(k, scale);
    normalize(saved_ + layer.convolved, affine, shortcut, saved_ + layer.normalized, layer.out, true);
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
      : call_(call), layers_((call.count - 4) / 5), trunk_(trunk_of(call, 4, 2, 4 + 2 * layers_)),
        saved_(call.floats(2)), buffers_(4, trunk_.largest) {
    require(call.count == 4 + 5 * layers_, "not three gradients for each layer");
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
    const float* const input = saved_ + trunk_.input_place(block);
    int k = block.first + block.count - 1;
    rectified(k, parts);
    buffers_.give(parts.more);
    float* const dz = parts.one;
    float* dc = buffers_.take();
    of_convolved(k, dz, dc);
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
    const Layer& layer = trunk_.layers[k];
    sums_.resize(layer.out.c);
    gradient_sums(dy, more, y, saved_ + layer.convolved, saved_ + layer.mean, layer.out, sums_.data());
  }

  // Gradients of gamma and beta, and that of the normalization's input, from the sums; dx may be dz.
  void of_convolved(int k, const float* dz, float* dx) {
    const Layer& layer = trunk_.layers[k];
    const float *const gamma = call_.floats(5 + 2 * k), *const inverse = saved_ + layer.inverse;
    float *const dgamma = call_.floats(gradient(k) + 1), *const dbeta = call_.floats(gradient(k) + 2);
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
                   layer.out);
  }

  // Gradients of a layer's weights and of its input x; gives the buffer of the results' gradient back.
  float* below(int k, float* dc, const float* x) {
    const Layer& layer = trunk_.layers[k];
    of_weights(k, dc, x);
    float* const dx = buffers_.take();
    convolution_of(layer.shape(backward_images, false)).run({dc, dx, call_.floats(4 + 2 * k)});
    buffers_.give(dc);
    return dx;
  }

  void of_weights(int k, const float* dc, const float* x) {
    convolution_of(trunk_.layers[k].shape(backward_weights, k == 0)).run({dc, x, call_.floats(gradient(k))});
  }

  // Index of the gradient of a layer's weights; those of gamma and beta follow.
  int gradient(int k) const { return 4 + 2 * layers_ + 3 * k; }

  const Call& call_;
  int layers_;
  Trunk trunk_;
  const float* saved_;
  Buffers buffers_;
  std::vector<GradientSums> sums_;
};

class Inference {
 public:
  explicit Inference(const Call& call)
      : call_(call), trunk_(trunk_of(call, 3, 5, call.count - 1)), buffers_(4, trunk_.largest) {
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
    convolve(last, x, y, {true, true, true}, shortcut);
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

  // A convolution with the normalization by running statistics folded into it.
  void convolve(int k, const float* x, float* y, Epilogue epilogue, const float* added = nullptr) {
    const Layer& layer = trunk_.layers[k];
    const Parameters own = parameters_of(call_, k);
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
// `weights` are `count` shapes of 4 numbers.
EXPORTED int64_t resnetboost_trunk_saved(const int* program, int64_t length, const int64_t* images,
                                         const int64_t* weights, int64_t count) {
  std::vector<Dims> shapes;
  for (int64_t k = 0; k < count; ++k) shapes.push_back(dims_of(weights + 4 * k));
  try {
    return Reader(program, length, dims_of(images), shapes).trunk.saved;
  } catch (const std::invalid_argument&) {
    return 0;
  }
}

// (images, program, constants, then of each layer: weights, gamma, beta, running mean, running variance) -> features
// (n, channels), what the gradients need. The running statistics are updated in place.
OPERATOR(trunk, tensors, [](const Call& call) { Forward(call).run(); })

// (images, program, saved, gradient of the features, then of each layer: weights, gamma) -> of each layer: gradients of
// its weights, gamma and beta
OPERATOR(trunk_gradients, tensors, [](const Call& call) { Backward(call).run(); })

// (images, program, constants, then of each layer: weights, gamma, beta, running mean, running variance) -> features,
// by the running statistics
OPERATOR(trunk_inference, tensors, [](const Call& call) { Inference(call).run(); })
