// Convolution's operators, and the class behind them. `form` is int32 [stride, padding].
#include "convolution.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "operators.h"
#include "pool.h"
#include "space.h"

namespace {

void check(int status, const char* what) {
  if (status != 0) throw std::runtime_error(std::string("oneDNN: ") + what + " failed with " + std::to_string(status));
}

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

// Operators share it, one at a time.
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

// Blocks of channels innermost; the compiler of oneDNN's primitives then must use them.
dnnl_memory_desc* in_blocks(const Dims& dims) {
  const dnnl_dims sizes{dims[0], dims[1], dims[2], dims[3]};
  dnnl_memory_desc* made = nullptr;
  const char* const tag = block() == 16 ? "aBcd16b" : "aBcd8b";
  check(dnnl_memory_desc_create_with_string_tag(&made, 4, sizes, onednn::f32, tag), "a description");
  return made;
}

dnnl_memory_desc* any(const Dims& dims) {
  const dnnl_dims sizes{dims[0], dims[1], dims[2], dims[3]};
  dnnl_memory_desc* made = nullptr;
  check(dnnl_memory_desc_create_with_tag(&made, 4, sizes, onednn::f32, onednn::any), "a description");
  return made;
}

// Weights (o, c, k, k) with oneDNN's additional axis for groups, if there are several; dense, or in any format.
dnnl_memory_desc* grouped(const Dims& dims, int64_t groups, bool dense_ones) {
  if (groups == 1) return dense_ones ? dense(dims) : any(dims);
  const int64_t pixels = dims[2] * dims[3], outputs = dims[0] / groups;
  const dnnl_dims sizes{groups, outputs, dims[1], dims[2], dims[3]};
  const dnnl_dims strides{outputs * dims[1] * pixels, dims[1] * pixels, pixels, dims[3], 1};
  dnnl_memory_desc* made = nullptr;
  check(dense_ones ? dnnl_memory_desc_create_with_strides(&made, 5, sizes, onednn::f32, strides)
                   : dnnl_memory_desc_create_with_tag(&made, 5, sizes, onednn::f32, onednn::any),
        "a description");
  return made;
}

Merging merging_of(const ConvolutionShape& shape) {
  const int64_t groups = shape.groups(), inputs = shape.weights[1], outputs = shape.weights[0] / groups;
  if (groups > 1 && block() > inputs && block() % inputs == 0) {
    const int64_t of = block() / inputs;
    if (groups % of == 0 && of * outputs % block() == 0) return {of, groups / of};
  }
  return {1, groups};
}

Dims merged(const Dims& weights, const Merging& merging) {
  return {weights[0], weights[1] * merging.of, weights[2], weights[3]};
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

dnnl_memory_desc* own(const Dims& dims, Layout layout) { return layout == plain ? dense(dims) : in_blocks(dims); }

dnnl_memory_desc* wanted(const Dims& dims, Layout layout) { return layout == plain ? any(dims) : in_blocks(dims); }

// One number for each of the channels.
dnnl_memory_desc* by_channel(int64_t channels) { return dense({1, channels, 1, 1}); }

// Post-operations in the order of their arguments: 0 scale, 1 shift, 2 the images that are added, then relu. (oneDNN's
// own sum has a fast form only before all others.)
dnnl_primitive_attr* attributes_of(const ConvolutionShape& shape) {
  const auto [scales, adds, rectifies] = shape.epilogue;
  if (!scales) return library().attributes;
  dnnl_post_ops* after = nullptr;
  dnnl_primitive_attr* made = nullptr;
  check(dnnl_post_ops_create(&after), "post-operations");
  const auto* const vector = by_channel(shape.weights[0]);
  check(dnnl_post_ops_append_binary(after, onednn::multiply, vector), "a scale");
  check(dnnl_post_ops_append_binary(after, onednn::add, vector), "a shift");
  if (adds) check(dnnl_post_ops_append_binary(after, onednn::add, own(shape.results, shape.results_layout)), "a sum");
  // A slope of 0 would turn NaN into 0.
  if (rectifies) check(dnnl_post_ops_append_eltwise(after, onednn::relu, 1e-30f, 0), "relu");
  check(dnnl_primitive_attr_create(&made), "attributes");
  check(dnnl_primitive_attr_set_scratchpad_mode(made, onednn::user), "attributes");
  check(dnnl_primitive_attr_set_post_ops(made, after), "attributes");
  return made;
}

// The convolution with images and results in these formats.
dnnl_primitive_desc* described(const ConvolutionShape& shape, const dnnl_memory_desc* images,
                               const dnnl_memory_desc* results) {
  const Merging merging = merging_of(shape);
  const auto* const weights = grouped(merged(shape.weights, merging), merging.groups, false);
  const dnnl_dims strides{shape.stride, shape.stride}, dilations{}, before{shape.padding, shape.padding};
  dnnl_dims after{};  // negative padding skips the input's remainder
  for (int k = 0; k < 2; ++k)
    after[k] = (shape.results[2 + k] - 1) * shape.stride + shape.weights[2 + k] - shape.images[2 + k] - shape.padding;
  auto* const engine = library().engine;
  auto* const attributes = attributes_of(shape);
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

// True of oneDNN's plain loops, which take fifty times as long as its other implementations.
bool is_reference(const dnnl_primitive_desc* description) {
  const char* name = nullptr;
  check(dnnl_primitive_desc_query(description, onednn::implementation, 0, static_cast<void*>(&name)), "a name");
  return std::string_view(name).starts_with("ref");
}

// oneDNN has no fast kernel of some shapes in blocks, such as the weights' gradient of planes of 2x2 on AVX2. It has one
// in a format of its choice, which is worth reordering to.
dnnl_primitive_desc* choose(const ConvolutionShape& shape) {
  auto* const made =
      described(shape, wanted(shape.images, shape.images_layout), wanted(shape.results, shape.results_layout));
  return is_reference(made) ? described(shape, any(shape.images), any(shape.results)) : made;
}

template <typename Arguments>
void execute(dnnl_primitive* what, const Arguments& arguments) {
  check(dnnl_primitive_execute(what, library().stream, static_cast<int>(arguments.size()), arguments.data()), "running");
  check(dnnl_stream_wait(library().stream), "waiting");
}

void move(const Slot& slot, dnnl_memory* from, dnnl_memory* to) {
  execute(slot.reorder, std::array<dnnl_exec_arg_t, 2>{{{onednn::source, from}, {onednn::destination, to}}});
}

void place(dnnl_memory* where, const void* data) {
  check(dnnl_memory_set_data_handle(where, const_cast<void*>(data)), "a memory");
}

}  // namespace

int block() {
  static const int channels = [] {
    const int isa = dnnl_get_effective_cpu_isa();
    if ((isa & onednn::avx512_core) == onednn::avx512_core) return 16;
    return (isa & onednn::avx2) == onednn::avx2 ? 8 : 0;
  }();
  return channels;
}

Convolution::Convolution(const ConvolutionShape& shape) {
  const Concurrency as_many_as_the_pool(pool().get_num_threads());
  weights_ = shape.weights;
  merging_ = merging_of(shape);
  const Dims whole = merged(weights_, merging_);
  auto* chosen = choose(shape);
  primitive_ = primitive(chosen);
  const int images = shape.pass == backward_images ? onednn::source_gradient : onednn::source;
  const int weights = shape.pass == backward_weights ? onednn::weights_gradient : onednn::weights;
  const int results = shape.pass == forward ? onednn::destination : onednn::destination_gradient;
  slots_ = {slot(chosen, results, shape.pass == forward, own(shape.results, shape.results_layout)),
            slot(chosen, images, shape.pass == backward_images, own(shape.images, shape.images_layout)),
            slot(chosen, weights, shape.pass == backward_weights, grouped(whole, merging_.groups, true))};
  if (merging_.of > 1) merged_place_ = reserve(whole[0] * whole[1] * whole[2] * whole[3] * sizeof(float));
  if (shape.epilogue.scales) operands_ = {memory(by_channel(shape.weights[0])), memory(by_channel(shape.weights[0]))};
  if (shape.epilogue.adds) operands_.push_back(memory(own(shape.results, shape.results_layout)));
  const auto* scratch = dnnl_primitive_desc_query_md(chosen, onednn::of_argument, onednn::scratchpad);
  scratch_place_ = reserve(scratch == nullptr ? 0 : dnnl_memory_desc_get_size(scratch));
  scratch_ = memory(scratch);
}

void Convolution::run(const std::array<const float*, 3>& data, const Convolution* before,
                      const std::array<const float*, 3>& operands) {
  char* const shared = space().of(size_);
  auto* const whole = reinterpret_cast<float*>(shared + merged_place_);
  if (merging_.of > 1 && !slots_[2].written) spread(data[2], whole);
  std::vector<dnnl_exec_arg_t> arguments;
  for (int k = 0; k < 3; ++k) {
    Slot& slot = slots_[k];
    place(slot.ours, k == 2 && merging_.of > 1 ? whole : data[k]);
    if (slot.reorder != nullptr) {
      place(slot.theirs, shared + slot.place);
      const bool there = k == 0 && before != nullptr && has_results_of(*before);
      if (!slot.written && !there) move(slot, slot.ours, slot.theirs);
    }
    arguments.push_back({slot.argument, slot.theirs});
  }
  for (size_t k = 0; k < operands_.size(); ++k) {
    place(operands_[k], operands[k]);
    arguments.push_back({onednn::of_post_operation * static_cast<int>(k + 1) | onednn::second_source, operands_[k]});
  }
  place(scratch_, shared + scratch_place_);
  arguments.push_back({onednn::scratchpad, scratch_});
  execute(primitive_, arguments);
  for (Slot& slot : slots_)
    if (slot.written && slot.reorder != nullptr) move(slot, slot.theirs, slot.ours);
  if (merging_.of > 1 && slots_[2].written) collect(whole, const_cast<float*>(data[2]));
}

void Convolution::spread(const float* weights, float* merged) const {
  const int64_t row = weights_[1] * weights_[2] * weights_[3], of = merging_.of;
  const int64_t outputs = weights_[0] / (merging_.groups * of);
  std::fill(merged, merged + weights_[0] * row * of, 0.0f);
  for (int64_t o = 0; o < weights_[0]; ++o)
    std::copy(weights + o * row, weights + (o + 1) * row, merged + (o * of + o / outputs % of) * row);
}

void Convolution::collect(const float* merged, float* weights) const {
  const int64_t row = weights_[1] * weights_[2] * weights_[3], of = merging_.of;
  const int64_t outputs = weights_[0] / (merging_.groups * of);
  for (int64_t o = 0; o < weights_[0]; ++o) {
    const float* const from = merged + (o * of + o / outputs % of) * row;
    std::copy(from, from + row, weights + o * row);
  }
}

// Returns whether `other` left the same reordered results; they come first in the work space for both.
bool Convolution::has_results_of(const Convolution& other) const {
  const Slot &mine = slots_[0], &theirs = other.slots_[0];
  return theirs.reorder != nullptr && dnnl_memory_desc_equal(mine.form, theirs.form) != 0;
}

Slot Convolution::slot(const dnnl_primitive_desc* chosen, int argument, bool written, dnnl_memory_desc* ours) {
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

size_t Convolution::reserve(size_t bytes) {
  const size_t place = size_;
  size_ += (bytes + 4095) / 4096 * 4096 + 4096;
  return place;
}

Dims results_of(const Dims& images, const Dims& weights, int64_t stride, int64_t padding) {
  require(stride > 0, "a stride below 1");
  require(weights[1] > 0 && images[1] % weights[1] == 0 && weights[0] % (images[1] / weights[1]) == 0,
          "weights for another number of channels");
  const auto slid = [&](int axis) { return (images[axis] + 2 * padding - weights[axis]) / stride + 1; };
  return {images[0], weights[0], slid(2), slid(3)};
}

Convolution& convolution_of(const ConvolutionShape& shape) {
  static std::map<ConvolutionShape, std::unique_ptr<Convolution>> made;
  auto& convolution = made[shape];
  if (convolution == nullptr) convolution = std::make_unique<Convolution>(shape);
  return *convolution;
}

namespace {

Dims dims(const Call& call, int k) {
  require(call.ranks[k] == 4, "a tensor without 4 axes");
  const int64_t* const sizes = call.shapes[k];
  return {sizes[0], sizes[1], sizes[2], sizes[3]};
}

Convolution& convolution_of_call(const Call& call, Pass pass, int results, int images, int weights, int form) {
  const int* const settings = call.integers(form);
  const ConvolutionShape shape{pass, dims(call, images), dims(call, weights), dims(call, results),
                               settings[0], settings[1]};
  require(shape.results == results_of(shape.images, shape.weights, shape.stride, shape.padding),
          "results that images and weights do not give");
  return convolution_of(shape);
}

// (images, weights, form) -> results
void results(const Call& call) {
  convolution_of_call(call, forward, 3, 0, 1, 2).run({call.floats(3), call.floats(0), call.floats(1)});
}

// (images, weights, gradient of the results, form) -> gradient of the images
void images(const Call& call) {
  convolution_of_call(call, backward_images, 2, 4, 1, 3).run({call.floats(2), call.floats(4), call.floats(1)});
}

// (images, weights, gradient of the results, form) -> gradient of the weights
void weights(const Call& call) {
  convolution_of_call(call, backward_weights, 2, 0, 4, 3).run({call.floats(2), call.floats(0), call.floats(4)});
}

// (images, weights, gradient of the results, form) -> both gradients, reordering the results' gradient only once
void images_and_weights(const Call& call) {
  auto& of_images = convolution_of_call(call, backward_images, 2, 4, 1, 3);
  auto& of_weights = convolution_of_call(call, backward_weights, 2, 0, 5, 3);
  space().of(std::max(of_images.size(), of_weights.size()));
  of_images.run({call.floats(2), call.floats(4), call.floats(1)});
  of_weights.run({call.floats(2), call.floats(0), call.floats(5)}, &of_images);
}

}  // namespace

OPERATOR(convolution, 4, results)
OPERATOR(convolution_images, 5, images)
OPERATOR(convolution_weights, 5, weights)
OPERATOR(convolution_gradients, 6, images_and_weights)
