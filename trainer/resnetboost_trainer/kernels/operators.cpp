// What the loader asks before it uses this library.
#include "operators.h"

#include "onednn.h"
#include "pool.h"

std::mutex& turn() {
  static auto* const one = new std::mutex;  // never destroyed: graphs may still run while a process ends
  return *one;
}

// SHA-256 of the sources this was built from.
EXPORTED const char* resnetboost_sources() { return RESNETBOOST_SOURCES; }

// Begins that many threads, once. 0 where oneDNN is one whose interface we know: 3.10 is what MindSpore 2.10 carries, on
// a thread pool of the caller's.
EXPORTED int resnetboost_begin(int threads) {
  pool(threads);
  const dnnl_version_t& is = *dnnl_version();
  return is.major == 3 && is.minor <= 10 && is.cpu_runtime == onednn::threadpool_runtime ? 0 : 1;
}
