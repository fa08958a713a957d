// What the trunk's operators read from a program and the shapes of the tensors.
//
// `program` is int32 [1 if pooled, convolutions of the stem, the stride and padding of each, then for each block:
// convolutions of its branch, kind of its shortcut, 1 if it squeezes and excites, and the stride and padding of each
// convolution, the shortcut's last].
//
// A layer is a convolution with its normalization. Layers, and squeezes and excitations, are numbered in the program's
// order; a call has the weights of all layers, then what comes next for all layers, and so on.
#pragma once

#include <vector>

#include "blocked.h"
#include "convolution.h"
#include "operators.h"

// `averaged` is a convolution of the means of 2x2 pixels.
enum ShortcutKind { identity, convolved, subsampled, averaged };

// A convolution and its normalization. Places are offsets of float32 in what a forward pass saves for the backward one.
struct Layer {
  int number;
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
  int number;
  int64_t inner, means, hidden, gates;
};

struct Block {
  int first, count;  // layers of its branch; a shortcut's convolution is the one after them
  ShortcutKind shortcut;
  int squeeze;  // -1: none
  int64_t input;  // place of its input
  Blocked means{};  // of 2x2 pixels of its input, for its shortcut
  int64_t means_place = 0;
};

struct Counts {
  int layers, squeezes;
};

// Where the tensors are in a call: `of_layer` for each layer from the first on, then `of_squeeze` for each squeeze.
struct Places {
  int first, of_layer, of_squeeze;
  Counts counts;

  int of(const Layer& layer, int which) const { return first + which * counts.layers + layer.number; }
  int of(const Squeeze& squeeze, int which) const {
    return first + of_layer * counts.layers + which * counts.squeezes + squeeze.number;
  }
  int next() const { return first + of_layer * counts.layers + of_squeeze * counts.squeezes; }
};

struct Trunk {
  bool pooled = false;
  int stems = 1;  // layers of the stem
  Blocked pool{};
  int64_t pooled_place = 0, chosen_place = 0;
  std::vector<Layer> layers;
  std::vector<Squeeze> squeezes;
  std::vector<Block> blocks;
  int64_t saved = 0, largest = 0;  // the largest images but those that are pooled

  const Layer& stem() const { return layers[stems - 1]; }
  int64_t before_pool() const { return pooled ? stem().out.size() : 0; }
  const Layer& last(const Block& block) const { return layers[block.first + block.count - 1]; }
};

// Places of the tensors in a call of the forward pass or of inference, and in one of the backward pass.
Places forward_places(const Call& call);
Places backward_places(const Call& call);

// Reads the trunk of a call: tensor 0 has the images, 1 the program. Throws invalid_argument if they do not fit.
Trunk trunk_of(const Call& call, const Places& places);
