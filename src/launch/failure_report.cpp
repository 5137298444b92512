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
#include "base/limits.h"
#include "base/log.h"
#include "base/print.h"
#include "base/system.h"

namespace mnist_train::launch {

namespace {

// JSON may need six bytes for one, and all of them must fit into a pipe of 64 KiB: the launcher
// reads the report only when the worker has ended.
constexpr std::size_t kMaxMessageBytes = 8192;

std::string shortened(const std::string& message) {
  if (message.size() <= kMaxMessageBytes) return message;
  return message.substr(0, kMaxMessageBytes) + " ... (" +
         std::to_string(message.size() - kMaxMessageBytes) + " bytes left out)";
}

bool is_failure(int code) {
  constexpr std::array kFailures{
      ExitCode::kRunFailed,  ExitCode::kConfig,      ExitCode::kData,      ExitCode::kDistributed,
      ExitCode::kCheckpoint, ExitCode::kInterrupted, ExitCode::kTerminated};
  return std::count(kFailures.begin(), kFailures.end(), static_cast<ExitCode>(code)) > 0;
}

bool has_failed(const RankEnd& end) { return !end.succeeded && !end.killed_by_launcher; }

bool blames_user(const RankEnd& end, const StatusBoard& board) {
  const auto phase = static_cast<Phase>(board.of(end.rank).phase.load());
  return end.exit.failure && !end.exit.failure->is_victim &&
         is_users_mistake(end.exit.failure->code, phase);
}

std::string describe_end(const RankEnd& end, const StatusBoard& board) {
  if (blames_user(end, board)) return end.exit.failure->message;
  if (end.pid <= 0) {
    return fmt::format("rank {} could not be started: {}", end.rank,
                       end.exit.failure ? end.exit.failure->message
                                        : "its fork server has ended" + error_limit(ENOMEM));
  }
  const std::string rank = fmt::format("rank {} (pid {})", end.rank, end.pid);
  const std::string where = describe(board.of(end.rank));
  if (end.exit.failure) return rank + " in " + where + ": " + end.exit.failure->message;
  if (end.exit.signal != 0) {
    return fmt::format("{} was killed by signal {} ({}) in {}", rank, end.exit.signal,
                       ::strsignal(end.exit.signal), where);
  }
  return fmt::format("{} left with status {} before the run was over, in {}", rank, end.exit.code,
                     where);
}

const RankEnd* find_cause(const std::vector<RankEnd>& ends) {
  const auto by_itself = std::find_if(ends.begin(), ends.end(), [](const RankEnd& end) {
    return has_failed(end) && !(end.exit.failure && end.exit.failure->is_victim);
  });
  if (by_itself != ends.end()) return &*by_itself;
  const auto victim = std::find_if(ends.begin(), ends.end(), has_failed);
  if (victim != ends.end()) return &*victim;
  return ends.empty() ? nullptr : &ends.front();
}

Wait wait_of(const StatusBoard& board, int rank) {
  return static_cast<Wait>(board.of(rank).wait.load());
}

std::string describe_stalled(const StatusBoard& board, int rank) {
  const Wait wait = wait_of(board, rank);
  std::string where = describe(board.of(rank));
  if (wait == Wait::kNothing) return where;
  if (wait == Wait::kDevice) return where + ", waiting for " + wait_name(wait) + ",";
  return std::string(wait_name(wait)) + " of " + where;
}

RunFailure stall_failure(const std::vector<RankEnd>& ends, const StalledRank& stalled,
                         const StatusBoard& board) {
  RunFailure failure;
  failure.code = ExitCode::kDistributed;
  failure.rank = stalled.rank;
  failure.restart_may_help = true;
  const std::string where = describe_stalled(board, stalled.rank);
  failure.cause = stalled.others_wait_s > 0
                      ? fmt::format("rank {} is in {} and has kept others waiting for {:.0f} s",
                                    stalled.rank, where, stalled.others_wait_s)
                      : fmt::format("rank {} has been in {} for {:.0f} s without progress",
                                    stalled.rank, where, stalled.seconds);
  failure.cause += " (launch.hang_timeout_s)";
  if (stalled.stopped) failure.cause += ": it is stopped, by SIGSTOP or a debugger";
  for (const RankEnd& end : ends) {
    if (end.rank == stalled.rank) continue;
    const bool waited = wait_of(board, end.rank) != Wait::kNothing;
    failure.victims += fmt::format("rank {}: {} in {}\n", end.rank, waited ? "waited" : "was",
                                   describe_stalled(board, end.rank));
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
  return json_text(nlohmann::json{{"code", static_cast<int>(failure.code)},
                                  {"message", shortened(escape_control_bytes(failure.message))},
                                  {"host", failure.host},
                                  {"is_victim", failure.is_victim}});
}

std::optional<FailureReport> failure_from_text(const std::string& text) try {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  FailureReport failure;
  const int code = json.value("code", 1);
  if (!is_failure(code)) return std::nullopt;
  failure.code = static_cast<ExitCode>(code);
  failure.message = json.value("message", "");
  failure.host = json.value("host", "");
  failure.is_victim = json.value("is_victim", false);
  return failure;
} catch (const nlohmann::json::type_error&) {
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
    const Wait wait = wait_of(board, stalled.rank);
    const int for_others = wait == Wait::kNothing ? 0 : wait == Wait::kDevice ? 1 : 2;
    return std::make_tuple(!stalled.stopped, for_others, status.step.load(), -stalled.seconds);
  };
  return *std::min_element(
      ranks.begin(), ranks.end(),
      [&](const StalledRank& a, const StalledRank& b) { return order(a) < order(b); });
}

RunFailure summarize_failure(const std::vector<RankEnd>& ends,
                             const std::optional<StalledRank>& stalled, const StatusBoard& board) {
  if (stalled) return stall_failure(ends, *stalled, board);
  RunFailure failure;
  const RankEnd* cause = find_cause(ends);
  if (cause == nullptr) return failure;
  const bool is_mistake = blames_user(*cause, board);
  if (!is_mistake) failure.rank = cause->rank;
  failure.cause = describe_end(*cause, board);
  failure.code = cause->exit.failure ? cause->exit.failure->code : ExitCode::kDistributed;
  failure.died_without_report = !cause->exit.failure;
  failure.was_killed = cause->exit.signal == SIGKILL || (cause->pid <= 0 && !cause->exit.failure);
  failure.phase = static_cast<Phase>(board.of(cause->rank).phase.load());
  failure.restart_may_help = failure.code == ExitCode::kDistributed;
  for (const RankEnd& end : ends) {
    if (&end == cause || !has_failed(end)) continue;
    const bool same = cause->exit.failure && end.exit.failure &&
                      cause->exit.failure->message == end.exit.failure->message;
    if (same) continue;  // all ranks found the same mistake
    if (is_mistake && end.exit.failure && end.exit.failure->is_victim) continue;
    failure.victims += describe_end(end, board) + "\n";
  }
  return failure;
}

}  // namespace mnist_train::launch
