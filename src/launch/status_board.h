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

/// What a rank waits for: an operation of all ranks, or its GPU.
enum class Wait : std::uint32_t {
  kNothing,
  kAllReduce,
  kBroadcast,
  kTextExchange,
  kSampleExchange,
  kAveraging,
  kBackward,  // where averaging is part of it
  kDevice,    // not for the others, but for its GPU, which may wait for theirs
};

/// Returns the operation's name for messages, such as "all-reduce".
const char* wait_name(Wait wait);

/// What one rank is doing, in memory that it shares with its launcher. Lock-free: the rank writes,
/// the launcher reads. Each has a cache line of its own, so that ranks do not slow each other.
struct alignas(64) RankStatus {
  std::atomic<std::uint32_t> phase{0};
  std::atomic<std::uint32_t> wait{0};
  std::atomic<std::int64_t> epoch{0};
  std::atomic<std::int64_t> step{0};   // of the run
  std::atomic<std::int64_t> batch{0};  // of an evaluation, from 1
  std::atomic<double> updated_s{0};    // CLOCK_MONOTONIC
  std::atomic<double> stepped_s{0};    // spent in training steps so far
  std::atomic<double> waited_s{0};     // of these, waiting for other ranks
  std::atomic<std::int64_t> waits{0};  // begun and ended so far
};

/// One RankStatus for each local rank, in an unnamed file in memory that the launcher creates and
/// its ranks inherit.
class StatusBoard {
 public:
  /// Creates a board for `ranks` ranks. Throws Error(kRunFailed).
  static StatusBoard create(int ranks);
  /// Maps the board behind an inherited descriptor, or creates a private one where `fd` is -1
  /// because the launcher is not ours.
  static StatusBoard attach(int fd, int ranks);

  int fd() const { return fd_.get(); }
  RankStatus& of(int local_rank) { return statuses_[local_rank]; }
  const RankStatus& of(int local_rank) const { return statuses_[local_rank]; }

 private:
  StatusBoard(UniqueFd fd, int ranks, bool is_new);

  UniqueFd fd_;
  std::shared_ptr<std::uint8_t> memory_;
  RankStatus* statuses_ = nullptr;  // in there
};

/// Records what the rank does now. Must be called at least once in every step and evaluation batch.
void update(RankStatus& status, Phase phase, std::int64_t epoch, std::int64_t step,
            std::int64_t batch = 0);

/// Records that a training step took so many seconds.
void note_step(RankStatus& status, double seconds);

/// Returns what the rank does, for messages: "step 120 (epoch 2)", "the evaluation of epoch 2,
/// batch 7", "rendezvous".
std::string describe(const RankStatus& status);

/// Shows on the board, for as long as it lives, what the rank waits for.
class WaitScope {
 public:
  /// `status` may be null: then nothing is shown.
  WaitScope(RankStatus* status, Wait wait);
  WaitScope(const WaitScope&) = delete;
  WaitScope& operator=(const WaitScope&) = delete;
  ~WaitScope();

 private:
  RankStatus* status_;
  Wait own_;
  std::uint32_t before_ = 0;
  double begin_s_ = 0;
};

}  // namespace mnist_train::launch
