// Arrays of plain numbers that grow without being set to zero.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>

namespace jaxgnn {

template <typename T>
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        capacity_(std::exchange(other.capacity_, 0)) {}
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { std::free(data_); }

  T* data() { return data_; }
  const T* data() const { return data_; }
  int64_t size() const { return size_; }
  T& operator[](int64_t i) { return data_[i]; }
  const T& operator[](int64_t i) const { return data_[i]; }

  // Makes room for `count` more entries, and returns where they begin; `Add` says how many are
  // used.
  T* Reserve(int64_t count) {
    if (size_ + count > capacity_) Allocate(std::max(size_ + count, 2 * capacity_));
    return data_ + size_;
  }
  void Add(int64_t count) { size_ += count; }
  void Push(T value) {
    *Reserve(1) = value;
    ++size_;
  }
  // New entries are not set.
  void Resize(int64_t size) {
    if (size > capacity_) Allocate(size);
    size_ = size;
  }

 private:
  void Allocate(int64_t capacity) {
    void* data = std::realloc(data_, std::max<int64_t>(capacity, 1) * sizeof(T));
    if (data == nullptr) throw std::bad_alloc();
    data_ = static_cast<T*>(data);
    capacity_ = capacity;
  }

  T* data_ = nullptr;
  int64_t size_ = 0, capacity_ = 0;
};

}  // namespace jaxgnn
