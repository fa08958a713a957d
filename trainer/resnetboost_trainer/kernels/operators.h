// Shared by all operators: MindSpore's calling convention for ahead-of-time operators, and errors as return codes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>

// Arguments of one call: inputs, then outputs, dense and row-major.
struct Call {
  int count;
  void** data;
  int* ranks;
  int64_t** shapes;
  const char** types;

  float* floats(int k) const {
    if (std::strcmp(types[k], "float32") != 0) throw std::invalid_argument("a tensor that is not float32");
    return static_cast<float*>(data[k]);
  }
  double* doubles(int k) const {
    if (std::strcmp(types[k], "float64") != 0) throw std::invalid_argument("a tensor that is not float64");
    return static_cast<double*>(data[k]);
  }
  bool same_shape(int k, int other) const {
    return ranks[k] == ranks[other] && std::equal(shapes[k], shapes[k] + ranks[k], shapes[other]);
  }
  int64_t size(int k) const {
    int64_t product = 1;
    for (int axis = 0; axis < ranks[k]; ++axis) product *= shapes[k][axis];
    return product;
  }
  const int* integers(int k) const {
    if (std::strcmp(types[k], "int32") != 0) throw std::invalid_argument("settings that are not int32");
    return static_cast<const int*>(data[k]);
  }
  const uint8_t* bytes(int k) const {
    if (std::strcmp(types[k], "uint8") != 0) throw std::invalid_argument("pixels that are not uint8");
    return static_cast<const uint8_t*>(data[k]);
  }
};

// Held by the running operator: the thread pool and the work space serve one operator at a time.
std::mutex& turn();

inline void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

// Runs an operator's body and returns 0, or logs the error and returns 1, for which MindSpore raises an exception.
template <typename Body>
int guarded(const char* name, const Call& call, int count, Body body) noexcept {
  try {
    require(call.count == count, "wrong number of tensors");
    body(call);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "resnetboost operator %s: %s\n", name, error.what());
    return 1;
  }
}

#define EXPORTED extern "C" __attribute__((visibility("default")))

// An operator that any number of threads may run at once: it uses neither the thread pool nor the work space.
#define CONCURRENT_OPERATOR(name, count, body)                                                                \
  EXPORTED int name(int tensors, void** data, int* ranks, int64_t** shapes, const char** types, void*, void*) { \
    return guarded(#name, Call{tensors, data, ranks, shapes, types}, count, body);                            \
  }

#define OPERATOR(name, count, body)                       \
  CONCURRENT_OPERATOR(name, count, [](const Call& call) { \
    const std::lock_guard<std::mutex> lock(turn());       \
    body(call);                                           \
  })
