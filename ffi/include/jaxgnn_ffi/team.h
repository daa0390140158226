// Threads that run several parallel loops, one after the other, outside of XLA.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace jaxgnn {

class Team {
 public:
  // The caller is one of the threads. If the system has fewer, those there are do all the work.
  explicit Team(int threads) : threads_(threads) {}

  ~Team() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ends_ = true;
    }
    started_.notify_all();
    for (std::thread& helper : helpers_) helper.join();
  }

  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int threads() const { return threads_; }

  // Calls `body(thread, task)` for each task in [0, tasks), in any order, and returns when all have
  // run; `thread` is in [0, threads()). Rethrows the first exception.
  template <typename Body>
  void For(int64_t tasks, const Body& body) {
    const auto run = [](const void* body, int thread, int64_t task) {
      (*static_cast<const Body*>(body))(thread, task);
    };
    Run({run, &body, tasks});
  }

 private:
  struct Loop {
    void (*run)(const void*, int, int64_t);
    const void* body;
    int64_t tasks;
  };

  void Run(const Loop& loop) {
    if (loop.tasks > 1) StartHelpers();
    if (loop.tasks <= 1 || helpers_.empty()) {
      for (int64_t task = 0; task < loop.tasks; ++task) loop.run(loop.body, 0, task);
      return;
    }
    {
      std::lock_guard<std::mutex> lock(mutex_);
      loop_ = loop;
      next_ = 0;
      busy_ = static_cast<int>(helpers_.size());
      failure_ = nullptr;
      ++number_;
    }
    started_.notify_all();
    TakeTasks(loop, 0);
    std::unique_lock<std::mutex> lock(mutex_);
    finished_.wait(lock, [&] { return busy_ == 0; });
    if (failure_) std::rethrow_exception(failure_);
  }

  void StartHelpers() {
    if (!helpers_.empty()) return;
    try {
      for (int thread = 1; thread < threads_; ++thread) {
        helpers_.emplace_back([this, thread, seen = number_] { Help(thread, seen); });
      }
    } catch (const std::system_error&) {
      threads_ = static_cast<int>(helpers_.size()) + 1;
    }
  }

  void Help(int thread, int64_t seen) {
    for (;;) {
      Loop loop;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        started_.wait(lock, [&] { return ends_ || number_ != seen; });
        if (ends_) return;
        seen = number_;
        loop = loop_;
      }
      TakeTasks(loop, thread);
      std::lock_guard<std::mutex> lock(mutex_);
      if (--busy_ == 0) finished_.notify_one();
    }
  }

  void TakeTasks(const Loop& loop, int thread) {
    try {
      for (int64_t task; (task = next_.fetch_add(1)) < loop.tasks;) {
        loop.run(loop.body, thread, task);
      }
    } catch (...) {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
    }
  }

  int threads_;
  std::vector<std::thread> helpers_;
  std::mutex mutex_;
  std::condition_variable started_, finished_;
  std::atomic<int64_t> next_{0};
  Loop loop_{};
  int64_t number_ = 0;
  int busy_ = 0;
  bool ends_ = false;
  std::exception_ptr failure_;
};

}  // namespace jaxgnn
