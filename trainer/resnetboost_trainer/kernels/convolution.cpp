// Convolution by oneDNN in its preferred memory formats, forward and backward.
//
// Images are (n, c, h, w), weights (o, c, k, k), results (n, o, h', w') with h' = (h + 2 padding - k) / stride + 1.
// `form` is int32 [stride, padding]. Results are the same bits in every process with the same number of threads.
#include <array>
#include <cstdlib>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "onednn.h"
#include "operators.h"
#include "pool.h"

namespace {

using Dims = std::array<int64_t, 4>;
enum Pass { forward, backward_images, backward_weights };

void check(int status, const char* what) {
  if (status != 0) throw std::runtime_error(std::string("oneDNN: ") + what + " failed with " + std::to_string(status));
}

// Cache key of a primitive.
struct Shape {
  int pass;
  Dims images, weights, results;
  int64_t stride, padding;
  bool operator<(const Shape& other) const {
    return std::tie(pass, images, weights, results, stride, padding) <
           std::tie(other.pass, other.images, other.weights, other.results, other.stride, other.padding);
  }
};

struct Library {
  dnnl_engine* engine = nullptr;
  dnnl_stream* stream = nullptr;
  dnnl_primitive_attr* attributes = nullptr;

  Library() {
    check(dnnl_engine_create(&engine, onednn::cpu, 0), "an engine");
    check(dnnl_threadpool_interop_stream_create(&stream, engine, &pool()), "a stream");
    check(dnnl_primitive_attr_create(&attributes), "attributes");
    check(dnnl_primitive_attr_set_scratchpad_mode(attributes, onednn::user), "attributes");
  }
};

Library& library() {
  static Library* const one = new Library;
  return *one;
}

// Work space that operators share, one at a time: new pages for every call would take as long as the arithmetic.
class Space {
 public:
  char* of(size_t bytes) {
    if (bytes > size_) {
      std::free(start_);
      size_ = 0;
      start_ = static_cast<char*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096));
      if (start_ == nullptr) throw std::bad_alloc();
      size_ = bytes;
    }
    return start_;
  }

 private:
  char* start_ = nullptr;
  size_t size_ = 0;
};

Space& space() {
  static Space* const one = new Space;
  return *one;
}

dnnl_memory_desc* dense(const Dims& dims) {
  const dnnl_dims sizes{dims[0], dims[1], dims[2], dims[3]};
  const dnnl_dims strides{dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1};
  dnnl_memory_desc* made = nullptr;
  check(dnnl_memory_desc_create_with_strides(&made, 4, sizes, onednn::f32, strides), "a description");
  return made;
}

dnnl_memory_desc* any(const Dims& dims) {
  const dnnl_dims sizes{dims[0], dims[1], dims[2], dims[3]};
  dnnl_memory_desc* made = nullptr;
  check(dnnl_memory_desc_create_with_tag(&made, 4, sizes, onednn::f32, onednn::any), "a description");
  return made;
}

dnnl_memory* memory(const dnnl_memory_desc* description) {
  dnnl_memory* made = nullptr;
  check(dnnl_memory_create(&made, description, library().engine, nullptr), "a memory");
  return made;
}

dnnl_primitive* primitive(const dnnl_primitive_desc* description) {
  dnnl_primitive* made = nullptr;
  check(dnnl_primitive_create(&made, description), "a primitive");
  return made;
}

// A tensor's MindSpore and oneDNN formats, and the reorder between them if they differ.
struct Slot {
  int argument;
  bool written;
  const dnnl_memory_desc* form;  // oneDNN's
  dnnl_memory *ours, *theirs = nullptr;
  dnnl_primitive* reorder = nullptr;
  size_t place = 0;
};

// Sets the number of threads that oneDNN plans for on this thread, and restores it, since MindSpore's operators use it.
class Concurrency {
 public:
  explicit Concurrency(int threads) {
    check(dnnl_threadpool_interop_get_max_concurrency(&before_), "asking for threads");
    check(dnnl_threadpool_interop_set_max_concurrency(threads), "setting threads");
  }
  ~Concurrency() { dnnl_threadpool_interop_set_max_concurrency(before_); }
  Concurrency(const Concurrency&) = delete;
  Concurrency& operator=(const Concurrency&) = delete;

 private:
  int before_ = 0;
};

class Convolution {
 public:
  explicit Convolution(const Shape& shape) {
    const Concurrency as_many_as_the_pool(pool().get_num_threads());
    auto* chosen = choose(shape);
    primitive_ = primitive(chosen);
    const int images = shape.pass == backward_images ? onednn::source_gradient : onednn::source;
    const int weights = shape.pass == backward_weights ? onednn::weights_gradient : onednn::weights;
    const int results = shape.pass == forward ? onednn::destination : onednn::destination_gradient;
    slots_ = {slot(chosen, results, shape.pass == forward, dense(shape.results)),
              slot(chosen, images, shape.pass == backward_images, dense(shape.images)),
              slot(chosen, weights, shape.pass == backward_weights, dense(shape.weights))};
    const auto* scratch = dnnl_primitive_desc_query_md(chosen, onednn::of_argument, onednn::scratchpad);
    scratch_place_ = reserve(scratch == nullptr ? 0 : dnnl_memory_desc_get_size(scratch));
    scratch_ = memory(scratch);
  }

  // Bytes of work space that a run needs.
  size_t size() const { return size_; }

  // Runs the pass on results, images and weights, one of which it writes. `before` has just run on the same results, in
  // a work space that is large enough for both.
  void run(const std::array<float*, 3>& data, const Convolution* before = nullptr) {
    char* const shared = space().of(size_);
    std::array<dnnl_exec_arg_t, 4> arguments;
    for (int k = 0; k < 3; ++k) {
      Slot& slot = slots_[k];
      check(dnnl_memory_set_data_handle(slot.ours, data[k]), "a memory");
      if (slot.reorder != nullptr) {
        check(dnnl_memory_set_data_handle(slot.theirs, shared + slot.place), "a memory");
        const bool there = k == 0 && before != nullptr && has_results_of(*before);
        if (!slot.written && !there) move(slot, slot.ours, slot.theirs);
      }
      arguments[k] = {slot.argument, slot.theirs};
    }
    check(dnnl_memory_set_data_handle(scratch_, shared + scratch_place_), "a memory");
    arguments[3] = {onednn::scratchpad, scratch_};
    execute(primitive_, arguments);
    for (Slot& slot : slots_)
      if (slot.written && slot.reorder != nullptr) move(slot, slot.theirs, slot.ours);
  }

 private:
  static dnnl_primitive_desc* choose(const Shape& shape) {
    const auto *const images = any(shape.images), *const weights = any(shape.weights);
    const auto* const results = any(shape.results);
    const dnnl_dims strides{shape.stride, shape.stride}, dilations{}, before{shape.padding, shape.padding};
    dnnl_dims after{};  // negative padding skips the input's remainder
    for (int k = 0; k < 2; ++k)
      after[k] = (shape.results[2 + k] - 1) * shape.stride + shape.weights[2 + k] - shape.images[2 + k] - shape.padding;
    auto& [engine, stream, attributes] = library();
    dnnl_primitive_desc *made = nullptr, *hint = nullptr;
    check(dnnl_convolution_forward_primitive_desc_create(&hint, engine, onednn::forward_training, onednn::direct, images,
                                                         weights, nullptr, results, strides, dilations, before, after,
                                                         attributes),
          "a convolution");
    if (shape.pass == forward) return hint;
    if (shape.pass == backward_images)
      check(dnnl_convolution_backward_data_primitive_desc_create(&made, engine, onednn::direct, images, weights, results,
                                                                 strides, dilations, before, after, hint, attributes),
            "a convolution's gradient");
    else
      check(dnnl_convolution_backward_weights_primitive_desc_create(&made, engine, onednn::direct, images, weights,
                                                                    nullptr, results, strides, dilations, before, after,
                                                                    hint, attributes),
            "a convolution's gradient");
    return made;
  }

  // Returns whether `other` left the same reordered results; they come first in the work space for both.
  bool has_results_of(const Convolution& other) const {
    const Slot &mine = slots_[0], &theirs = other.slots_[0];
    return theirs.reorder != nullptr && dnnl_memory_desc_equal(mine.form, theirs.form) != 0;
  }

  Slot slot(const dnnl_primitive_desc* chosen, int argument, bool written, dnnl_memory_desc* ours) {
    const auto* theirs = dnnl_primitive_desc_query_md(chosen, onednn::of_argument, argument);
    Slot made{argument, written, theirs, memory(ours)};
    made.theirs = made.ours;
    if (!dnnl_memory_desc_equal(ours, theirs)) {
      auto* const engine = library().engine;
      dnnl_primitive_desc* way = nullptr;
      check(dnnl_reorder_primitive_desc_create(&way, written ? theirs : ours, engine, written ? ours : theirs, engine,
                                               nullptr),
            "a reorder");
      made.theirs = memory(theirs);
      made.reorder = primitive(way);
      made.place = reserve(dnnl_memory_desc_get_size(theirs));
    }
    return made;
  }

  size_t reserve(size_t bytes) {
    const size_t place = size_;
    size_ += (bytes + 4095) / 4096 * 4096 + 4096;
    return place;
  }

  static void move(const Slot& slot, dnnl_memory* from, dnnl_memory* to) {
    execute<2>(slot.reorder, {{{onednn::source, from}, {onednn::destination, to}}});
  }

  template <size_t count>
  static void execute(dnnl_primitive* what, const std::array<dnnl_exec_arg_t, count>& arguments) {
    check(dnnl_primitive_execute(what, library().stream, count, arguments.data()), "running");
    check(dnnl_stream_wait(library().stream), "waiting");
  }

  dnnl_primitive* primitive_ = nullptr;
  std::array<Slot, 3> slots_{};  // results, images, weights
  dnnl_memory* scratch_ = nullptr;
  size_t scratch_place_ = 0, size_ = 0;
};

Dims dims(const Call& call, int k) {
  require(call.ranks[k] == 4, "a tensor without 4 axes");
  const int64_t* const sizes = call.shapes[k];
  return {sizes[0], sizes[1], sizes[2], sizes[3]};
}

Dims results_of(const Shape& shape) {
  require(shape.stride > 0, "a stride below 1");
  const auto slid = [&](int axis) {
    return (shape.images[axis] + 2 * shape.padding - shape.weights[axis]) / shape.stride + 1;
  };
  return {shape.images[0], shape.weights[0], slid(2), slid(3)};
}

// Returns the cached primitive for the shapes of these three tensors, creating it if necessary.
Convolution& convolution_of(const Call& call, Pass pass, int results, int images, int weights, int form) {
  const int* const settings = call.integers(form);
  const Shape shape{pass, dims(call, images), dims(call, weights), dims(call, results), settings[0], settings[1]};
  require(shape.results == results_of(shape), "results that images and weights do not give");
  static std::map<Shape, std::unique_ptr<Convolution>> made;
  auto& convolution = made[shape];
  if (convolution == nullptr) convolution = std::make_unique<Convolution>(shape);
  return *convolution;
}

// (images, weights, form) -> results
void results(const Call& call) {
  convolution_of(call, forward, 3, 0, 1, 2).run({call.floats(3), call.floats(0), call.floats(1)});
}

// (images, weights, gradient of the results, form) -> gradient of the images
void images(const Call& call) {
  convolution_of(call, backward_images, 2, 4, 1, 3).run({call.floats(2), call.floats(4), call.floats(1)});
}

// (images, weights, gradient of the results, form) -> gradient of the weights
void weights(const Call& call) {
  convolution_of(call, backward_weights, 2, 0, 4, 3).run({call.floats(2), call.floats(0), call.floats(4)});
}

// (images, weights, gradient of the results, form) -> both gradients, reordering the results' gradient only once
void images_and_weights(const Call& call) {
  auto& of_images = convolution_of(call, backward_images, 2, 4, 1, 3);
  auto& of_weights = convolution_of(call, backward_weights, 2, 0, 5, 3);
  space().of(std::max(of_images.size(), of_weights.size()));
  of_images.run({call.floats(2), call.floats(4), call.floats(1)});
  of_weights.run({call.floats(2), call.floats(0), call.floats(5)}, &of_images);
}

}  // namespace

OPERATOR(convolution, 4, results)
OPERATOR(convolution_images, 5, images)
OPERATOR(convolution_weights, 5, weights)
OPERATOR(convolution_gradients, 6, images_and_weights)
