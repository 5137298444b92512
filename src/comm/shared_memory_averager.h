#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/file.h"
#include "comm/gradient_averager.h"
#include "comm/shared_segment.h"

namespace mnist_train::comm {

/// Ranks on the CPUs of one host read each other's gradients in memory that they share. Each adds
/// up its own part of all of them, updates its part of the weights, which the ranks share as they
/// share the optimizer's state, and so nothing is copied, and nothing is computed twice. The same
/// bits in every run.
///
/// A rank that waits looks for the others' processes ten times a second, so a lost one is noticed
/// at once, and gives up after the communicator's time-out.
class SharedMemoryAverager : public GradientAverager {
 public:
  /// Collective. Moves the buffer into shared memory. Throws Error(kConfig) where ranks are on
  /// several hosts or compute on GPUs, and Error(kRunFailed) when the system has no memory left.
  SharedMemoryAverager(const Communicator& communicator, GradientBuffer buffer);

  /// Whether this strategy is possible here.
  static bool fits(const Communicator& communicator, const GradientBuffer& buffer);

  Shard owned_shard() const override { return shard_of(communicator_.rank()); }
  void move_to_shared_memory(const std::vector<at::Tensor>& state) override;
  void finish() override;
  void all_gather() override;
  void barrier() override;
  const char* name() const override { return "shared_memory"; }

 private:
  /// Each on a cache line of its own.
  struct alignas(64) RankState {
    std::atomic<std::uint32_t> meetings;  // to which the rank has come
    std::atomic<pid_t> pid;
  };

  std::size_t segment_bytes() const;
  Shard shard_of(int rank) const;
  at::Tensor gradients(int slot, int shard_of_rank) const;
  void wait_for_all() const;
  void require_alive(int rank) const;

  const Communicator& communicator_;
  at::Tensor riders_;  // the buffer's
  SharedSegment segment_;
  std::atomic<std::uint32_t>* changes_;  // counts all coming to meetings; what waiters sleep on
  RankState* ranks_;
  std::vector<UniqueFd> processes_;      // by rank
  std::vector<at::Tensor> rider_slots_;  // by rank
  std::vector<at::Tensor> slots_;        // by rank: the buffers
  std::uint32_t meetings_ = 0;
};

}  // namespace mnist_train::comm
