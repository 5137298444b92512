#include "launch/failure_summary.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <tuple>

namespace mnist_train::launch {

namespace {

std::string rank_name(const RankEnd& end) {
  return "rank " + std::to_string(end.rank) + " (pid " + std::to_string(end.pid) + ")";
}

std::string seconds_text(double seconds) { return std::to_string(std::lround(seconds)) + " s"; }

std::string describe_end(const RankEnd& end, const StatusBoard& board) {
  const std::string where = " in " + describe(board.of(end.rank));
  if (end.exit.report) return rank_name(end) + where + ": " + end.exit.report->message;
  if (end.exit.signal != 0) {
    return rank_name(end) + " was killed by signal " + std::to_string(end.exit.signal) + " (" +
           ::strsignal(end.exit.signal) + ")" + where;
  }
  return rank_name(end) + " left with status " + std::to_string(end.exit.code) +
         " before the run was over," + where;
}

bool is_own_failure(const RankEnd& end) {
  if (end.well || end.killed_by_launcher) return false;
  return !end.exit.report || !end.exit.report->is_victim;
}

const RankEnd* find_cause(const std::vector<RankEnd>& ends) {
  for (const RankEnd& end : ends) {
    if (is_own_failure(end)) return &end;
  }
  for (const RankEnd& end : ends) {
    if (!end.well && !end.killed_by_launcher) return &end;
  }
  return ends.empty() ? nullptr : &ends.front();
}

Wait wait_of(const StatusBoard& board, int rank) {
  return static_cast<Wait>(board.of(rank).wait.load());
}

std::string describe_silent(const StatusBoard& board, int rank) {
  const Wait wait = wait_of(board, rank);
  const std::string where = describe(board.of(rank));
  return wait == Wait::kNothing ? where : std::string(wait_name(wait)) + " of " + where;
}

RunFailure silent_failure(const std::vector<RankEnd>& ends, const Silence& silence,
                          const StatusBoard& board) {
  RunFailure failure;
  failure.code = ExitCode::kDistributed;
  failure.rank = silence.rank;
  failure.restart_may_help = true;
  const std::string where = describe_silent(board, silence.rank);
  failure.cause = "rank " + std::to_string(silence.rank) +
                  (silence.others_s > 0 ? " is in " + where + " and has kept others waiting for " +
                                              seconds_text(silence.others_s)
                                        : " has been in " + where + " for " +
                                              seconds_text(silence.seconds) + " without progress") +
                  " (launch.hang_timeout_s)" +
                  (silence.stopped ? ": it is stopped, by SIGSTOP or a debugger" : "");
  for (const RankEnd& end : ends) {
    if (end.rank == silence.rank) continue;
    const bool waited = wait_of(board, end.rank) != Wait::kNothing;
    failure.victims += "rank " + std::to_string(end.rank) +
                       (waited ? ": waited in " : ": was in ") + describe_silent(board, end.rank) +
                       "\n";
  }
  return failure;
}

}  // namespace

Silence most_suspect(const std::vector<Silence>& ranks, const StatusBoard& board) {
  // Smaller is more suspect.
  const auto order = [&board](const Silence& silence) {
    const RankStatus& status = board.of(silence.rank);
    const bool waits = wait_of(board, silence.rank) != Wait::kNothing;
    return std::make_tuple(!silence.stopped, waits, status.step.load(), -silence.seconds);
  };
  return *std::min_element(ranks.begin(), ranks.end(),
                           [&](const Silence& a, const Silence& b) { return order(a) < order(b); });
}

RunFailure summarize_failure(const std::vector<RankEnd>& ends,
                             const std::optional<Silence>& silence, const StatusBoard& board) {
  if (silence) return silent_failure(ends, *silence, board);
  RunFailure failure;
  const RankEnd* cause = find_cause(ends);
  if (cause == nullptr) return failure;
  failure.rank = cause->rank;
  failure.cause = describe_end(*cause, board);
  failure.code = cause->exit.report ? cause->exit.report->code : ExitCode::kDistributed;
  failure.died_silently = !cause->exit.report;
  failure.restart_may_help = failure.code == ExitCode::kDistributed;
  for (const RankEnd& end : ends) {
    if (&end == cause || end.well || end.killed_by_launcher) continue;
    const bool same = cause->exit.report && end.exit.report &&
                      cause->exit.report->message == end.exit.report->message;
    if (same) continue;  // all ranks found the same mistake
    failure.victims += describe_end(end, board) + "\n";
  }
  return failure;
}

}  // namespace mnist_train::launch
