#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/file.h"

namespace mnist_train::launch {

enum class Phase : std::uint32_t {
  kStarting,
  kRendezvous,
  kLoadingData,
  kLoadingWeights,
  kTraining,
  kEvaluation,
  kSaving,
  kFinished,
};

/// The operation of all ranks that a rank waits in, or its GPU.
enum class Wait : std::uint32_t {
  kNothing,
  kAllReduce,
  kBroadcast,
  kTextExchange,
  kSampleExchange,
  kAveraging,
  kBackward,  // with averaging in it
  kDevice,    // its GPU, which may wait for those of others
};

/// Returns the operation's name for messages, such as "all-reduce".
const char* wait_name(Wait wait);

/// The progress of one rank, in memory that it shares with its launcher. Lock-free: the rank
/// writes, the launcher reads. Each rank has its own cache line, so that ranks do not slow each
/// other.
struct alignas(64) RankStatus {
  std::atomic<Phase> phase{Phase::kStarting};
  std::atomic<Wait> wait{Wait::kNothing};
  std::atomic<std::int64_t> epoch{0};
  std::atomic<std::int64_t> step{0};   // of the run
  std::atomic<std::int64_t> batch{0};  // of an evaluation, from 1
  std::atomic<double> updated_s{0};    // CLOCK_MONOTONIC
  std::atomic<double> stepped_s{0};    // total time of training steps
  std::atomic<double> waited_s{0};     // of that, waiting for other ranks
  std::atomic<std::int64_t> waits{0};  // begun or ended
};

/// One RankStatus for each local rank, in a memory file that the launcher creates and its ranks
/// inherit.
class StatusBoard {
 public:
  /// Creates a board for `ranks` ranks. Throws Error(kRunFailed).
  static StatusBoard create(int ranks);
  /// Maps the board of an inherited descriptor, or creates a private one if `fd` is -1 because
  /// another launcher started this rank.
  static StatusBoard attach(int fd, int ranks);

  int fd() const { return fd_.get(); }
  RankStatus& of(int local_rank) { return statuses_[local_rank]; }
  const RankStatus& of(int local_rank) const { return statuses_[local_rank]; }

 private:
  StatusBoard(UniqueFd fd, int ranks, bool is_new);

  UniqueFd fd_;
  std::shared_ptr<std::uint8_t> memory_;
  RankStatus* statuses_ = nullptr;  // in memory_
};

/// Records the rank's progress. Must be called at least once in every step and evaluation batch.
void update(RankStatus& status, Phase phase, std::int64_t epoch, std::int64_t step,
            std::int64_t batch = 0);

/// Adds the time of a training step.
void note_step(RankStatus& status, double seconds);

/// Returns the rank's progress for messages: "step 120 (epoch 2)", "the evaluation of epoch 2,
/// batch 7", "rendezvous".
std::string describe(const RankStatus& status);

/// Shows a wait on the board during its lifetime.
class WaitScope {
 public:
  /// A no-op if `status` is null.
  WaitScope(RankStatus* status, Wait wait);
  WaitScope(const WaitScope&) = delete;
  WaitScope& operator=(const WaitScope&) = delete;
  ~WaitScope();

 private:
  RankStatus* status_;
  Wait own_;
  Wait before_ = Wait::kNothing;
  double begin_s_ = 0;
};

}  // namespace mnist_train::launch
