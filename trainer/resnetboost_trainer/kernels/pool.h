// Thread pool shared by all operators: as many threads as MindSpore's own, for one operator at a time.
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "onednn.h"

class Pool final : public dnnl::threadpool_interop::threadpool_iface {
 public:
  explicit Pool(int threads);

  int get_num_threads() const override { return threads_; }
  bool get_in_parallel() const override;
  uint64_t get_flags() const override { return 0; }

  // Runs body(i, count) for each i below count, in any order on any thread, and waits for all. What a body writes must
  // depend on i and count only. A nested call runs its bodies sequentially.
  void parallel_for(int count, const std::function<void(int, int)>& body) override;

 private:
  void work();
  void take();

  int threads_;  // those that could be started, plus the caller's
  const int owner_;  // a forked child has no threads
  const std::function<void(int, int)>* body_ = nullptr;
  int count_ = 0;
  std::atomic<int> next_{0}, busy_{0};
  std::atomic<uint32_t> round_{0};
};

// Returns the process's pool; the first call sets its number of threads.
Pool& pool(int threads = 1);
