// Declarations of the part of oneDNN's C interface that we call (version 3, CPU, external thread pool). MindSpore's
// wheel contains the library (libdnnl.so.3) but not its headers. Names and values are the library's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

extern "C" {
struct dnnl_engine;
struct dnnl_stream;
struct dnnl_memory_desc;
struct dnnl_memory;
struct dnnl_primitive_desc;
struct dnnl_primitive;
struct dnnl_primitive_attr;
struct dnnl_post_ops;

struct dnnl_exec_arg_t {
  int arg;
  dnnl_memory* memory;
};
struct dnnl_version_t {
  int major, minor, patch;
  const char* hash;
  unsigned cpu_runtime, gpu_runtime;
};
using dnnl_dims = int64_t[12];

const dnnl_version_t* dnnl_version();
int dnnl_engine_create(dnnl_engine**, int kind, size_t index);
int dnnl_memory_desc_create_with_strides(dnnl_memory_desc**, int rank, const dnnl_dims, int type, const dnnl_dims);
int dnnl_memory_desc_create_with_tag(dnnl_memory_desc**, int rank, const dnnl_dims, int type, int tag);
int dnnl_memory_desc_create_with_string_tag(dnnl_memory_desc**, int rank, const dnnl_dims, int type, const char* tag);
int dnnl_memory_desc_equal(const dnnl_memory_desc*, const dnnl_memory_desc*);
size_t dnnl_memory_desc_get_size(const dnnl_memory_desc*);
int dnnl_memory_create(dnnl_memory**, const dnnl_memory_desc*, dnnl_engine*, void* data);
int dnnl_memory_set_data_handle(dnnl_memory*, void* data);
int dnnl_primitive_attr_create(dnnl_primitive_attr**);
int dnnl_primitive_attr_set_scratchpad_mode(dnnl_primitive_attr*, int mode);
int dnnl_primitive_attr_set_post_ops(dnnl_primitive_attr*, const dnnl_post_ops*);
int dnnl_post_ops_create(dnnl_post_ops**);
int dnnl_post_ops_append_binary(dnnl_post_ops*, int algorithm, const dnnl_memory_desc* second);
int dnnl_post_ops_append_eltwise(dnnl_post_ops*, int algorithm, float alpha, float beta);
int dnnl_convolution_forward_primitive_desc_create(
    dnnl_primitive_desc**, dnnl_engine*, int propagation, int algorithm, const dnnl_memory_desc* source,
    const dnnl_memory_desc* weights, const dnnl_memory_desc* bias, const dnnl_memory_desc* destination,
    const dnnl_dims strides, const dnnl_dims dilations, const dnnl_dims before, const dnnl_dims after,
    const dnnl_primitive_attr*);
int dnnl_convolution_backward_data_primitive_desc_create(
    dnnl_primitive_desc**, dnnl_engine*, int algorithm, const dnnl_memory_desc* source,
    const dnnl_memory_desc* weights, const dnnl_memory_desc* destination, const dnnl_dims strides,
    const dnnl_dims dilations, const dnnl_dims before, const dnnl_dims after, const dnnl_primitive_desc* forward,
    const dnnl_primitive_attr*);
int dnnl_convolution_backward_weights_primitive_desc_create(
    dnnl_primitive_desc**, dnnl_engine*, int algorithm, const dnnl_memory_desc* source,
    const dnnl_memory_desc* weights, const dnnl_memory_desc* bias, const dnnl_memory_desc* destination,
    const dnnl_dims strides, const dnnl_dims dilations, const dnnl_dims before, const dnnl_dims after,
    const dnnl_primitive_desc* forward, const dnnl_primitive_attr*);
int dnnl_reorder_primitive_desc_create(dnnl_primitive_desc**, const dnnl_memory_desc* from, dnnl_engine*,
                                       const dnnl_memory_desc* to, dnnl_engine*, const dnnl_primitive_attr*);
const dnnl_memory_desc* dnnl_primitive_desc_query_md(const dnnl_primitive_desc*, int what, int index);
int dnnl_primitive_desc_query(const dnnl_primitive_desc*, int what, int index, void* result);
int dnnl_primitive_create(dnnl_primitive**, const dnnl_primitive_desc*);
int dnnl_primitive_execute(const dnnl_primitive*, dnnl_stream*, int count, const dnnl_exec_arg_t*);
int dnnl_stream_wait(dnnl_stream*);
int dnnl_get_effective_cpu_isa();
int dnnl_threadpool_interop_set_max_concurrency(int threads);
int dnnl_threadpool_interop_get_max_concurrency(int* threads);
int dnnl_threadpool_interop_sgemm(char transposed_a, char transposed_b, int64_t rows, int64_t columns, int64_t depth,
                                  float alpha, const float* a, int64_t row_a, const float* b, int64_t row_b,
                                  float beta, float* c, int64_t row_c, void* pool);
int dnnl_threadpool_interop_stream_create(dnnl_stream**, dnnl_engine*, void* pool);
}

namespace onednn {

enum Kind { cpu = 1 };
enum Type { f32 = 3 };
enum Tag { any = 1 };
enum Propagation { forward_training = 64 };
enum Algorithm { direct = 1, relu = 0x20, add = 0x1fff0, multiply = 0x1fff1 };
enum Instructions { avx2 = 0x7, avx512_core = 0x27 };
enum Scratchpad { user = 1 };
enum Query { implementation = 8, of_argument = 255 };
enum Argument {
  source = 1,
  second_source = 2,
  destination = 17,
  weights = 33,
  scratchpad = 80,
  source_gradient = 129,
  destination_gradient = 145,
  weights_gradient = 161,
  of_post_operation = 32768,
};
constexpr unsigned threadpool_runtime = 8;

}  // namespace onednn

// The library calls these through the virtual function table, so their order is part of the interface.
namespace dnnl::threadpool_interop {
struct threadpool_iface {
  virtual int get_num_threads() const = 0;
  virtual bool get_in_parallel() const = 0;
  virtual void parallel_for(int count, const std::function<void(int, int)>& body) = 0;
  virtual uint64_t get_flags() const = 0;
  virtual ~threadpool_iface() = default;
};
}  // namespace dnnl::threadpool_interop
