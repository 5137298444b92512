#include "support/fake_gpu/pinned_memory.h"

#include <cstdlib>
#include <map>
#include <mutex>

namespace mnist_train::fake_gpu {

namespace {

constexpr std::size_t kPage_bytes = 4096;

struct PinnedBlocks {
  std::mutex mutex;
  std::map<const std::byte*, std::size_t> bytes;  // by where a block begins
};

PinnedBlocks& pinned_blocks() {
  static auto& blocks = *new PinnedBlocks();
  return blocks;
}

}  // namespace

void* allocate_pinned(std::size_t bytes) {
  const std::size_t whole_pages = (bytes / kPage_bytes + 1) * kPage_bytes;
  void* memory = std::aligned_alloc(kPage_bytes, whole_pages);
  if (memory != nullptr) register_pinned(memory, bytes);
  return memory;
}

bool release_pinned(void* address) {
  if (!unregister_pinned(address)) return false;
  std::free(address);
  return true;
}

void register_pinned(void* address, std::size_t bytes) {
  PinnedBlocks& blocks = pinned_blocks();
  const std::lock_guard lock(blocks.mutex);
  blocks.bytes[static_cast<const std::byte*>(address)] = bytes;
}

bool unregister_pinned(void* address) {
  PinnedBlocks& blocks = pinned_blocks();
  const std::lock_guard lock(blocks.mutex);
  return blocks.bytes.erase(static_cast<const std::byte*>(address)) == 1;
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

}  // namespace mnist_train::fake_gpu
