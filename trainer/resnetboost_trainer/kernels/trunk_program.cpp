#include "trunk_program.h"

#include <algorithm>

namespace {

Blocked in_blocks(const Dims& dims) { return {dims[0], dims[1], dims[2], dims[3], block()}; }

// Shapes of the weights of the layers, and of the first weights of the squeezes.
struct Weights {
  std::vector<Dims> layers, squeezes;
};

// Reads a program for images and weights of these shapes. Throws invalid_argument if they do not fit.
class Reader {
 public:
  Reader(const int* program, int64_t length, const Dims& images, const Weights& weights)
      : program_(program), length_(length), weights_(weights) {
    require(block() > 0, "a CPU without AVX2");
    trunk.pooled = next() != 0;
    trunk.stems = next();
    require(trunk.stems > 0, "no stem");
    Dims from = images;
    int64_t place = 0;
    for (int k = 1; k <= trunk.stems; ++k) {
      place = layer(from, k < trunk.stems || !trunk.pooled);  // relu's gradient can be taken from the pooled images
      from = trunk.layers.back().results;
    }
    if (trunk.pooled) {
      trunk.pool = max_pooled(in_blocks(from));
      from = {from[0], from[1], trunk.pool.h, trunk.pool.w};
      place = trunk.pooled_place = reserve(trunk.pool.size());
      trunk.chosen_place = reserve((trunk.pool.size() + 3) / 4);
      trunk.largest = std::max(trunk.largest, trunk.pool.size());
    }
    while (at_ < length_) place = read_block(from, place);
    require(trunk.layers.size() == weights.layers.size(), "weights without a layer");
    require(trunk.squeezes.size() == weights.squeezes.size(), "weights without a squeeze");
  }

  Trunk trunk;

 private:
  // Reads a block whose input is of shape `from`, which becomes that of its output; returns the output's place.
  int64_t read_block(Dims& from, int64_t input) {
    const int first = static_cast<int>(trunk.layers.size()), count = next();
    const auto shortcut = static_cast<ShortcutKind>(next());
    const bool squeezes = next() != 0;
    require(count > 0 && shortcut >= identity && shortcut <= averaged, "an unknown block");
    Dims to = from;
    int64_t place = 0;
    for (int k = 0; k < count; ++k) place = layer(to, true), to = trunk.layers.back().results;
    const Dims means{from[0], from[1], (from[2] + 1) / 2, (from[3] + 1) / 2};
    const int64_t means_place = shortcut == averaged ? reserve(in_blocks(means).size()) : 0;
    if (shortcut == convolved || shortcut == averaged) {
      layer(shortcut == averaged ? means : from, false);
      require(trunk.layers.back().results == to, "a shortcut of another shape");
    }
    require(shortcut != identity || to == from, "an identity that changes its shape");
    require(shortcut != subsampled || (to[1] >= from[1] && to[2] == (from[2] - 1) / 2 + 1), "a subsampling");
    trunk.blocks.push_back({first, count, shortcut, squeezes ? squeeze(to) : -1, input, in_blocks(means),
                            means_place});
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

  // Adds the next layer, whose input is of that shape; returns the place of its normalized results.
  int64_t layer(const Dims& images, bool normalized) {
    const size_t number = trunk.layers.size();
    require(number < weights_.layers.size(), "a layer without weights");
    const Dims shape = weights_.layers[number];
    const int64_t stride = next(), padding = next();
    const Dims results = results_of(images, shape, stride, padding);
    require(results[1] % block() == 0, "a number of channels that is not a multiple of the block");
    Layer made{static_cast<int>(number), shape, stride, padding, images, results, in_blocks(images),
               in_blocks(results), 0, 0, 0, 0};
    made.convolved = reserve(made.out.size());
    made.mean = reserve(made.out.c);
    made.inverse = reserve(made.out.c);
    made.normalized = normalized ? reserve(made.out.size()) : -1;
    if (normalized || trunk.layers.size() >= static_cast<size_t>(trunk.stems)) trunk.largest = std::max(trunk.largest, made.out.size());
    trunk.layers.push_back(made);
    return made.normalized;
  }

  // Adds the next squeeze, of images of that shape; returns its number.
  int squeeze(const Dims& images) {
    const size_t number = trunk.squeezes.size();
    require(number < weights_.squeezes.size(), "a squeeze without weights");
    const Dims shape = weights_.squeezes[number];
    require(shape[1] == images[1] && shape[2] == 1 && shape[3] == 1, "weights that do not squeeze the channels");
    Squeeze made{static_cast<int>(number), shape[0], 0, 0, 0};
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

// Counts the layers and squeezes of a program, which the reader checks afterwards.
Counts counted(const int* program, int64_t length) {
  require(length > 1 && program[1] > 0, "no stem");
  Counts found{program[1], 0};
  for (int64_t at = 2 + 2 * found.layers; at + 2 < length;) {
    const int layers = program[at] + (program[at + 1] == convolved || program[at + 1] == averaged);
    require(layers > 0, "an unknown block");
    found.layers += layers;
    found.squeezes += program[at + 2] != 0;
    at += 3 + 2 * layers;
  }
  return found;
}

Counts counts_of(const Call& call) { return counted(call.integers(1), call.size(1)); }

}  // namespace

Places forward_places(const Call& call) { return {3, 5, 4, counts_of(call)}; }
Places backward_places(const Call& call) { return {4, 2, 2, counts_of(call)}; }

Trunk trunk_of(const Call& call, const Places& places) {
  require(call.count >= places.next(), "too few tensors");
  const auto dims = [&](int k) {
    require(call.ranks[k] == 4, "a tensor without 4 axes");
    return dims_of(call.shapes[k]);
  };
  Weights weights;
  const int squeezes = places.first + places.of_layer * places.counts.layers;
  for (int k = 0; k < places.counts.layers; ++k) weights.layers.push_back(dims(places.first + k));
  for (int k = 0; k < places.counts.squeezes; ++k) weights.squeezes.push_back(dims(squeezes + k));
  const Trunk trunk = Reader(call.integers(1), call.size(1), dims(0), weights).trunk;
  for (const Layer& layer : trunk.layers)
    for (int which = 1; which < places.of_layer; ++which)
      require(call.size(places.of(layer, which)) == layer.out.c, "not one number for each channel");
  for (const Squeeze& squeeze : trunk.squeezes) {
    const int64_t size = call.size(places.of(squeeze, 0));
    require(call.size(places.of(squeeze, places.of_squeeze / 2)) == size, "weights of another shape");
    for (int which = 1; places.of_squeeze == 4 && which < 4; which += 2)
      require(call.size(places.of(squeeze, which)) == (which == 1 ? squeeze.inner : size / squeeze.inner), "biases");
  }
  return trunk;
}

// Returns the number of float32 that a forward pass saves, or 0 if this CPU or these shapes are not supported.
// `weights` are the shapes of `count` weights, 4 numbers each: those of the layers, and the first of the squeezes.
// Writes the shapes of the images of all layers, then those of their results, 4 numbers each.
EXPORTED int64_t resnetboost_trunk_saved(const int* program, int64_t length, const int64_t* images,
                                         const int64_t* weights, int64_t count, int64_t* shapes) {
  try {
    const Counts counts = counted(program, length);
    require(count == counts.layers + counts.squeezes, "wrong number of weights");
    Weights given;
    for (int k = 0; k < count; ++k)
      (k < counts.layers ? given.layers : given.squeezes).push_back(dims_of(weights + 4 * k));
    const Trunk trunk = Reader(program, length, dims_of(images), given).trunk;
    for (const Layer& layer : trunk.layers) {
      std::copy(layer.images.begin(), layer.images.end(), shapes + 4 * layer.number);
      std::copy(layer.results.begin(), layer.results.end(), shapes + 4 * (counts.layers + layer.number));
    }
    return trunk.saved;
  } catch (const std::invalid_argument&) {
    return 0;
  }
}
