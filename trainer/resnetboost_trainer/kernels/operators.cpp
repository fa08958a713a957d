// Entry points that library.py calls before it uses this library.
#include "operators.h"

#include "onednn.h"
#include "pool.h"

std::mutex& turn() {
  static auto* const one = new std::mutex;  // never destroyed: graphs may still run while the process exits
  return *one;
}

// Returns the SHA-256 of the sources this library was built from.
EXPORTED const char* resnetboost_sources() { return RESNETBOOST_SOURCES; }

// Starts the threads, once. Returns 0 if oneDNN's version is supported: up to 3.10, which MindSpore 2.10 contains, with
// an external thread pool.
EXPORTED int resnetboost_begin(int threads) {
  pool(threads);
  const dnnl_version_t& is = *dnnl_version();
  return is.major == 3 && is.minor <= 10 && is.cpu_runtime == onednn::threadpool_runtime ? 0 : 1;
}
