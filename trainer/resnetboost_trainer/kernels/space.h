// Work space that grows to what was asked for: new pages for every call would take as long as the arithmetic.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

class Space {
 public:
  // Returns at least that many bytes, aligned to pages. What was returned before is invalid if they are more than ever.
  char* of(size_t bytes) {
    if (bytes > size_) {
      std::free(start_);
      size_ = 0;
      start_ = static_cast<char*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096));
      if (start_ == nullptr) throw std::bad_alloc();
      size_ = bytes;
    }
    return start_;
  }

 private:
  char* start_ = nullptr;
  size_t size_ = 0;
};
