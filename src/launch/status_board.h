#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "base/file.h"

namespace mnist_train::launch {

enum class Phase : std::uint32_t {
  kStarting,
  kRendezvous,
  kLoadingData,
  kTraining,
  kEvaluation,
  kSaving,
  kFinished,
};

const char* phase_name(Phase phase);

/// What one rank is doing, in memory that it shares with its launcher. Lock-free: a rank writes,
/// the launcher reads.
struct RankStatus {
  std::atomic<std::uint32_t> phase{0};
  std::atomic<std::int64_t> epoch{0};
  std::atomic<std::int64_t> step{0};  // of the run
  std::atomic<double> updated_s{0};   // CLOCK_MONOTONIC
};

/// One RankStatus a local rank, in an unnamed file in memory that the launcher makes and its ranks
/// inherit.
class StatusBoard {
 public:
  /// Makes a board for `ranks` ranks. Throws Error(kRunFailed).
  static StatusBoard create(int ranks);
  /// Maps the board behind an inherited descriptor; `fd` -1 (no launcher of ours) makes a private
  /// one.
  static StatusBoard attach(int fd, int ranks);

  StatusBoard(StatusBoard&& other) noexcept;
  StatusBoard(const StatusBoard&) = delete;
  StatusBoard& operator=(const StatusBoard&) = delete;
  ~StatusBoard();

  int fd() const { return fd_.get(); }
  RankStatus& of(int local_rank) { return statuses_[local_rank]; }
  const RankStatus& of(int local_rank) const { return statuses_[local_rank]; }

 private:
  StatusBoard(UniqueFd fd, int ranks, bool fresh);

  UniqueFd fd_;
  int ranks_ = 0;
  RankStatus* statuses_ = nullptr;
};

/// Says what the rank does now; called at least once a step and an evaluation batch.
void update(RankStatus& status, Phase phase, std::int64_t epoch, std::int64_t step);

/// "step 120 (epoch 2)", "evaluation of epoch 2", "rendezvous".
std::string describe(const RankStatus& status);

}  // namespace mnist_train::launch
