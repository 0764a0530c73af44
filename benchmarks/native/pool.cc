#include "pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace onnxfuse::bench {
namespace {

constexpr std::chrono::milliseconds kSpin{1};
constexpr int kSpinsPerLook = 256;  // at the clock

void pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

class Pool {
 public:
  ~Pool() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
      generation_.fetch_add(1);
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void run(size_t threads, size_t total, void (*work)(void*, size_t), void* user) {
    const std::lock_guard<std::mutex> one_at_a_time(callers_);
    threads = std::min({threads, total, kMostThreads});
    while (threads_.size() + 1 < threads) {
      const size_t number = threads_.size() + 1;
      threads_.emplace_back([this, number, seen = generation_.load()] { serve(number, seen); });
    }
    threads_wanted_ = threads;
    total_ = total;
    work_ = work;
    user_ = user;
    next_.store(0, std::memory_order_relaxed);
    busy_.store(threads_.size(), std::memory_order_relaxed);
    generation_.fetch_add(1);
    if (sleepers_.load() != 0) {
      { const std::lock_guard<std::mutex> lock(mutex_); }  // a thread about to sleep looks again before it does
      wake_.notify_all();
    }
    take();
    while (busy_.load(std::memory_order_acquire) != 0) pause();
  }

 private:
  void take() {
    for (size_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < total_;) work_(user_, i);
  }

  void serve(size_t number, size_t seen) {
    for (;;) {
      wait_for_other_than(seen);
      seen = generation_.load();
      if (stop_) return;
      if (number < threads_wanted_) take();
      busy_.fetch_sub(1, std::memory_order_release);
    }
  }

  void wait_for_other_than(size_t seen) {
    const auto end = std::chrono::steady_clock::now() + kSpin;
    do {
      for (int i = 0; i < kSpinsPerLook; ++i) {
        if (generation_.load(std::memory_order_acquire) != seen) return;
        pause();
      }
    } while (std::chrono::steady_clock::now() < end);
    std::unique_lock<std::mutex> lock(mutex_);
    sleepers_.fetch_add(1);
    wake_.wait(lock, [&] { return generation_.load() != seen; });
    sleepers_.fetch_sub(1);
  }

  std::mutex callers_;  // held for a whole run
  std::mutex mutex_;    // of wake_
  std::condition_variable wake_;
  std::vector<std::thread> threads_;
  std::atomic<size_t> generation_{0}, sleepers_{0};
  std::atomic<bool> stop_{false};
  // The work at hand: written before generation_ changes, read after.
  size_t threads_wanted_ = 0, total_ = 0;
  void (*work_)(void*, size_t) = nullptr;
  void* user_ = nullptr;
  alignas(64) std::atomic<size_t> next_{0};
  alignas(64) std::atomic<size_t> busy_{0};
};

}  // namespace

void parallel(size_t threads, size_t total, void (*work)(void* user, size_t index), void* user) {
  if (threads <= 1 || total <= 1) {
    for (size_t i = 0; i < total; ++i) work(user, i);
    return;
  }
  static Pool pool;
  pool.run(threads, total, work, user);
}

}  // namespace onnxfuse::bench
