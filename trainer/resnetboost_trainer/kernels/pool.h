// The threads that all operators share: as many as MindSpore's own, and one operator at a time.
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

  // body(i, count) for each i below count, in any order on any thread; back when all are done. What a body writes must
  // depend on i and count alone. From inside of a body it runs them one after the other.
  void parallel_for(int count, const std::function<void(int, int)>& body) override;

 private:
  void work();
  void take();

  int threads_;  // those that could be started, and the caller's
  const int owner_;  // a forked child has no threads
  const std::function<void(int, int)>* body_ = nullptr;
  int count_ = 0;
  std::atomic<int> next_{0}, busy_{0};
  std::atomic<uint32_t> round_{0};
};

// The pool of this process, of as many threads as its first caller says.
Pool& pool(int threads = 1);
