// Parallel loops on XLA's own thread pool.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>

#include "xla/ffi/api/ffi.h"

namespace jaxgnn {

// Calls `run(body, task)` for each task in [0, tasks), in any order, and returns when all have run.
// What the first of those that fail throws, it throws then: only now does nobody run `body` any
// more.
//
// Safe on a thread of the pool itself: the caller takes tasks as the helpers do, so it never waits
// for a helper that has not started. A helper that starts late finds nothing left and touches
// nothing but the shared counters, which it keeps alive.
inline void RunTasks(xla::ffi::ThreadPool pool, int64_t tasks, void (*run)(const void*, int64_t),
                     const void* body) {
  struct Progress {
    std::atomic<int64_t> next{0};
    std::atomic<int64_t> done{0};
    std::mutex mutex;
    std::condition_variable all_done;
    std::exception_ptr failure;
  };
  auto progress = std::make_shared<Progress>();
  auto take_tasks = [progress, tasks, run, body] {
    for (int64_t task; (task = progress->next.fetch_add(1)) < tasks;) {
      try {
        run(body, task);
      } catch (...) {
        std::lock_guard<std::mutex> lock(progress->mutex);
        if (!progress->failure) progress->failure = std::current_exception();
      }
      if (progress->done.fetch_add(1) + 1 == tasks) {
        std::lock_guard<std::mutex> lock(progress->mutex);
        progress->all_done.notify_all();
      }
    }
  };
  const int64_t helpers = std::min<int64_t>(pool.num_threads(), tasks) - 1;
  for (int64_t i = 0; i < helpers; ++i) {
    auto helper = take_tasks;
    pool.Schedule(std::move(helper));
  }
  take_tasks();
  std::unique_lock<std::mutex> lock(progress->mutex);
  progress->all_done.wait(lock, [&] { return progress->done.load() >= tasks; });
  if (progress->failure) std::rethrow_exception(progress->failure);
}

// Calls `body(task)` for each task; see `RunTasks`, which is compiled once for all bodies.
template <typename Body>
void ParallelFor(xla::ffi::ThreadPool pool, int64_t tasks, const Body& body) {
  const auto run = [](const void* body, int64_t task) { (*static_cast<const Body*>(body))(task); };
  RunTasks(pool, tasks, run, &body);
}

// In place of a pool, where the caller is itself one of many tasks.
struct OneThread {};

template <typename Body>
void ParallelFor(OneThread, int64_t tasks, const Body& body) {
  for (int64_t task = 0; task < tasks; ++task) body(task);
}

}  // namespace jaxgnn
