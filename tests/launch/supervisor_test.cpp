#include "launch/supervisor.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "base/system.h"
#include "support/error_of.h"
#include "support/shell_worker.h"

namespace mnist_train::launch {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::ContainsSubstring;
using namespace testing;

constexpr double kNever_s = 1000;

/// Blocks the supervised signals as the launcher does, and takes back what is left of them in the
/// end.
class SupervisedSignals {
 public:
  SupervisedSignals() {
    ::pthread_sigmask(SIG_SETMASK, nullptr, &before_);
    block_supervised_signals();
  }
  SupervisedSignals(const SupervisedSignals&) = delete;
  SupervisedSignals& operator=(const SupervisedSignals&) = delete;
  ~SupervisedSignals() {
    sigset_t taken;
    ::sigemptyset(&taken);
    for (const int signal : {SIGTERM, SIGINT, SIGCHLD}) ::sigaddset(&taken, signal);
    const timespec at_once{};
    while (::sigtimedwait(&taken, nullptr, &at_once) > 0) continue;
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t before_{};
};

/// Ranks that run a shell script. `$FOLDER` is a folder of theirs.
struct Attempt {
  explicit Attempt(int ranks, const std::string& script) : board(StatusBoard::create(ranks)) {
    setup.executable = shell_worker(
        folder, "FOLDER=" + folder.path().string() + "; touch $FOLDER/started.$RANK\n" + script);
    setup.world_size = ranks;
    setup.descriptors[kStatusFd] = board.fd();
    for (int rank = 0; rank < ranks; ++rank) update(board.of(rank), Phase::kTraining, 1, 10 + rank);
  }

  Attempt& finished(int rank) {
    update(board.of(rank), Phase::kFinished, 0, 0);
    return *this;
  }

  AttemptResult run(double hang_timeout_s = kNever_s, const BackgroundTask& background = {}) {
    return supervise(setup, board, hang_timeout_s, background);
  }

  TempFolder folder;
  StatusBoard board;
  WorkerSetup setup;
  SupervisedSignals signals;
};

/// Sends this process a signal when all ranks run, and again when `again` exists.
std::thread signal_when_started(const Attempt& attempt, int signal, const char* again = nullptr) {
  return std::thread([&attempt, signal, again] {
    const auto wait_for = [&](const std::string& name) {
      while (!fs::exists(attempt.folder.path() / name)) ::usleep(2000);
    };
    for (int rank = 0; rank < attempt.setup.world_size; ++rank) {
      wait_for("ready." + std::to_string(rank));
    }
    ::kill(::getpid(), signal);
    if (again == nullptr) return;
    wait_for(again);
    ::kill(::getpid(), signal);
  });
}

TEST_CASE("an attempt whose ranks all finish is a success") {
  Attempt attempt(3, "exit 0");
  const AttemptResult result = attempt.finished(0).finished(1).finished(2).run();
  CHECK_FALSE(result.failure);
  CHECK(result.exit_code == 0);
  CHECK(result.stopped_by == 0);
  CHECK(fs::exists(attempt.folder.path() / "started.2"));
}

TEST_CASE("a rank that exits with 0 before its work is done is a failure") {
  Attempt attempt(2, "exit 0");
  const AttemptResult result = attempt.finished(0).run();
  REQUIRE(result.failure);
  CHECK(result.failure->rank == 1);
  CHECK_THAT(result.failure->cause, ContainsSubstring("before the run was over"));
}

TEST_CASE("a killed rank ends the others within seconds") {
  const double begin_s = monotonic_seconds();
  Attempt attempt(3, "[ $RANK = 1 ] && kill -KILL $$; exec sleep 60");
  const AttemptResult result = attempt.run();
  REQUIRE(result.failure);
  CHECK(result.failure->rank == 1);
  CHECK(result.failure->code == ExitCode::kDistributed);
  CHECK_THAT(result.failure->cause, ContainsSubstring("signal 9 (Killed) in step 11 (epoch 1)"));
  CHECK(result.failure->victims.empty());
  CHECK(monotonic_seconds() - begin_s < 5);
}

TEST_CASE("victims get a moment to report, and the cause stays the cause") {
  Attempt attempt(
      3,
      "case $RANK in\n"
      "0) while kill -0 $(cat $FOLDER/pid 2>/dev/null || echo $$); do sleep 0.01; done "
      "2>/dev/null\n"
      "   printf '{\"code\":4,\"message\":\"lost a peer\",\"is_victim\":true}' >&4; exit "
      "4;;\n"
      "1) sleep 0.1; echo $$ > $FOLDER/pid; sleep 0.2; printf "
      "'{\"code\":1,\"message\":\"a NaN\"}' >&4; exit 1;;\n"
      "2) exec sleep 60;;\n"
      "esac");
  const AttemptResult result = attempt.run();
  REQUIRE(result.failure);
  CHECK(result.failure->code == ExitCode::kRunFailed);
  CHECK(result.failure->rank == 1);
  CHECK_THAT(result.failure->cause, ContainsSubstring("a NaN"));
  CHECK_THAT(result.failure->victims, ContainsSubstring("lost a peer"));
}

TEST_CASE("a rank without progress is named, and all are ended") {
  const double begin_s = monotonic_seconds();
  Attempt attempt(2, "exec sleep 60");
  std::thread other([&] {  // rank 0 continues
    while (monotonic_seconds() - begin_s < 0.9) {
      update(attempt.board.of(0), Phase::kTraining, 1, 50);
      ::usleep(20000);
    }
  });
  const AttemptResult result = attempt.run(/*hang_timeout_s=*/0.5);
  other.join();
  REQUIRE(result.failure);
  CHECK(result.failure->code == ExitCode::kDistributed);
  CHECK(result.failure->rank == 1);
  CHECK_THAT(result.failure->cause, ContainsSubstring("rank 1 has been in step 11 (epoch 1)"));
  CHECK_THAT(result.failure->cause, ContainsSubstring("launch.hang_timeout_s"));
  CHECK_THAT(result.failure->victims, ContainsSubstring("rank 0"));
  CHECK(monotonic_seconds() - begin_s < 5);
}

TEST_CASE("of ranks that stall together one that was stopped is the cause") {
  Attempt attempt(3, "[ $RANK = 2 ] && kill -STOP $$; exec sleep 60");
  const AttemptResult result = attempt.run(/*hang_timeout_s=*/0.3);
  REQUIRE(result.failure);
  CHECK(result.failure->rank == 2);
  CHECK_THAT(result.failure->cause, ContainsSubstring("it is stopped"));
}

TEST_CASE("a signal is passed on and the ranks are waited for while they save") {
  for (const int signal : {SIGTERM, SIGINT}) {
    const std::string code = std::to_string(128 + signal);
    Attempt attempt(2, "trap 'sleep 0.2; touch $FOLDER/saved.$RANK; exit " + code +
                           "' TERM INT; touch $FOLDER/ready.$RANK; while :; do sleep 0.01; done");
    std::thread sender = signal_when_started(attempt, signal);
    const AttemptResult result = attempt.run();
    sender.join();
    CHECK_FALSE(result.failure);
    CHECK(result.stopped_by == signal);
    CHECK(result.exit_code == 128 + signal);
    CHECK_FALSE(result.cut_off);
    CHECK(fs::exists(attempt.folder.path() / "saved.0"));
    CHECK(fs::exists(attempt.folder.path() / "saved.1"));
  }
}

TEST_CASE("ranks may exit with the code of another signal than the first one") {
  Attempt attempt(2,
                  "trap 'exit $((130 + 13 * RANK))' TERM; touch $FOLDER/ready.$RANK; while :; do "
                  "sleep 0.01; done");
  std::thread sender = signal_when_started(attempt, SIGTERM);
  const AttemptResult result = attempt.run();
  sender.join();
  CHECK_FALSE(result.failure);
  CHECK(result.stopped_by == SIGTERM);
  CHECK(result.exit_code == 128 + SIGTERM);
}

TEST_CASE("ranks that finish although they were asked to stop succeed") {
  Attempt attempt(2, "trap '' TERM; touch $FOLDER/ready.$RANK; sleep 0.3; exit 0");
  attempt.finished(0).finished(1);
  std::thread sender = signal_when_started(attempt, SIGTERM);
  const AttemptResult result = attempt.run();
  sender.join();
  CHECK_FALSE(result.failure);
  CHECK(result.stopped_by == SIGTERM);
  CHECK(result.exit_code == 0);
}

TEST_CASE("a rank that is killed by the passed-on signal is no failure") {
  Attempt attempt(2, "touch $FOLDER/ready.$RANK; exec sleep 60");
  std::thread sender = signal_when_started(attempt, SIGTERM);
  const AttemptResult result = attempt.run();
  sender.join();
  CHECK_FALSE(result.failure);
  CHECK(result.stopped_by == SIGTERM);
  CHECK(result.exit_code == 128 + SIGTERM);
}

TEST_CASE("a second Ctrl-C does not wait for ranks that do not stop") {
  const double begin_s = monotonic_seconds();
  Attempt attempt(2,
                  "trap 'touch $FOLDER/noted.$RANK' INT; touch $FOLDER/ready.$RANK; while :; "
                  "do sleep 0.01; done");
  std::thread sender = signal_when_started(attempt, SIGINT, "noted.1");
  const AttemptResult result = attempt.run();
  sender.join();
  CHECK_FALSE(result.failure);
  CHECK(result.stopped_by == SIGINT);
  CHECK(result.exit_code == 128 + SIGINT);
  CHECK(result.cut_off);
  CHECK(monotonic_seconds() - begin_s < 10);
}

TEST_CASE("the background task is started after the ranks and finished once") {
  Attempt attempt(1, "exec sleep 0.5");
  attempt.finished(0);
  std::array<int, 2> pipe{};
  REQUIRE(::pipe2(pipe.data(), O_CLOEXEC) == 0);
  const UniqueFd read_end(pipe[0]);
  UniqueFd write_end(pipe[1]);
  int started = 0;
  int finished = 0;
  BackgroundTask task;
  task.ready_fd = read_end.get();
  task.start = [&] {
    ++started;
    write_end.reset();  // hangs up: over
  };
  task.finish = [&] { ++finished; };
  CHECK_FALSE(attempt.run(kNever_s, task).failure);
  CHECK(started == 1);
  CHECK(finished == 1);
}

TEST_CASE("an error in the background task ends the ranks and is thrown") {
  const double begin_s = monotonic_seconds();
  Attempt attempt(2, "echo $$ > $FOLDER/pid.$RANK; exec sleep 60");
  std::array<int, 2> pipe{};
  REQUIRE(::pipe2(pipe.data(), O_CLOEXEC) == 0);
  const UniqueFd read_end(pipe[0]);
  UniqueFd write_end(pipe[1]);
  BackgroundTask task;
  task.ready_fd = read_end.get();
  task.start = [&] {
    for (const char* name : {"pid.0", "pid.1"}) {
      while (text_of(attempt.folder.path() / name).find('\n') == std::string::npos) ::usleep(2000);
    }
    write_end.reset();
  };
  task.finish = [] { throw Error(ExitCode::kData, "the images are cut short"); };
  const auto failure = error_of([&] { attempt.run(kNever_s, task); });
  CHECK(failure.code == ExitCode::kData);
  CHECK(failure.message == "the images are cut short");
  for (const char* name : {"pid.0", "pid.1"}) {
    CHECK(::kill(std::stoi(text_of(attempt.folder.path() / name)), 0) != 0);
  }
  CHECK(monotonic_seconds() - begin_s < 10);
}

/// A machine without cgroups that counts processes killed for lack of memory.
struct Machine : testing::TempFolder {
  Machine() {
    write("proc/meminfo", "MemTotal: 1048576 kB\n");
    kill();
  }
  void kill() { write("proc/vmstat", "oom_kill " + std::to_string(++kills) + "\n"); }
  int kills = 0;
};

AttemptResult lost_rank(std::int64_t furthest_step, bool was_killed = true) {
  AttemptResult result;
  result.furthest_step = furthest_step;
  result.failure.emplace().cause = "rank 1 was lost";
  result.failure->code = ExitCode::kDistributed;
  result.failure->was_killed = was_killed;
  result.failure->restart_may_help = true;
  result.failure->phase = Phase::kTraining;
  return result;
}

TEST_CASE("a rank killed for lack of memory is out of memory, and the same limit ends the run") {
  Machine machine;
  RestartPolicy policy(machine.path());
  machine.kill();
  AttemptResult first = lost_rank(20);
  policy.name_memory_limit(first);
  CHECK(first.failure->code == ExitCode::kRunFailed);
  CHECK_THAT(first.failure->cause,
             ContainsSubstring("rank 1 was lost: out of memory: processes used up the 1 GiB"));
  CHECK_THAT(first.failure->cause,
             ContainsSubstring("lower batch_size or the number of processes"));
  CHECK(first.failure->restart_may_help);
  CHECK_FALSE(policy.is_futile(first));

  machine.kill();
  AttemptResult second = lost_rank(40);
  policy.name_memory_limit(second);
  CHECK_FALSE(second.failure->restart_may_help);
}

TEST_CASE("memory that runs out before a step was completed is no reason to restart") {
  for (const std::int64_t step : {0, 1}) {
    Machine machine;
    RestartPolicy policy(machine.path());
    machine.kill();
    AttemptResult result = lost_rank(step);
    policy.name_memory_limit(result);
    CHECK_FALSE(result.failure->restart_may_help);
  }
}

TEST_CASE("a rank lost for another reason is not out of memory") {
  Machine machine;
  RestartPolicy policy(machine.path());
  AttemptResult killed_by_hand = lost_rank(0);
  policy.name_memory_limit(killed_by_hand);
  machine.kill();  // of another program
  AttemptResult crashed = lost_rank(0, /*was_killed=*/false);
  policy.name_memory_limit(crashed);
  for (const AttemptResult& result : {killed_by_hand, crashed}) {
    CHECK(result.failure->cause == "rank 1 was lost");
    CHECK(result.failure->code == ExitCode::kDistributed);
    CHECK(result.failure->restart_may_help);
  }
}

TEST_CASE("three restarts in a row without progress are the last") {
  const Machine machine;
  RestartPolicy policy(machine.path());
  CHECK_FALSE(policy.is_futile(lost_rank(5)));
  CHECK_FALSE(policy.is_futile(lost_rank(5)));
  CHECK_FALSE(policy.is_futile(lost_rank(9)));
  CHECK(policy.furthest_step() == 9);
  CHECK_FALSE(policy.is_futile(lost_rank(9)));
  CHECK_FALSE(policy.is_futile(lost_rank(8)));
  CHECK(policy.is_futile(lost_rank(9)));
  CHECK(policy.futile_attempts() == 3);
}

}  // namespace
}  // namespace mnist_train::launch
