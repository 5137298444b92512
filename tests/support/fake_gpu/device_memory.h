#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace mnist_train::fake_gpu {

/// The memory of one device. Its pages are mapped twice: the host's accesses at the program's
/// addresses are segmentation faults, as on a GPU; the mock uses the other mapping. Pages are
/// backed by host memory from their first use on.
class DeviceMemory {
 public:
  /// The program can allocate `limit` of the `size` bytes.
  DeviceMemory(std::size_t size, std::size_t limit);
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  /// Returns a block of at least `bytes` bytes; null if no free block is large enough.
  void* allocate(std::size_t bytes);
  /// Frees a block; returns whether `address` is the beginning of one.
  bool release(void* address);

  std::size_t limit() const { return limit_; }
  std::size_t allocated() const {
    const std::lock_guard lock(mutex_);
    return allocated_;
  }

  bool contains(const void* address) const { return offset_of(address) < size_; }
  /// Returns whether these bytes are in one block.
  bool is_allocated(const void* address, std::size_t bytes) const;
  /// Returns the address at which the mock can access the memory at `address`.
  void* host_address(const void* address) const { return host_ + offset_of(address); }

 private:
  /// For addresses before this memory, the result exceeds its size.
  std::size_t offset_of(const void* address) const {
    return reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(device_);
  }

  std::size_t size_;
  std::size_t limit_;
  std::byte* device_ = nullptr;  // the program's addresses
  std::byte* host_ = nullptr;    // the mock's addresses of the same pages
  mutable std::mutex mutex_;     // for the members below
  std::size_t allocated_ = 0;
  std::map<std::size_t, std::size_t> blocks_;  // offset -> bytes
  std::map<std::size_t, std::size_t> free_;
};

/// Returns the memory of a device, which is mapped on the first call and never unmapped.
DeviceMemory& memory_of(int device);

/// Returns whether these bytes can be copied: they are in host memory or in one block of a device.
bool is_valid_memory(const void* address, std::size_t bytes);

/// Allocates host memory that counts as page-locked; returns null if there is none left.
void* allocate_pinned(std::size_t bytes);
/// Frees memory; returns whether `allocate_pinned` had allocated it.
bool release_pinned(void* address);

/// Returns whether the address is in page-locked memory. The host waits for copies of other memory.
bool is_pinned(const void* address);

}  // namespace mnist_train::fake_gpu
