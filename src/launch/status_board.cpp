#include "launch/status_board.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "base/clock.h"

namespace mnist_train::launch {

namespace {

[[noreturn]] void fail(const char* action) {
  throw Error(ExitCode::kRunFailed,
              std::string("cannot ") + action + " the status board: " + std::strerror(errno));
}

std::size_t board_bytes(int ranks) { return static_cast<std::size_t>(ranks) * sizeof(RankStatus); }

}  // namespace

static_assert(std::atomic<double>::is_always_lock_free);

const char* phase_name(Phase phase) {
  switch (phase) {
    case Phase::kStarting:
      return "starting";
    case Phase::kRendezvous:
      return "rendezvous";
    case Phase::kLoadingData:
      return "loading data";
    case Phase::kTraining:
      return "training";
    case Phase::kEvaluation:
      return "evaluation";
    case Phase::kSaving:
      return "saving";
    case Phase::kFinished:
      return "finished";
  }
  return "an unknown phase";
}

StatusBoard::StatusBoard(UniqueFd fd, int ranks, bool fresh) : fd_(std::move(fd)), ranks_(ranks) {
  void* memory = ::mmap(nullptr, board_bytes(ranks), PROT_READ | PROT_WRITE,
                        fd_.valid() ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd_.get(), 0);
  if (memory == MAP_FAILED) fail("map");
  statuses_ = static_cast<RankStatus*>(memory);
  if (fresh) {
    for (int rank = 0; rank < ranks; ++rank) {
      auto* status = new (&statuses_[rank]) RankStatus;
      status->updated_s = monotonic_seconds();
    }
  }
}

StatusBoard::StatusBoard(StatusBoard&& other) noexcept
    : fd_(std::move(other.fd_)),
      ranks_(other.ranks_),
      statuses_(std::exchange(other.statuses_, nullptr)) {}

StatusBoard::~StatusBoard() {
  if (statuses_ != nullptr) ::munmap(statuses_, board_bytes(ranks_));
}

StatusBoard StatusBoard::create(int ranks) {
  UniqueFd fd(::memfd_create("mnist-train-status", MFD_CLOEXEC));
  if (!fd.valid() || ::ftruncate(fd.get(), static_cast<off_t>(board_bytes(ranks))) != 0) {
    fail("make");
  }
  return StatusBoard(std::move(fd), ranks, true);
}

StatusBoard StatusBoard::attach(int fd, int ranks) {
  return StatusBoard(UniqueFd(fd), ranks, fd < 0);
}

void update(RankStatus& status, Phase phase, std::int64_t epoch, std::int64_t step) {
  status.phase.store(static_cast<std::uint32_t>(phase), std::memory_order_relaxed);
  status.epoch.store(epoch, std::memory_order_relaxed);
  status.step.store(step, std::memory_order_relaxed);
  status.updated_s.store(monotonic_seconds(), std::memory_order_release);
}

std::string describe(const RankStatus& status) {
  const auto phase = static_cast<Phase>(status.phase.load());
  const std::string epoch = std::to_string(status.epoch.load());
  switch (phase) {
    case Phase::kTraining:
      return "step " + std::to_string(status.step.load()) + " (epoch " + epoch + ")";
    case Phase::kEvaluation:
      return status.epoch.load() == 0 ? "evaluation" : "the evaluation of epoch " + epoch;
    case Phase::kSaving:
      return "saving after step " + std::to_string(status.step.load());
    default:
      return phase_name(phase);
  }
}

}  // namespace mnist_train::launch
