#include "launch/status_board.h"

#include <signal.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/print.h"
#include "base/system.h"

namespace mnist_train::launch {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(FailureReport, code, message, host, is_victim)

namespace {

constexpr std::array kPhaseNames{"startup",  "rendezvous", "data loading", "weight loading",
                                 "training", "evaluation", "saving",       "shutdown"};

constexpr std::array kWaitNames{"nothing",
                                "all-reduce",
                                "broadcast",
                                "text exchange",
                                "sample exchange",
                                "gradient averaging",
                                "backward and gradient averaging",
                                "its GPU"};

std::size_t board_bytes(int ranks) { return static_cast<std::size_t>(ranks) * sizeof(RankStatus); }

bool has_failed(const RankEnd& end) { return !end.succeeded && !end.killed_by_launcher; }

bool is_victim(const RankEnd& end) { return end.exit.failure && end.exit.failure->is_victim; }

bool blames_user(const RankEnd& end, const StatusBoard& board) {
  return end.exit.failure && !is_victim(end) &&
         is_user_error(end.exit.failure->code, board.of(end.rank).phase);
}

std::string describe_end(const RankEnd& end, const StatusBoard& board) {
  const auto& reported = end.exit.failure;
  if (blames_user(end, board)) return reported->message;
  if (end.pid <= 0) {
    return fmt::format(
        "rank {} could not be started: {}", end.rank,
        reported ? reported->message : "its fork server has exited" + limit_hint(ENOMEM));
  }
  const std::string rank = fmt::format("rank {} (pid {})", end.rank, end.pid);
  const std::string place = describe(board.of(end.rank));
  if (reported) return rank + " in " + place + ": " + reported->message;
  if (end.exit.signal != 0) {
    return fmt::format("{} was killed by signal {} ({}) in {}", rank, end.exit.signal,
                       ::strsignal(end.exit.signal), place);
  }
  return fmt::format("{} exited with status {} before the run was over, in {}", rank, end.exit.code,
                     place);
}

/// Completes "rank 1 has been …".
std::string describe_stalled(const RankStatus& status) {
  const Wait wait = status.wait;
  const std::string place = describe(status);
  if (wait == Wait::kNothing) return "in " + place;
  if (wait == Wait::kDevice) return "waiting for its GPU in " + place;
  return fmt::format("in {} of {}", wait_name(wait), place);
}

RunFailure stall_failure(const std::vector<RankEnd>& ends, const StalledRank& stalled,
                         const StatusBoard& board) {
  RunFailure failure;
  failure.code = ExitCode::kDistributed;
  failure.rank = stalled.rank;
  failure.restart_may_help = true;
  const std::string place = describe_stalled(board.of(stalled.rank));
  failure.cause = stalled.others_wait_s > 0
                      ? fmt::format("rank {} is {} and has kept others waiting for {:.0f} s",
                                    stalled.rank, place, stalled.others_wait_s)
                      : fmt::format("rank {} has been {} for {:.0f} s without progress",
                                    stalled.rank, place, stalled.seconds);
  failure.cause += " (launch.hang_timeout_s)";
  if (stalled.stopped) failure.cause += ": it is stopped, by SIGSTOP or a debugger";
  for (const RankEnd& end : ends) {
    if (end.rank == stalled.rank) continue;
    const RankStatus& status = board.of(end.rank);
    const bool is_waiting = status.wait != Wait::kNothing && status.wait != Wait::kDevice;
    failure.victims += fmt::format("rank {}: {} {}\n", end.rank, is_waiting ? "waited" : "was",
                                   describe_stalled(status));
  }
  return failure;
}

}  // namespace

static_assert(std::atomic<double>::is_always_lock_free);

const char* wait_name(Wait wait) { return enum_name(kWaitNames, wait, "an unknown operation"); }

StatusBoard::StatusBoard(UniqueFd fd, int ranks, bool is_new) : fd_(std::move(fd)) {
  memory_ = map_shared(fd_.get(), board_bytes(ranks), PROT_READ | PROT_WRITE, "the status board");
  statuses_ = reinterpret_cast<RankStatus*>(memory_.get());
  for (int rank = 0; is_new && rank < ranks; ++rank) {
    new (&statuses_[rank]) RankStatus{.updated_s = monotonic_seconds()};
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

std::string describe(const RankStatus& status) {
  const Phase phase = status.phase;
  const std::int64_t epoch = status.epoch;
  const std::int64_t step = status.step;
  const std::int64_t batch = status.batch;
  if (phase == Phase::kTraining) return fmt::format("step {} (epoch {})", step, epoch);
  if (phase == Phase::kEvaluation) {
    return (epoch == 0 ? "evaluation" : fmt::format("the evaluation of epoch {}", epoch)) +
           (batch == 0 ? "" : fmt::format(", batch {}", batch));
  }
  if (phase == Phase::kSaving) return fmt::format("the save after step {}", step);
  return enum_name(kPhaseNames, phase, "an unknown phase");
}

WaitScope::WaitScope(RankStatus* status, Wait wait) : status_(status), wait_(wait) {
  if (status_ == nullptr) return;
  status_->waits.fetch_add(1, std::memory_order_relaxed);
  begin_s_ = monotonic_seconds();
  before_ = status_->wait.exchange(wait, std::memory_order_relaxed);
}

WaitScope::~WaitScope() {
  if (status_ == nullptr) return;
  status_->waits.fetch_add(1, std::memory_order_relaxed);
  status_->wait.store(before_, std::memory_order_relaxed);
  const bool waits_for_peers = wait_ != Wait::kDevice && before_ == Wait::kNothing;
  if (!waits_for_peers || status_->phase != Phase::kTraining) return;
  status_->waited_s.fetch_add(monotonic_seconds() - begin_s_, std::memory_order_relaxed);
}

std::string out_of_memory(Phase phase, const std::string& exhausted_limit) {
  const char* lower = "lower ";
  if (phase == Phase::kTraining) lower = "lower batch_size or ";
  if (phase == Phase::kEvaluation) lower = "lower test_batch_size or ";
  if (phase == Phase::kLoadingData) {
    lower = "set data.decode to \"stream\", or lower data.size, data.limit_train or ";
  }
  return fmt::format("out of memory: {}{}the number of processes{}",
                     exhausted_limit.empty() ? "" : "processes used up " + exhausted_limit + "; ",
                     lower, exhausted_limit.empty() ? limit_hint(ENOMEM) : ", or raise the limit");
}

std::string to_text(const FailureReport& failure) {
  // The text must fit into a pipe, because it is read only after the worker has exited.
  constexpr std::size_t kPipeBytes = 65536;
  FailureReport printable = failure;
  std::string text;
  for (std::size_t limit = kPipeBytes; text.empty() || text.size() > kPipeBytes; limit /= 2) {
    printable.message = shortened(escape_control_bytes(failure.message), limit);
    text = json_text(nlohmann::json(printable));
  }
  return text;
}

std::optional<FailureReport> failure_from_text(const std::string& text) try {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  constexpr std::array kFailures{
      ExitCode::kRunFailed,  ExitCode::kConfig,      ExitCode::kData,      ExitCode::kDistributed,
      ExitCode::kCheckpoint, ExitCode::kInterrupted, ExitCode::kTerminated};
  auto failure = json.get<FailureReport>();
  const bool is_known = std::ranges::find(kFailures, failure.code) != kFailures.end();
  return is_known ? std::optional(std::move(failure)) : std::nullopt;
} catch (const nlohmann::json::exception&) {  // written by another program
  return std::nullopt;
}

FailureReport report_for(const std::exception& error, Phase phase) {
  FailureReport failure{ExitCode::kRunFailed, error.what(), host_name(), false};
  if (const auto* our_error = dynamic_cast<const Error*>(&error)) failure.code = our_error->code();
  failure.is_victim = dynamic_cast<const PeerError*>(&error) != nullptr;
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    failure.message = out_of_memory(phase);
  }
  return failure;
}

bool is_user_error(ExitCode code, Phase phase) {
  if (code == ExitCode::kConfig || code == ExitCode::kData) return true;
  const bool writes_checkpoints = phase == Phase::kTraining || phase == Phase::kSaving;
  return code == ExitCode::kCheckpoint && !writes_checkpoints;
}

void write_elastic_error_file(const std::string& message) {
  const auto path = environment_variable("TORCHELASTIC_ERROR_FILE");
  if (!path || path->empty()) return;
  const auto timestamp = std::to_string(::time(nullptr));
  // A `py_callstack`, even an empty one, would be shown instead of the message.
  const nlohmann::json json = {
      {"message", {{"message", message}, {"extraInfo", {{"timestamp", timestamp}}}}}};
  try {
    write_file_atomically(*path, json_text(json), ExitCode::kRunFailed);
  } catch (const Error& error) {
    spdlog::warn("{}", error.what());
  }
}

StalledRank find_culprit(const std::vector<StalledRank>& ranks, const StatusBoard& board) {
  // The smallest value is the most suspicious.
  const auto order = [&board](const StalledRank& stalled) {
    const RankStatus& status = board.of(stalled.rank);
    const Wait wait = status.wait;
    const int wait_order = wait == Wait::kNothing ? 0 : wait == Wait::kDevice ? 1 : 2;
    return std::make_tuple(!stalled.stopped, wait_order, status.step.load(), -stalled.seconds);
  };
  return *std::ranges::min_element(ranks, {}, order);
}

RunFailure summarize_failure(const std::vector<RankEnd>& ends,
                             const std::optional<StalledRank>& stalled, const StatusBoard& board) {
  if (stalled) return stall_failure(ends, *stalled, board);
  const RankEnd& cause = *std::ranges::min_element(ends, {}, [](const RankEnd& end) {
    return !has_failed(end) ? 2 : is_victim(end) ? 1 : 0;
  });
  const auto& reported = cause.exit.failure;
  const bool is_mistake = blames_user(cause, board);
  RunFailure failure;
  if (!is_mistake) failure.rank = cause.rank;
  failure.cause = describe_end(cause, board);
  failure.code = reported ? reported->code : ExitCode::kDistributed;
  failure.died_without_report = !reported;
  failure.was_killed = cause.exit.signal == SIGKILL || (cause.pid <= 0 && !reported);
  failure.phase = board.of(cause.rank).phase;
  failure.restart_may_help = failure.code == ExitCode::kDistributed;
  for (const RankEnd& end : ends) {
    if (&end == &cause || !has_failed(end)) continue;
    const auto& other = end.exit.failure;
    // This rank reported the same error as the cause.
    if (reported && other && reported->message == other->message) continue;
    if (is_mistake && is_victim(end)) continue;
    failure.victims += describe_end(end, board) + "\n";
  }
  return failure;
}

}  // namespace mnist_train::launch
