#include "launch/failure_report.h"

#include <signal.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/file.h"
#include "base/log.h"
#include "base/print.h"
#include "base/system.h"

namespace mnist_train::launch {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(FailureReport, code, message, host, is_victim)

namespace {

/// JSON may need six bytes for one, and all of them must fit into a pipe of 64 KiB: the launcher
/// reads the report only after the worker has ended.
std::string shortened(const std::string& message) {
  constexpr std::size_t kMaxBytes = 8192;
  if (message.size() <= kMaxBytes) return message;
  return fmt::format("{} ... ({} bytes left out)", message.substr(0, kMaxBytes),
                     message.size() - kMaxBytes);
}

bool is_failure(ExitCode code) {
  constexpr std::array kFailures{
      ExitCode::kRunFailed,  ExitCode::kConfig,      ExitCode::kData,      ExitCode::kDistributed,
      ExitCode::kCheckpoint, ExitCode::kInterrupted, ExitCode::kTerminated};
  return std::ranges::find(kFailures, code) != kFailures.end();
}

bool has_failed(const RankEnd& end) { return !end.succeeded && !end.killed_by_launcher; }

bool is_victim(const RankEnd& end) { return end.exit.failure && end.exit.failure->is_victim; }

bool blames_user(const RankEnd& end, const StatusBoard& board) {
  return end.exit.failure && !is_victim(end) &&
         is_users_mistake(end.exit.failure->code, board.of(end.rank).phase);
}

std::string describe_end(const RankEnd& end, const StatusBoard& board) {
  const auto& reported = end.exit.failure;
  if (blames_user(end, board)) return reported->message;
  if (end.pid <= 0) {
    return fmt::format(
        "rank {} could not be started: {}", end.rank,
        reported ? reported->message : "its fork server has ended" + error_limit(ENOMEM));
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

std::string describe_stalled(const RankStatus& status) {
  const Wait wait = status.wait;
  std::string place = describe(status);
  if (wait == Wait::kNothing) return place;
  if (wait == Wait::kDevice) return place + ", waiting for " + wait_name(wait) + ",";
  return std::string(wait_name(wait)) + " of " + place;
}

RunFailure stall_failure(const std::vector<RankEnd>& ends, const StalledRank& stalled,
                         const StatusBoard& board) {
  RunFailure failure;
  failure.code = ExitCode::kDistributed;
  failure.rank = stalled.rank;
  failure.restart_may_help = true;
  const std::string place = describe_stalled(board.of(stalled.rank));
  failure.cause = stalled.others_wait_s > 0
                      ? fmt::format("rank {} is in {} and has kept others waiting for {:.0f} s",
                                    stalled.rank, place, stalled.others_wait_s)
                      : fmt::format("rank {} has been in {} for {:.0f} s without progress",
                                    stalled.rank, place, stalled.seconds);
  failure.cause += " (launch.hang_timeout_s)";
  if (stalled.stopped) failure.cause += ": it is stopped, by SIGSTOP or a debugger";
  for (const RankEnd& end : ends) {
    if (end.rank == stalled.rank) continue;
    const RankStatus& status = board.of(end.rank);
    const bool waited = status.wait != Wait::kNothing;
    failure.victims += fmt::format("rank {}: {} in {}\n", end.rank, waited ? "waited" : "was",
                                   describe_stalled(status));
  }
  return failure;
}

}  // namespace

std::string out_of_memory(Phase phase, const std::string& used_up) {
  std::string text = "out of memory: ";
  if (!used_up.empty()) text += "processes used up " + used_up + "; ";
  switch (phase) {
    case Phase::kLoadingData:
      text += "set data.decode to \"stream\", or lower data.size, data.limit_train or ";
      break;
    case Phase::kTraining:
      text += "lower batch_size or ";
      break;
    case Phase::kEvaluation:
      text += "lower test_batch_size or ";
      break;
    default:
      text += "lower ";
  }
  text += "the number of processes";
  return used_up.empty() ? text + error_limit(ENOMEM) : text + ", or raise the limit";
}

std::string to_text(const FailureReport& failure) {
  FailureReport printable = failure;
  printable.message = shortened(escape_control_bytes(failure.message));
  return json_text(nlohmann::json(printable));
}

std::optional<FailureReport> failure_from_text(const std::string& text) try {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  FailureReport failure = json.get<FailureReport>();
  return is_failure(failure.code) ? std::optional(std::move(failure)) : std::nullopt;
} catch (const nlohmann::json::exception&) {  // written by another program
  return std::nullopt;
}

FailureReport report_for(const std::exception& error, Phase phase) {
  FailureReport failure{ExitCode::kRunFailed, error.what(), host_name(), false};
  if (const auto* own = dynamic_cast<const Error*>(&error)) failure.code = own->code();
  failure.is_victim = dynamic_cast<const PeerError*>(&error) != nullptr;
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    failure.message = out_of_memory(phase);
  }
  return failure;
}

bool is_users_mistake(ExitCode code, Phase phase) {
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
  // Smaller is more suspect.
  const auto order = [&board](const StalledRank& stalled) {
    const RankStatus& status = board.of(stalled.rank);
    const Wait wait = status.wait;
    const int for_others = wait == Wait::kNothing ? 0 : wait == Wait::kDevice ? 1 : 2;
    return std::make_tuple(!stalled.stopped, for_others, status.step.load(), -stalled.seconds);
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
    if (reported && other && reported->message == other->message)
      continue;  // all found one mistake
    if (is_mistake && is_victim(end)) continue;
    failure.victims += describe_end(end, board) + "\n";
  }
  return failure;
}

}  // namespace mnist_train::launch
