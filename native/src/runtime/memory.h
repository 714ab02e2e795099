// Address space whose memory is committed when it is first written.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

namespace quire {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kCacheLine = 64;

inline size_t round_up(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Maximum memory of all reservations of this library together.
inline std::atomic<int64_t> all_reserved_bytes{0};

// An anonymous mapping that is aligned to a huge page and initially zero. The object owns it.
class Reservation {
 public:
  explicit Reservation(size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    mapped_ = round_up(bytes, kHugePage) + kHugePage;
    base_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base_ == MAP_FAILED) {
      base_ = nullptr;
      throw std::bad_alloc();
    }
    const uintptr_t aligned = round_up(reinterpret_cast<uintptr_t>(base_), kHugePage);
    data_ = reinterpret_cast<uint8_t*>(aligned);
    madvise(data_, round_up(bytes, kHugePage), MADV_HUGEPAGE);
    all_reserved_bytes += most_bytes();
  }
  // A mapping of a file that other processes map too.
  Reservation(size_t bytes, int fd, int64_t offset) : bytes_(bytes) {
    if (bytes == 0) return;
    mapped_ = bytes;
    base_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, offset);
    if (base_ == MAP_FAILED) {
      base_ = nullptr;
      throw std::bad_alloc();
    }
    data_ = static_cast<uint8_t*>(base_);
    all_reserved_bytes += most_bytes();
  }
  ~Reservation() {
    if (base_ == nullptr) return;
    munmap(base_, mapped_);
    all_reserved_bytes -= most_bytes();
  }
  Reservation(Reservation&& other) noexcept
      : base_(other.base_), data_(other.data_), mapped_(other.mapped_), bytes_(other.bytes_) {
    other.base_ = nullptr;
  }
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  // Returns the memory to the system and keeps the addresses, which then read as zeros.
  void discard() {
    if (base_ != nullptr) madvise(data_, round_up(bytes_, kHugePage), MADV_DONTNEED);
  }

  uint8_t* data() const { return data_; }
  size_t size() const { return bytes_; }
  // The memory that the mapping takes when all of it has been written: whole huge pages.
  int64_t most_bytes() const { return static_cast<int64_t>(round_up(bytes_, kHugePage)); }

 private:
  void* base_ = nullptr;
  uint8_t* data_ = nullptr;
  size_t mapped_ = 0;
  size_t bytes_;
};

}  // namespace quire
