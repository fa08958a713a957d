// A residual network up to its head, in one call: stem, [max pooling,] residual blocks, mean over the pixels.
//
// Images stay in oneDNN's blocked format from the stem to the mean. trunk_program.h says what a program is and how
// tensors are ordered; `constants` is float32 [epsilon, share of the running statistics kept].
#include <chrono>
#include <cmath>
#include <vector>

#include "blocked.h"
#include "convolution.h"
#include "operators.h"
#include "space.h"
#include "squeeze.h"
#include "trunk_program.h"

namespace {

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

// Buffers of the same size in the work space, taken and given back, and one of another size.
class Buffers {
 public:
  Buffers(int count, int64_t numbers, int64_t others) {
    const int64_t each = (numbers + 1023) / 1024 * 1024;
    other_ = reinterpret_cast<float*>(space().of((count * each + others) * sizeof(float)));
    for (int k = 0; k < count; ++k) free_.push_back(other_ + others + k * each);
  }
  float* other() { return other_; }
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
  float* other_;
  std::vector<float*> free_;
};

struct Parameters {
  const float *weights, *gamma, *beta;
  float *mean, *variance;  // running
};

Parameters parameters_of(const Call& call, const Places& at, const Layer& layer) {
  return {call.floats(at.of(layer, 0)), call.floats(at.of(layer, 1)), call.floats(at.of(layer, 2)),
          call.floats(at.of(layer, 3)), call.floats(at.of(layer, 4))};
}

Excitation excitation_of(const Call& call, const Places& at, const Squeeze& squeeze, const Layer& layer) {
  return {layer.out.n, layer.out.c, squeeze.inner, call.floats(at.of(squeeze, 0)), call.floats(at.of(squeeze, 1)),
          call.floats(at.of(squeeze, 2)), call.floats(at.of(squeeze, 3))};
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
      : call_(call), places_(forward_places(call)), trunk_(trunk_of(call, places_)),
        saved_(call.floats(call.count - 1)) {
    require(call.count == places_.next() + 2, "wrong number of tensors");
    require(call.size(2) == 2, "not two constants");
    require(call.size(call.count - 1) == trunk_.saved, "a wrong size of what is saved");
  }

  void run() {
    const Layer& stem = trunk_.stem();
    const float* x = call_.floats(0);
    for (int k = 0; k < trunk_.stems; ++k) {
      const bool pools = trunk_.pooled && k == trunk_.stems - 1;
      convolve(k, x);
      float* const y = pools ? Buffers(0, 0, stem.out.size()).other() : saved_ + trunk_.layers[k].normalized;
      normalized(k, {}, y);
      if (pools) max_pool(y, stem.out, saved_ + trunk_.pooled_place, chosen());
      x = y;
    }
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
      float* const y = saved_ + trunk_.layers[k].normalized;
      convolve(k, x);
      normalized(k, {}, y);
      x = y;
    }
    convolve(last, x);
    const Layer& layer = trunk_.layers[last];
    float* const y = saved_ + layer.normalized;
    if (block.shortcut == identity) {
      normalized(last, {input, nullptr}, y, block.squeeze);
    } else if (block.shortcut == subsampled) {
      float* const sample = Buffers(0, 0, layer.out.size()).other();
      subsample(input, trunk_.layers[block.first].in, sample, layer.out);
      normalized(last, {sample, nullptr}, y, block.squeeze);
    } else {
      if (block.shortcut == averaged) average(input, trunk_.layers[block.first].in, saved_ + block.means_place, block.means);
      convolve(last + 1, block.shortcut == averaged ? saved_ + block.means_place : input);
      std::vector<float> scale;
      const Affine affine = timed_statistics(last + 1, scale);
      normalized(last, {saved_ + trunk_.layers[last + 1].convolved, &affine}, y, block.squeeze);
    }
  }

  void convolve(int k, const float* x) {
    const Timed timed(k, convolving);
    const Layer& layer = trunk_.layers[k];
    const float* const weights = parameters_of(call_, places_, layer).weights;
    convolution_of(layer.shape(forward, k == 0)).run({saved_ + layer.convolved, x, weights});
  }

  Affine timed_statistics(int k, std::vector<float>& scale) {
    const Timed timed(k, normalizing);
    return statistics(k, scale);
  }

  // Computes the batch's statistics of a layer, and moves its running ones, with the sample variance (divisor n - 1).
  Affine statistics(int k, std::vector<float>& scale) {
    const Layer& layer = trunk_.layers[k];
    const Parameters own = parameters_of(call_, places_, layer);
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

  void normalized(int k, const Shortcut& shortcut, float* y, int squeeze = -1) {
    const Timed timed(k, normalizing);
    const Layer& layer = trunk_.layers[k];
    std::vector<float> scale;
    const Affine affine = statistics(k, scale);
    const float* const gates = squeeze < 0 ? nullptr : excited(trunk_.squeezes[squeeze], layer, affine);
    normalize(saved_ + layer.convolved, affine, shortcut, y, layer.out, true, gates);
  }

  const float* excited(const Squeeze& squeeze, const Layer& layer, const Affine& affine) {
    float *const means = saved_ + squeeze.means, *const gates = saved_ + squeeze.gates;
    normalized_means(saved_ + layer.convolved, affine, layer.out, means);
    excite(excitation_of(call_, places_, squeeze, layer), means, saved_ + squeeze.hidden, gates);
    return gates;
  }

  const Call& call_;
  Places places_;
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
      : call_(call), places_(backward_places(call)), trunk_(trunk_of(call, places_)), saved_(call.floats(2)),
        buffers_(4, trunk_.largest, trunk_.before_pool()), found_{places_.next(), 3, 4, places_.counts},
        captured_{found_.next(), 2, 4, places_.counts}, captures_(call.count > found_.next()) {
    require(call.count == (captures_ ? captured_ : found_).next(), "wrong number of gradients");
    require(call.size(2) == trunk_.saved, "a wrong size of what is saved");
  }

  void run() {
    const Layer& stem = trunk_.stem();
    const Layer& last = trunk_.blocks.empty() ? stem : trunk_.last(trunk_.blocks.back());
    Parts parts{buffers_.take(), nullptr};
    mean_of_pixels_gradient(call_.floats(3), parts.one, last.out);
    for (size_t k = trunk_.blocks.size(); k-- > 0;) parts = through(trunk_.blocks[k], parts);
    int k = trunk_.stems - 1;
    Parts of_stem = parts;
    if (trunk_.pooled) {
      of_stem = {through_pool(parts), nullptr};
      buffers_.give(parts.one);
      buffers_.give(parts.more);
    }
    float* dx = of_stem.one;
    sums(k, dx, of_stem.more, trunk_.pooled ? nullptr : saved_ + stem.normalized);
    of_convolved(k, dx, dx);
    for (; k > 0; --k) {
      const float* const x = saved_ + trunk_.layers[k - 1].normalized;
      const bool taken = !trunk_.pooled || k < trunk_.stems - 1;
      of_weights(k, dx, x);
      float* const before = of_images(k, dx);
      if (taken) buffers_.give(dx);
      dx = before;
      rectified(k - 1, {dx, nullptr});
      of_convolved(k - 1, dx, dx);
    }
    of_weights(0, dx, call_.floats(0));
  }

 private:
  // Gradients of the pooled images -> that of the stem's normalization.
  float* through_pool(const Parts& parts) {
    rectify_gradient(parts.one, parts.more, saved_ + trunk_.pooled_place, trunk_.pool);
    const auto* const chosen = reinterpret_cast<const uint8_t*>(saved_ + trunk_.chosen_place);
    max_pool_gradient(parts.one, chosen, buffers_.other(), trunk_.stem().out);
    return buffers_.other();
  }

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
    if (block.shortcut == convolved) return {dx, below(last + 1, dz, input)};
    float* const of_means = below(last + 1, dz, saved_ + block.means_place);
    add_average_gradient(of_means, block.means, dx, trunk_.layers[block.first].in);
    buffers_.give(of_means);
    return {dx, nullptr};
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
    const float *const mean = saved_ + layer.mean, *const inverse = saved_ + layer.inverse;
    const float *const gamma = call_.floats(places_.of(layer, 1)), *const x = saved_ + layer.convolved;
    const float *const means = saved_ + squeeze.means, *const gates = saved_ + squeeze.gates;
    std::vector<GradientSums> of_images(at.n * at.c);
    gradient_sums_of_images(parts.one, parts.more, saved_ + layer.normalized, x, mean, at, of_images.data());
    // What the gates multiply is gamma inverse (x - mean) + beta, and beta is its mean less that of the first term.
    std::vector<float> centred(at.n * at.c), dgates(at.n * at.c), dhidden(at.n * squeeze.inner);
    mean_of_pixels(x, at, centred.data());
    more_.resize(at.n * at.c);
    for (int64_t i = 0; i < at.n * at.c; ++i) {
      const int64_t c = i % at.c;
      centred[i] -= mean[c];
      const double scale = static_cast<double>(gamma[c]) * inverse[c];
      const double beta = means[i] - scale * centred[i];
      dgates[i] = static_cast<float>(scale * of_images[i].product + beta * of_images[i].plain);
    }
    const Excitation by{at.n, at.c, squeeze.inner, call_.floats(places_.of(squeeze, 0)), nullptr,
                        call_.floats(places_.of(squeeze, 1)), nullptr};
    const auto found = [&](int which) { return call_.floats(found_.of(squeeze, which)); };
    excite_gradient(by, means, saved_ + squeeze.hidden, gates, dgates.data(),
                    {found(0), found(1), found(2), found(3)}, dhidden.data(), more_.data());
    if (captures_) {
      capture(captured_.of(squeeze, 0), means, at.n * at.c);
      capture(captured_.of(squeeze, 1), dhidden.data(), at.n * squeeze.inner);
      capture(captured_.of(squeeze, 2), saved_ + squeeze.hidden, at.n * squeeze.inner);
      capture(captured_.of(squeeze, 3), dgates.data(), at.n * at.c);
    }
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
    const float *const gamma = call_.floats(places_.of(layer, 1)), *const inverse = saved_ + layer.inverse;
    float *const dgamma = call_.floats(found_.of(layer, 1)), *const dbeta = call_.floats(found_.of(layer, 2));
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
    of_weights(k, dc, x);
    float* const dx = of_images(k, dc);
    buffers_.give(dc);
    return dx;
  }

  // The gradient of a layer's input, in a buffer.
  float* of_images(int k, const float* dc) {
    const Timed timed(k, images_gradient);
    const Layer& layer = trunk_.layers[k];
    float* const dx = buffers_.take();
    convolution_of(layer.shape(backward_images, false)).run({dc, dx, call_.floats(places_.of(layer, 0))});
    return dx;
  }

  void of_weights(int k, const float* dc, const float* x) {
    const Timed timed(k, weights_gradient);
    const Layer& layer = trunk_.layers[k];
    convolution_of(layer.shape(backward_weights, k == 0)).run({dc, x, call_.floats(found_.of(layer, 0))});
    if (!captures_) return;
    if (k == 0) capture(captured_.of(layer, 0), x, layer.in.size());
    else capture(captured_.of(layer, 0), x, layer.in);
    capture(captured_.of(layer, 1), dc, layer.out);
  }

  void capture(int place, const float* x, int64_t size) {
    require(call_.size(place) == size, "a captured tensor of another size");
    std::copy(x, x + size, call_.floats(place));
  }

  void capture(int place, const float* x, const Blocked& at) {
    require(call_.size(place) == at.size(), "a captured tensor of another size");
    to_plain(x, at, call_.floats(place));
  }

  const Call& call_;
  Places places_;
  Trunk trunk_;
  const float* saved_;
  Buffers buffers_;
  Places found_, captured_;  // the gradients, and what is captured
  bool captures_;
  std::vector<GradientSums> sums_;
  std::vector<float> more_;
};

class Inference {
 public:
  explicit Inference(const Call& call)
      : call_(call), places_(forward_places(call)), trunk_(trunk_of(call, places_)),
        buffers_(4, trunk_.largest, trunk_.before_pool()) {
    require(call.count == places_.next() + 1, "wrong number of tensors");
    require(call.size(2) == 2, "not two constants");
  }

  void run() {
    const Layer& stem = trunk_.stem();
    const float* from = call_.floats(0);
    float* x = nullptr;
    for (int k = 0; k < trunk_.stems; ++k) {
      float* const y = trunk_.pooled && k == trunk_.stems - 1 ? buffers_.other() : buffers_.take();
      convolve(k, from, y, {true, false, true});
      buffers_.give(x);
      from = x = y;
    }
    if (trunk_.pooled) max_pool(from, stem.out, x = buffers_.take(), nullptr);
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
    const Blocked& in = trunk_.layers[block.first].in;
    if (block.shortcut == subsampled) {
      subsample(input, in, shortcut, trunk_.layers[last].out);
    } else if (block.shortcut == averaged) {
      float* const means = buffers_.take();
      average(input, in, means, block.means);
      convolve(last + 1, means, shortcut, {true, false, false});
      buffers_.give(means);
    } else {
      convolve(last + 1, input, shortcut, {true, false, false});
    }
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
    excite(excitation_of(call_, places_, squeeze, layer), means.data(), hidden.data(), gates.data());
    const std::vector<float> zero(layer.out.c), one(layer.out.c, 1);
    normalize(y, {zero.data(), one.data(), zero.data()}, {shortcut, nullptr}, y, layer.out, true, gates.data());
  }

  // A convolution with the normalization by running statistics folded into it.
  void convolve(int k, const float* x, float* y, Epilogue epilogue, const float* added = nullptr) {
    const Layer& layer = trunk_.layers[k];
    const Parameters own = parameters_of(call_, places_, layer);
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
  Places places_;
  Trunk trunk_;
  Buffers buffers_;
  std::vector<float> scale_, shift_;
};

}  // namespace

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

// (images, program, constants, then of the layers: weights, gammas, betas, running means, running variances, and of the
// squeezes: W1, b1, W2, b2) -> features (n, channels), what the gradients need. The running statistics are updated in
// place.
OPERATOR(trunk, tensors, [](const Call& call) { Forward(call).run(); })

// (images, program, saved, gradient of the features, then of the layers: weights, gammas, and of the squeezes: W1, W2)
// -> gradients, of the layers: of weights, gammas and betas, and of the squeezes: of W1, b1, W2, b2
// [then what each convolution has seen, dense: of the layers: input, gradient of the results, and of the squeezes: those
// of the first, those of the second]
OPERATOR(trunk_gradients, tensors, [](const Call& call) { Backward(call).run(); })

// The same arguments as for `trunk` -> features, by the running statistics
OPERATOR(trunk_inference, tensors, [](const Call& call) { Inference(call).run(); })
