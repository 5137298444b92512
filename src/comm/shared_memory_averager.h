#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/file.h"
#include "comm/gradient_averager.h"

namespace mnist_train::comm {

/// Ranks on the CPUs of one host add up their gradients in memory that they share: each puts its
/// buffer into a slot, adds up its part of all slots in the order of the ranks, and copies the
/// parts of the others. The same bits on every rank and in every run.
///
/// A rank that waits looks for the others' processes ten times a second, so a lost one is noticed
/// at once, and gives up after the communicator's time-out.
class SharedMemoryAverager : public GradientAverager {
 public:
  /// Collective. Throws Error(kConfig) where ranks are on several hosts or compute on GPUs, and
  /// Error(kRunFailed) when the system has no shared memory left.
  SharedMemoryAverager(const Communicator& communicator, GradientBuffer buffer);

  /// Whether this strategy is possible here.
  static bool fits(const Communicator& communicator, const GradientBuffer& buffer);

  void finish() override;
  const char* name() const override { return "shared_memory"; }

 private:
  /// Each on a cache line of its own.
  struct alignas(64) RankState {
    std::atomic<std::uint32_t> arrived;  // the step whose gradients are in the slot
    std::atomic<std::uint32_t> reduced;  // the step whose part of the sum is there
    std::atomic<pid_t> pid;
  };
  using Counter = std::atomic<std::uint32_t> RankState::*;

  std::size_t slots_offset() const;
  void map_segment(int fd, std::size_t bytes);
  RankState& state(int rank) const;
  void publish(Counter counter);
  void wait_for_all(Counter counter) const;
  void require_alive(int rank) const;

  const Communicator& communicator_;
  GradientBuffer buffer_;
  std::shared_ptr<std::uint8_t> segment_;
  std::vector<UniqueFd> processes_;                // by rank
  std::atomic<std::uint32_t>* changes_ = nullptr;  // counts all publishing; what waiters sleep on
  std::vector<at::Tensor> slots_;                  // one a rank, like the buffer
  at::Tensor sum_;                                 // like the buffer
  std::uint32_t step_ = 0;
};

}  // namespace mnist_train::comm
