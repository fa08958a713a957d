// Convolution by oneDNN in its preferred memory formats, forward and backward.
//
// Images are (n, c, h, w), weights (o, c / groups, k, k), results (n, o, h', w') with h' = (h + 2 padding - k) / stride
// + 1; images and weights say how many groups there are. Each equal part of the results sees its own part of the images.
// Results are the same bits in every process with the same number of threads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "onednn.h"

using Dims = std::array<int64_t, 4>;

enum Pass { forward, backward_images, backward_weights };

// How a tensor lies in memory: dense and row-major, or with blocks of `block()` channels innermost.
enum Layout { plain, blocked };

// What an inference pass does with its results: y = [relu](scale y + shift [+ other images]).
struct Epilogue {
  bool scales = false, adds = false, rectifies = false;
  auto operator<=>(const Epilogue&) const = default;
};

struct ConvolutionShape {
  Pass pass;
  Dims images, weights, results;
  int64_t stride, padding;
  Layout images_layout = plain, results_layout = plain;
  Epilogue epilogue = {};
  auto operator<=>(const ConvolutionShape&) const = default;

  int64_t groups() const { return images[1] / weights[1]; }
};

// Groups of fewer channels than oneDNN's blocks are computed `of` at a time, as one of more channels with zeros between
// them: it has fast kernels for whole blocks alone. `groups` are those that oneDNN sees, 1 if of == groups.
struct Merging {
  int64_t of, groups;
};

// A tensor's own and oneDNN's formats, and the reorder between them if they differ.
struct Slot {
  int argument;
  bool written;
  const dnnl_memory_desc* form;  // oneDNN's
  dnnl_memory *ours, *theirs = nullptr;
  dnnl_primitive* reorder = nullptr;
  size_t place = 0;
};

class Convolution {
 public:
  explicit Convolution(const ConvolutionShape& shape);

  // Bytes of work space that a run needs.
  size_t size() const { return size_; }

  // Runs the pass on results, images and weights, one of which it writes. `before` has just run on the same results, in
  // a work space that is large enough for both. `operands` are the epilogue's: scale and shift with one number for each
  // channel of the results, and the images that are added.
  void run(const std::array<const float*, 3>& data, const Convolution* before = nullptr,
           const std::array<const float*, 3>& operands = {});

 private:
  bool has_results_of(const Convolution& other) const;
  Slot slot(const dnnl_primitive_desc* chosen, int argument, bool written, dnnl_memory_desc* ours);
  size_t reserve(size_t bytes);

  // Copies weights (o, c / groups, k, k) into merged ones with zeros between the groups, or back.
  void spread(const float* weights, float* merged) const;
  void collect(const float* merged, float* weights) const;

  dnnl_primitive* primitive_ = nullptr;
  Dims weights_{};
  Merging merging_{};
  size_t merged_place_ = 0;
  std::array<Slot, 3> slots_{};  // results, images, weights
  std::vector<dnnl_memory*> operands_;
  dnnl_memory* scratch_ = nullptr;
  size_t scratch_place_ = 0, size_ = 0;
};

// Returns the cached convolution of that shape, creating it if necessary.
Convolution& convolution_of(const ConvolutionShape& shape);

// Returns the dimensions of the results. Throws invalid_argument if images and weights do not fit.
Dims results_of(const Dims& images, const Dims& weights, int64_t stride, int64_t padding);

// Returns the number of channels in a block of oneDNN's fast formats on this CPU, 0 if there are none.
int block();
