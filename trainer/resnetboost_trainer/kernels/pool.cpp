#include "pool.h"

#include <unistd.h>

#include <cstdio>
#include <system_error>

namespace {

thread_local bool inside = false;

// Spins before sleep: operators follow each other within microseconds, and a thread takes longer to wake up.
constexpr int patience = 4000;

void breathe() { __builtin_ia32_pause(); }

}  // namespace

Pool::Pool(int threads) : threads_(1), owner_(getpid()) {
  try {
    for (; threads_ < threads; ++threads_) std::thread([this] { work(); }).detach();
  } catch (const std::system_error& error) {  // a container's process limit: continue with fewer threads
    std::fprintf(stderr, "resnetboost operators: %d of %d threads: %s\n", threads_, threads, error.what());
  }
}

bool Pool::get_in_parallel() const { return inside; }

void Pool::parallel_for(int count, const std::function<void(int, int)>& body) {
  if (inside || count == 1 || threads_ == 1 || getpid() != owner_) {
    const bool before = inside;
    inside = true;
    for (int i = 0; i < count; ++i) body(i, count);
    inside = before;
    return;
  }
  body_ = &body;
  count_ = count;
  next_.store(0, std::memory_order_relaxed);
  busy_.store(threads_ - 1, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  take();
  for (int spin = 0; busy_.load(std::memory_order_acquire) > 0; ++spin) {
    if (spin < patience) breathe();
    else std::this_thread::yield();  // more threads than cores
  }
}

void Pool::take() {
  inside = true;
  for (int i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) (*body_)(i, count_);
  inside = false;
}

void Pool::work() {
  for (uint32_t seen = 0;;) {
    for (int spin = 0; spin < patience && round_.load(std::memory_order_acquire) == seen; ++spin) breathe();
    round_.wait(seen, std::memory_order_acquire);
    ++seen;
    take();
    busy_.fetch_sub(1, std::memory_order_release);
  }
}

Pool& pool(int threads) {
  static Pool* const one = new Pool(threads);  // never destroyed, like its threads
  return *one;
}
