#include "launch/status_board.h"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <new>

#include "base/print.h"
#include "base/system.h"

namespace mnist_train::launch {

namespace {

const char* phase_name(Phase phase) {
  static constexpr std::array kNames{"starting", "rendezvous", "loading data", "loading weights",
                                     "training", "evaluation", "saving",       "finished"};
  return enum_name(kNames, phase, "an unknown phase");
}

std::size_t board_bytes(int ranks) { return static_cast<std::size_t>(ranks) * sizeof(RankStatus); }

}  // namespace

static_assert(std::atomic<double>::is_always_lock_free);

const char* wait_name(Wait wait) {
  static constexpr std::array kNames{"nothing",
                                     "all-reduce",
                                     "broadcast",
                                     "exchange of text",
                                     "exchange of samples",
                                     "gradient averaging",
                                     "backward and gradient averaging",
                                     "its GPU"};
  return enum_name(kNames, wait, "an unknown operation");
}

StatusBoard::StatusBoard(UniqueFd fd, int ranks, bool is_new) : fd_(std::move(fd)) {
  memory_ = map_shared(fd_.get(), board_bytes(ranks), PROT_READ | PROT_WRITE, "the status board");
  statuses_ = reinterpret_cast<RankStatus*>(memory_.get());
  if (is_new) {
    for (int rank = 0; rank < ranks; ++rank) {
      auto* status = new (&statuses_[rank]) RankStatus;
      status->updated_s = monotonic_seconds();
    }
  }
}

StatusBoard StatusBoard::create(int ranks) {
  UniqueFd fd(::memfd_create("mnist-train-status", MFD_CLOEXEC));
  if (!fd.valid() || ::ftruncate(fd.get(), static_cast<off_t>(board_bytes(ranks))) != 0) {
    throw_errno("create the status board");
  }
  return StatusBoard(std::move(fd), ranks, true);
}

StatusBoard StatusBoard::attach(int fd, int ranks) {
  return StatusBoard(UniqueFd(fd), ranks, fd < 0);
}

void update(RankStatus& status, Phase phase, std::int64_t epoch, std::int64_t step,
            std::int64_t batch) {
  status.phase.store(phase, std::memory_order_relaxed);
  status.epoch.store(epoch, std::memory_order_relaxed);
  status.step.store(step, std::memory_order_relaxed);
  status.batch.store(batch, std::memory_order_relaxed);
  status.updated_s.store(monotonic_seconds(), std::memory_order_release);
}

void note_step(RankStatus& status, double seconds) {
  status.stepped_s.store(status.stepped_s.load(std::memory_order_relaxed) + seconds,
                         std::memory_order_relaxed);
}

std::string describe(const RankStatus& status) {
  const Phase phase = status.phase;
  const std::string epoch = std::to_string(status.epoch.load());
  switch (phase) {
    case Phase::kTraining:
      return "step " + std::to_string(status.step.load()) + " (epoch " + epoch + ")";
    case Phase::kEvaluation:
      return (status.epoch.load() == 0 ? "evaluation" : "the evaluation of epoch " + epoch) +
             (status.batch.load() == 0 ? "" : ", batch " + std::to_string(status.batch.load()));
    case Phase::kSaving:
      return "saving after step " + std::to_string(status.step.load());
    default:
      return phase_name(phase);
  }
}

WaitScope::WaitScope(RankStatus* status, Wait wait) : status_(status), own_(wait) {
  if (status_ == nullptr) return;
  status_->waits.fetch_add(1, std::memory_order_relaxed);
  begin_s_ = monotonic_seconds();
  before_ = status_->wait.exchange(wait, std::memory_order_relaxed);
}

WaitScope::~WaitScope() {
  if (status_ == nullptr) return;
  status_->waits.fetch_add(1, std::memory_order_relaxed);
  status_->wait.store(before_, std::memory_order_relaxed);
  const bool for_others = own_ != Wait::kDevice && before_ == Wait::kNothing;
  if (!for_others || status_->phase != Phase::kTraining) return;
  status_->waited_s.store(
      status_->waited_s.load(std::memory_order_relaxed) + monotonic_seconds() - begin_s_,
      std::memory_order_relaxed);
}

}  // namespace mnist_train::launch
