#include "launch/status_board.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <new>

#include "base/system.h"
#include "support/catch.h"

namespace mnist_train::launch {
namespace {

using Catch::Matchers::ContainsSubstring;

TEST_CASE("the launcher sees the progress of a rank in another process") {
  const double before_s = monotonic_seconds();
  const StatusBoard board = StatusBoard::create(2);
  const double created_s = board.of(1).updated_s.load();
  CHECK(created_s >= before_s);
  const pid_t child = ::fork();
  if (child == 0) {
    StatusBoard mine = StatusBoard::attach(::fcntl(board.fd(), F_DUPFD_CLOEXEC, 3), 2);
    ::usleep(2000);
    update(mine.of(1), Phase::kTraining, 4, 120);
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(describe(board.of(1)) == "step 120 (epoch 4)");
  CHECK(board.of(1).updated_s.load() > created_s);
  CHECK(describe(board.of(0)) == "startup");
}

TEST_CASE("without a launcher, a rank has a private board") {
  StatusBoard board = StatusBoard::attach(-1, 2);
  CHECK(board.fd() == -1);
  CHECK(describe(board.of(1)) == "startup");
  update(board.of(1), Phase::kSaving, 1, 9);
  CHECK(describe(board.of(1)) == "the save after step 9");
}

TEST_CASE("a board can be moved") {
  StatusBoard first = StatusBoard::create(1);
  update(first.of(0), Phase::kFinished, 0, 0);
  const StatusBoard second = std::move(first);
  CHECK(describe(second.of(0)) == "shutdown");
}

TEST_CASE("every phase has a readable description") {
  StatusBoard board = StatusBoard::attach(-1, 1);
  for (const auto& [phase, text] : {std::pair{Phase::kStarting, "startup"},
                                    {Phase::kRendezvous, "rendezvous"},
                                    {Phase::kLoadingData, "data loading"},
                                    {Phase::kTraining, "step 7 (epoch 2)"},
                                    {Phase::kEvaluation, "the evaluation of epoch 2"},
                                    {Phase::kSaving, "the save after step 7"},
                                    {Phase::kFinished, "shutdown"},
                                    {static_cast<Phase>(99), "an unknown phase"}}) {
    update(board.of(0), phase, 2, 7);
    CHECK(describe(board.of(0)) == text);
  }
  update(board.of(0), Phase::kEvaluation, 2, 7, 3);
  CHECK(describe(board.of(0)) == "the evaluation of epoch 2, batch 3");
  update(board.of(0), Phase::kEvaluation, 0, 0, 1);
  CHECK(describe(board.of(0)) == "evaluation, batch 1");
}

TEST_CASE("the board shows the current wait and the total waiting time in training steps") {
  StatusBoard board = StatusBoard::attach(-1, 1);
  RankStatus& status = board.of(0);
  const auto wait = [&] { return static_cast<Wait>(status.wait.load()); };
  update(status, Phase::kTraining, 1, 1);
  {
    const WaitScope outer(&status, Wait::kBackward);
    {
      const WaitScope inner(&status, Wait::kAllReduce);
      CHECK(wait() == Wait::kAllReduce);
      ::usleep(2000);
    }
    CHECK(wait() == Wait::kBackward);
    CHECK(status.waited_s.load() == 0);  // only the outermost scope adds its time
  }
  CHECK(wait() == Wait::kNothing);
  const double waited_s = status.waited_s.load();
  CHECK(waited_s >= 0.002);
  update(status, Phase::kEvaluation, 1, 1);
  { const WaitScope elsewhere(&status, Wait::kAllReduce); }
  CHECK(status.waited_s.load() == waited_s);
  { const WaitScope unobserved(nullptr, Wait::kAllReduce); }
}

TEST_CASE("a report arrives as sent, except that control and invalid bytes are escaped") {
  const FailureReport sent{ExitCode::kCheckpoint, "line one\n\"two\" … \xff\xfe \x1b", "node-3",
                           true};
  const auto received = failure_from_text(to_text(sent));
  REQUIRE(received);
  CHECK(received->code == sent.code);
  CHECK(received->message == "line one\n\"two\" … \\xff\\xfe \\x1b");
  CHECK(received->host == sent.host);
  CHECK(received->is_victim);
}

TEST_CASE("a report fits into a pipe's buffer") {
  constexpr std::size_t kPipe_bytes = 65536;
  const FailureReport report{ExitCode::kCheckpoint, std::string(500000, '\x01') + "end", "h",
                             false};
  const std::string text = to_text(report);
  CHECK(text.size() <= kPipe_bytes);
  const auto received = failure_from_text(text);
  REQUIRE(received);
  CHECK(received->code == ExitCode::kCheckpoint);
  CHECK(received->message.ends_with("…"));
}

TEST_CASE("a report keeps long lists whole") {
  std::string list = "does not fit the model:";
  for (int i = 0; i < 700; ++i) list += "\n  missing: layer4.2.downsample.1.running_mean [2048]";
  const auto received = failure_from_text(to_text({ExitCode::kCheckpoint, list, "h", false}));
  REQUIRE(received);
  CHECK(received->message == list);
}

TEST_CASE("a report truncated at any byte is ignored") {
  const std::string whole = to_text({ExitCode::kData, "message", "host", true});
  for (std::size_t size = 0; size < whole.size(); ++size) {
    REQUIRE_FALSE(failure_from_text(whole.substr(0, size)));
  }
}

TEST_CASE("text that is not a report is ignored") {
  for (const char* text :
       {"noise", "[]", R"({"code": "five"})", R"({"code": 0})", R"({"code": 77})",
        R"({"message": 3})", R"({"is_victim": []})", R"({"host": {}})"}) {
    INFO(text);
    CHECK_FALSE(failure_from_text(text));
  }
}

TEST_CASE("the report of an exception has its exit code") {
  const FailureReport own = report_for(Error(ExitCode::kData, "bad file"));
  CHECK(own.code == ExitCode::kData);
  CHECK(own.message == "bad file");
  CHECK_FALSE(own.is_victim);
  CHECK_FALSE(own.host.empty());

  const FailureReport victim = report_for(PeerError("lost another rank"));
  CHECK(victim.code == ExitCode::kDistributed);
  CHECK(victim.is_victim);

  const FailureReport other = report_for(std::runtime_error("surprise"));
  CHECK(other.code == ExitCode::kRunFailed);
  CHECK(other.message == "surprise");

  const FailureReport memory = report_for(std::bad_alloc(), Phase::kTraining);
  CHECK(memory.code == ExitCode::kRunFailed);
  CHECK(memory.message.starts_with("out of memory: lower batch_size or the number of processes"));
}

TEST_CASE("the advice when memory runs out depends on the phase") {
  CHECK_THAT(out_of_memory(Phase::kLoadingData), ContainsSubstring("data.decode to \"stream\""));
  CHECK_THAT(out_of_memory(Phase::kEvaluation), ContainsSubstring("lower test_batch_size or"));
  CHECK_THAT(out_of_memory(Phase::kStarting), ContainsSubstring("lower the number of processes"));
  CHECK_THAT(out_of_memory(Phase::kTraining, "the 512 MiB of a cgroup"),
             ContainsSubstring("used up the 512 MiB of a cgroup; lower batch_size or the number of "
                               "processes, or raise the limit"));
}

WorkerExit exited(int code) { return {code, 0, std::nullopt}; }
WorkerExit killed(int signal) { return {0, signal, std::nullopt}; }
WorkerExit reported(ExitCode code, const std::string& message, bool is_victim = false) {
  return {static_cast<int>(code), 0, FailureReport{code, message, "host", is_victim}};
}
WorkerExit victim(const std::string& message) {
  return reported(ExitCode::kDistributed, message, /*is_victim=*/true);
}

RankEnd rank_end(int rank, WorkerExit exit) {
  return {rank, 100 + rank, std::move(exit), false, false};
}
RankEnd succeeded(int rank) { return {rank, 100 + rank, exited(0), false, true}; }
RankEnd killed_by_us(int rank) { return {rank, 100 + rank, killed(SIGKILL), true, false}; }

StatusBoard training_board() {
  StatusBoard board = StatusBoard::create(4);
  for (int rank = 0; rank < 4; ++rank) update(board.of(rank), Phase::kTraining, 2, 120 + rank);
  return board;
}

RunFailure failure_of(const std::vector<RankEnd>& ends,
                      const std::optional<StalledRank>& stalled = {}) {
  return summarize_failure(ends, stalled, training_board());
}

TEST_CASE("a killed rank is the cause, and ranks that lost it are victims") {
  const std::vector<RankEnd> ends{rank_end(0, victim("lost another rank during all-reduce")),
                                  rank_end(1, killed(SIGKILL)), killed_by_us(2)};
  const RunFailure failure = failure_of(ends);
  CHECK(failure.code == ExitCode::kDistributed);
  CHECK(failure.rank == 1);
  CHECK(failure.cause == "rank 1 (pid 101) was killed by signal 9 (Killed) in step 121 (epoch 2)");
  CHECK(failure.victims ==
        "rank 0 (pid 100) in step 120 (epoch 2): lost another rank during all-reduce\n");
  CHECK(failure.died_without_report);
  CHECK(failure.restart_may_help);
}

TEST_CASE("a rank's own error determines the exit code, and the run does not restart") {
  for (const ExitCode code : {ExitCode::kRunFailed, ExitCode::kCheckpoint}) {
    const std::vector<RankEnd> ends{rank_end(2, victim("lost another rank")),
                                    rank_end(3, reported(code, "the loss became NaN"))};
    const RunFailure failure = failure_of(ends);
    CHECK(failure.code == code);
    CHECK(failure.rank == 3);
    CHECK(failure.cause == "rank 3 (pid 103) in step 123 (epoch 2): the loss became NaN");
    CHECK_FALSE(failure.died_without_report);
    CHECK_FALSE(failure.restart_may_help);
  }
}

TEST_CASE("a user's mistake is reported without the rank that detected it") {
  StatusBoard board = training_board();
  update(board.of(3), Phase::kLoadingWeights, 0, 0);
  for (const ExitCode code : {ExitCode::kConfig, ExitCode::kData, ExitCode::kCheckpoint}) {
    const std::vector<RankEnd> ends{rank_end(2, victim("lost another rank")),
                                    rank_end(3, reported(code, "a.png: is not an image")),
                                    rank_end(1, reported(code, "a.png: is not an image")),
                                    rank_end(0, killed(SIGKILL))};
    const RunFailure failure = summarize_failure(ends, {}, board);
    CHECK(failure.code == code);
    CHECK_FALSE(failure.rank);
    CHECK(failure.cause == "a.png: is not an image");
    CHECK(failure.victims ==
          "rank 0 (pid 100) was killed by signal 9 (Killed) in step 120 (epoch 2)\n");
    CHECK_FALSE(failure.restart_may_help);
  }
}

TEST_CASE("a write error during training is reported with rank and step") {
  const RunFailure failure =
      failure_of({rank_end(0, reported(ExitCode::kCheckpoint, "no space left"))});
  CHECK(failure.rank == 0);
  CHECK(failure.cause == "rank 0 (pid 100) in step 120 (epoch 2): no space left");
}

TEST_CASE("if several ranks fail independently, the first failure is the cause") {
  const std::vector<RankEnd> ends{succeeded(0),
                                  rank_end(3, reported(ExitCode::kRunFailed, "first")),
                                  rank_end(1, reported(ExitCode::kConfig, "second"))};
  const RunFailure failure = failure_of(ends);
  CHECK(failure.rank == 3);
  CHECK(failure.code == ExitCode::kRunFailed);
  CHECK_THAT(failure.victims, ContainsSubstring("second"));
}

TEST_CASE("a rank that exits early without a report is a lost process") {
  for (const int code : {0, 1, 126}) {
    const RunFailure failure = failure_of({rank_end(1, exited(code))});
    CHECK(failure.code == ExitCode::kDistributed);
    CHECK(failure.cause == "rank 1 (pid 101) exited with status " + std::to_string(code) +
                               " before the run was over, in step 121 (epoch 2)");
    CHECK(failure.died_without_report);
    CHECK(failure.restart_may_help);
  }
}

TEST_CASE("if all ranks are victims of another machine, the first one is reported as the cause") {
  const RunFailure failure =
      failure_of({rank_end(1, victim("lost another rank during broadcast")),
                  rank_end(0, victim("lost another rank during all-reduce"))});
  CHECK(failure.rank == 1);
  CHECK(failure.code == ExitCode::kDistributed);
  CHECK(failure.restart_may_help);
  CHECK_THAT(failure.cause, ContainsSubstring("broadcast"));
  CHECK_THAT(failure.victims, ContainsSubstring("all-reduce"));
}

TEST_CASE("a stalled rank is the cause, and ranks killed because of it are victims") {
  const RunFailure failure =
      failure_of({killed_by_us(0), killed_by_us(1)}, StalledRank{1, 301.2, false, 0});
  CHECK(failure.code == ExitCode::kDistributed);
  CHECK(failure.rank == 1);
  CHECK(failure.cause ==
        "rank 1 has been in step 121 (epoch 2) for 301 s without progress (launch.hang_timeout_s)");
  CHECK(failure.victims == "rank 0: was in step 120 (epoch 2)\n");
  CHECK(failure.restart_may_help);
  CHECK_THAT(failure_of({killed_by_us(2)}, StalledRank{2, 30, true, 0}).cause,
             ContainsSubstring("it is stopped, by SIGSTOP or a debugger"));
  CHECK(failure_of({}, StalledRank{1, 0.1, false, 300}).cause ==
        "rank 1 is in step 121 (epoch 2) and has kept others waiting for 300 s "
        "(launch.hang_timeout_s)");
}

TEST_CASE("when ranks stall together, the one not waiting for others is the culprit") {
  StatusBoard board = StatusBoard::create(3);
  for (int rank = 0; rank < 3; ++rank) update(board.of(rank), Phase::kTraining, 2, 120);
  update(board.of(1), Phase::kEvaluation, 2, 120, 7);
  const WaitScope first(&board.of(0), Wait::kAveraging);
  const WaitScope third(&board.of(2), Wait::kAllReduce);
  const StalledRank cause = find_culprit(
      {StalledRank{0, 305, false, 0}, StalledRank{1, 301, false, 0}, StalledRank{2, 304, false, 0}},
      board);
  CHECK(cause.rank == 1);
  const RunFailure failure =
      summarize_failure({killed_by_us(0), killed_by_us(1), killed_by_us(2)}, cause, board);
  CHECK(failure.cause ==
        "rank 1 has been in the evaluation of epoch 2, batch 7 for 301 s without progress "
        "(launch.hang_timeout_s)");
  CHECK(failure.victims ==
        "rank 0: waited in gradient averaging of step 120 (epoch 2)\n"
        "rank 2: waited in all-reduce of step 120 (epoch 2)\n");
}

TEST_CASE("if all ranks wait, the one furthest behind is the culprit") {
  StatusBoard board = StatusBoard::create(2);
  update(board.of(0), Phase::kTraining, 1, 8);
  update(board.of(1), Phase::kTraining, 1, 7);
  const WaitScope first(&board.of(0), Wait::kAveraging);
  const WaitScope second(&board.of(1), Wait::kTextExchange);
  CHECK(find_culprit({StalledRank{0, 20, false, 0}, StalledRank{1, 19, false, 0}}, board).rank ==
        1);
  CHECK(find_culprit({StalledRank{0, 20, true, 0}, StalledRank{1, 19, false, 0}}, board).rank == 0);
  const WaitScope third(&board.of(1), Wait::kDevice);
  CHECK(summarize_failure({killed_by_us(1)}, StalledRank{0, 20, false, 0}, board).victims ==
        "rank 1: was waiting for its GPU in step 7 (epoch 1)\n");
}

}  // namespace
}  // namespace mnist_train::launch
