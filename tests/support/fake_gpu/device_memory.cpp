#include "support/fake_gpu/device_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>

#include "support/fake_gpu/device.h"
#include "support/fake_gpu/message.h"
#include "support/fake_gpu/settings.h"

namespace mnist_train::fake_gpu {

namespace {

constexpr std::size_t kAlignment_bytes = 512;
constexpr std::size_t kMaxDevices = 64;

std::byte* map(int file, std::size_t bytes, int protection) {
  void* memory = ::mmap(nullptr, bytes, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (memory != MAP_FAILED) return static_cast<std::byte*>(memory);
  say("cannot map ", bytes, " bytes as device memory");
  std::abort();
}

/// The memory of each device, null until it is first used.
std::array<std::atomic<DeviceMemory*>, kMaxDevices>& all_memory() {
  static auto& memory = *new std::array<std::atomic<DeviceMemory*>, kMaxDevices>();
  return memory;
}

const DeviceMemory* memory_with(const void* address) {
  for (int device = 0; device < device_count(); ++device) {
    const DeviceMemory* memory = all_memory().at(static_cast<std::size_t>(device));
    if (memory != nullptr && memory->contains(address)) return memory;
  }
  return nullptr;
}

}  // namespace

DeviceMemory::DeviceMemory(std::size_t size, std::size_t limit) : size_(size), limit_(limit) {
  const int file = ::memfd_create("fake-gpu-memory", MFD_CLOEXEC);
  if (file < 0 || ::ftruncate(file, static_cast<off_t>(size)) != 0) {
    say("cannot create an in-memory file of ", size, " bytes");
    std::abort();
  }
  device_ = map(file, size, PROT_NONE);
  host_ = map(file, size, PROT_READ | PROT_WRITE);
  ::close(file);
  free_[0] = size;
}

void* DeviceMemory::allocate(std::size_t bytes) {
  const std::size_t needed = (std::max<std::size_t>(bytes, 1) + kAlignment_bytes - 1) /
                             kAlignment_bytes * kAlignment_bytes;
  const std::lock_guard lock(mutex_);
  if (needed > limit_ - allocated_) return nullptr;
  const auto block = std::find_if(free_.begin(), free_.end(),
                                  [&](const auto& entry) { return entry.second >= needed; });
  if (block == free_.end()) return nullptr;
  const auto [offset, size] = *block;
  free_.erase(block);
  if (size > needed) free_[offset + needed] = size - needed;
  blocks_[offset] = needed;
  allocated_ += needed;
  return device_ + offset;
}

bool DeviceMemory::release(void* address) {
  const std::lock_guard lock(mutex_);
  const auto block = blocks_.find(offset_of(address));
  if (block == blocks_.end()) return false;
  auto [offset, size] = *block;
  blocks_.erase(block);
  allocated_ -= size;
  // Merges adjacent free blocks.
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + size) {
    size += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += size;
      return true;
    }
  }
  free_[offset] = size;
  return true;
}

bool DeviceMemory::is_allocated(const void* address, std::size_t bytes) const {
  const std::size_t begin = offset_of(address);
  const std::lock_guard lock(mutex_);
  auto block = blocks_.upper_bound(begin);
  if (block == blocks_.begin()) return false;
  --block;
  return begin + bytes <= block->first + block->second;
}

DeviceMemory& memory_of(int device) {
  static std::mutex mutex;
  std::atomic<DeviceMemory*>& memory = all_memory().at(static_cast<std::size_t>(device));
  const std::lock_guard lock(mutex);
  if (memory == nullptr) {
    const std::size_t size = device_memory_bytes();
    memory = new DeviceMemory(size, std::min(settings().limit_mb << 20, size));
  }
  return *memory;
}

bool is_valid_memory(const void* address, std::size_t bytes) {
  const DeviceMemory* memory = memory_with(address);
  return memory == nullptr || memory->is_allocated(address, bytes);
}

int device_of(const void* address) {
  const DeviceMemory* memory = memory_with(address);
  for (int device = 0; memory != nullptr && device < device_count(); ++device) {
    if (all_memory().at(static_cast<std::size_t>(device)) == memory) return device;
  }
  return -1;
}

void* host_address(const void* address) {
  const DeviceMemory* memory = memory_with(address);
  return memory == nullptr ? const_cast<void*>(address) : memory->host_address(address);
}

namespace {

constexpr std::size_t kPage_bytes = 4096;

struct PinnedBlocks {
  std::mutex mutex;
  std::map<const std::byte*, std::size_t> bytes;  // by the block's address
};

PinnedBlocks& pinned_blocks() {
  static auto& blocks = *new PinnedBlocks();
  return blocks;
}

}  // namespace

void* allocate_pinned(std::size_t bytes) {
  const std::size_t whole_pages = (bytes / kPage_bytes + 1) * kPage_bytes;
  void* memory = std::aligned_alloc(kPage_bytes, whole_pages);
  if (memory == nullptr) return nullptr;
  PinnedBlocks& blocks = pinned_blocks();
  const std::lock_guard lock(blocks.mutex);
  blocks.bytes[static_cast<const std::byte*>(memory)] = bytes;
  return memory;
}

bool release_pinned(void* address) {
  PinnedBlocks& blocks = pinned_blocks();
  const std::lock_guard lock(blocks.mutex);
  if (blocks.bytes.erase(static_cast<const std::byte*>(address)) == 0) return false;
  std::free(address);
  return true;
}

bool is_pinned(const void* address) {
  const auto* byte = static_cast<const std::byte*>(address);
  PinnedBlocks& blocks = pinned_blocks();
  const std::lock_guard lock(blocks.mutex);
  auto block = blocks.bytes.upper_bound(byte);
  if (block == blocks.bytes.begin()) return false;
  --block;
  return byte < block->first + block->second;
}

namespace {

thread_local int device_of_thread = 0;
thread_local bool thread_has_context = false;

/// The attributes of an H100 that LibTorch queries.
constexpr std::array kAttributes{std::pair{cudaDevAttrComputeCapabilityMajor, kComputeMajor},
                                 std::pair{cudaDevAttrComputeCapabilityMinor, kComputeMinor},
                                 std::pair{cudaDevAttrMultiProcessorCount, 132},
                                 std::pair{cudaDevAttrMaxThreadsPerBlock, kMaxThreadsPerBlock},
                                 std::pair{cudaDevAttrWarpSize, 32},
                                 std::pair{cudaDevAttrMaxSharedMemoryPerBlock, 48 * 1024},
                                 std::pair{cudaDevAttrMaxSharedMemoryPerBlockOptin, 227 * 1024},
                                 std::pair{cudaDevAttrMaxSharedMemoryPerMultiprocessor, 228 * 1024},
                                 std::pair{cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
                                 std::pair{cudaDevAttrMaxBlocksPerMultiprocessor, 32},
                                 std::pair{cudaDevAttrL2CacheSize, 50 << 20},
                                 std::pair{cudaDevAttrMaxGridDimX, 2147483647},
                                 std::pair{cudaDevAttrMaxGridDimY, 65535},
                                 std::pair{cudaDevAttrMaxGridDimZ, 65535}};

}  // namespace

int device_attribute(int attribute) {
  const auto* const found = std::ranges::find_if(
      kAttributes, [&](const auto& entry) { return entry.first == attribute; });
  return found == kAttributes.end() ? 0 : found->second;
}

int resident_blocks(int block_size) {
  const int threads = device_attribute(cudaDevAttrMaxThreadsPerMultiProcessor);
  return std::max(1, threads / std::max(block_size, 1));
}

int device_count() { return static_cast<int>(visible_devices().size()); }

int current_device() { return device_of_thread; }

void set_current_device(int device) {
  device_of_thread = device;
  bind_context();
}

void bind_context() { thread_has_context = true; }

bool has_context() { return thread_has_context; }

std::size_t device_memory_bytes() { return std::size_t{8} << 30; }

}  // namespace mnist_train::fake_gpu
