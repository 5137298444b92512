#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/file.h"
#include "comm/gradient_averager.h"
#include "comm/shared_segment.h"

namespace mnist_train::comm {

/// Sums gradients in memory that ranks on the CPUs of one host share. Each rank sums its slice of
/// all ranks' gradients and updates its slice of the weights, which the ranks share as they share
/// the optimizer's state, so nothing is copied and nothing is computed twice. Every run gives the
/// same bits.
///
/// A rank that waits checks the others' processes when a tenth of a second brought none of them, so
/// a lost one is noticed at once. One that hangs is noticed by whoever watches this rank's waits.
class SharedMemoryAverager : public GradientAverager {
 public:
  /// Moves the buffer into shared memory. Collective. Throws Error(kConfig) where ranks are on
  /// several hosts or compute on GPUs, and SharedMemoryError as SharedSegment does.
  SharedMemoryAverager(const Communicator& communicator, GradientBuffer buffer);

  /// Returns whether all ranks compute on the CPUs of one host, where `device` is this rank's.
  /// Collective.
  static bool fits(const Communicator& communicator, at::Device device);

  Slice owned_slice() const override { return slice_of(communicator_.rank()); }
  void move_to_shared_memory(const std::vector<at::Tensor>& state) override;
  void average() override;
  bool adds_up_late() const override { return true; }
  void all_gather() override;
  bool end_update(bool finite) override;
  const char* name() const override { return "shared_memory"; }

 private:
  /// What a rank tells the others, on a cache line of its own.
  struct alignas(64) RankState {
    std::atomic<std::uint32_t> barriers;  // that the rank has reached
    std::atomic<pid_t> pid;
    std::atomic<bool> broken;  // its slice has been updated by gradients that are not finite
  };

  GradientSum parts() const override { return parts_in(tables_, bf16_tables_); }
  bool keeps_bf16() const { return buffer_.bf16_rows.defined(); }
  std::size_t segment_bytes() const;
  Slice slice_of(int rank) const;
  at::Tensor gradients(int rank, std::int64_t row, int owner) const;
  at::Tensor own_statistics() const;
  void barrier();
  void wait_for_all() const;
  bool has_arrived(int rank) const;
  void require_no_loss() const;
  bool is_gone(int rank) const;

  const Communicator& communicator_;
  at::Tensor statistics_;  // a view of the buffer's last elements
  SharedSegment segment_;
  std::atomic<std::uint32_t>* changes_;  // counts arrivals at barriers; waiting ranks sleep on it
  RankState* ranks_;
  std::vector<UniqueFd> processes_;           // by rank
  std::vector<at::Tensor> statistics_slots_;  // by rank, [rows of a rank, statistics]
  std::vector<at::Tensor> tables_;            // by rank: the buffers' rows
  std::vector<at::Tensor> bf16_tables_;       // by rank; none where there are no such rows
  std::uint32_t barriers_ = 0;                // that this rank has reached
};

}  // namespace mnist_train::comm
