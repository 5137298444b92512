#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>

#include "support/fake_gpu/device.h"

namespace mnist_train::fake_gpu {

inline constexpr int kMaxRanks = 16;

struct SharedHeader;

/// A part of a message between two ranks, which lies in memory that both share until the receiver
/// has taken it.
struct MessageSlot {
  static constexpr std::size_t kCapacity_bytes = 1 << 20;

  std::atomic<std::size_t> waiting{0};  // bytes of `part`; 0: the slot is free
  std::size_t message = 0;              // bytes of the whole message
  std::byte part[kCapacity_bytes];
};

/// A communicator of NCCL between processes of one machine. Its memory is a file without a name,
/// which the process that makes the unique id keeps open until all ranks have mapped it, so that
/// nothing is left of it whatever ends them.
///
/// What it does runs on the ranks' streams and waits for the other ranks there, as NCCL's kernels
/// do: a lost rank keeps the streams of the others waiting until they abort.
class Communicator {
 public:
  /// Makes the file, and the id by which other processes find it.
  static ncclResult_t make_unique_id(ncclUniqueId& id);

  /// Waits until all ranks have joined. Returns null if they cannot, and sets `result`; that
  /// includes two ranks on one device, unless NCCL_HOSTID says that their hosts differ.
  static std::shared_ptr<Communicator> join(const ncclUniqueId& id, int rank, int size,
                                            ncclResult_t& result);

  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  ~Communicator();

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Ends all waits; later operations do nothing.
  void abort() { aborted_ = true; }
  bool aborted() const { return aborted_; }

  /// Waits until all ranks call it. Returns false when this rank has aborted.
  bool barrier();

  using UsePart = std::function<void(std::size_t offset, std::size_t bytes)>;
  /// Shows the `bytes` at `from` to all ranks, a part at a time: `use` finds those of each rank at
  /// `shown(rank)`. Null for a rank that has nothing to show. All ranks must call it, with the same
  /// number of bytes.
  void exchange(const std::byte* from, std::size_t bytes, const UsePart& use);
  /// Returns the bytes that a rank shows, for `use` of `exchange`.
  const std::byte* shown(int rank) const;

  MessageSlot& slot(int from_rank, int to_rank);

 private:
  Communicator(int rank, int size, std::byte* memory);

  bool is_on_device_of_another();

  const int rank_;
  const int size_;
  std::byte* memory_;
  SharedHeader& header_;
  std::atomic<bool> aborted_{false};
};

/// Waits a little for another process: shortly at first, longer when it takes long.
class Backoff {
 public:
  void pause();

 private:
  int pauses_ = 0;
};

}  // namespace mnist_train::fake_gpu
