#include "launch/supervisor.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
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

/// Blocks the supervised signals, as the launcher does; the destructor discards pending ones.
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
    for (const int signal : {SIGTERM, SIGINT, SIGQUIT, SIGCHLD}) ::sigaddset(&taken, signal);
    const timespec at_once{};
    while (::sigtimedwait(&taken, nullptr, &at_once) > 0) continue;
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t before_{};
};

/// Ranks that run a shell script with a temporary folder in `$FOLDER`.
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

  AttemptResult run(double hang_timeout_s = kNever_s) {
    return supervise(setup, board, hang_timeout_s, BackgroundTask{});
  }

  /// Sends this process a signal when all ranks are ready, and `second` when the file `again`
  /// exists.
  AttemptResult run_with_signal(int signal, const char* again, int second) {
    std::thread sender([&] {
      const auto wait_for = [&](const std::string& name) {
        while (!fs::exists(folder.path() / name)) ::usleep(2000);
      };
      for (int rank = 0; rank < setup.world_size; ++rank) {
        wait_for("ready." + std::to_string(rank));
      }
      ::kill(::getpid(), signal);
      if (again == nullptr) return;
      wait_for(again);
      ::kill(::getpid(), second);
    });
    const AttemptResult result = run();
    sender.join();
    return result;
  }

  TempFolder folder;
  StatusBoard board;
  WorkerSetup setup;
  SupervisedSignals signals;
};

TEST_CASE("an attempt whose ranks all finish is a success") {
  Attempt attempt(3, "exit 0");
  const AttemptResult result = attempt.finished(0).finished(1).finished(2).run();
  CHECK_FALSE(result.failure);
  CHECK(result.exit_code == 0);
  CHECK(result.stopped_by == 0);
  CHECK(fs::exists(attempt.folder.path() / "started.2"));
}

TEST_CASE("a run that one rank was asked to stop is a success once all ranks have saved") {
  Attempt attempt(2, "exit 143");
  const AttemptResult result = attempt.finished(0).finished(1).run();
  CHECK_FALSE(result.failure);
  CHECK(result.exit_code == 143);
}

TEST_CASE("a rank that exits with 0 before its work is done is a failure") {
  Attempt attempt(2, "exit 0");
  const AttemptResult result = attempt.finished(0).run();
  REQUIRE(result.failure);
  CHECK(result.failure->rank == 1);
  CHECK_THAT(result.failure->cause, ContainsSubstring("before the run was over"));
}

TEST_CASE("victims get time to report but do not replace the cause") {
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

TEST_CASE("when ranks stall together, a stopped rank is the cause") {
  Attempt attempt(3, "[ $RANK = 2 ] && kill -STOP $$; exec sleep 60");
  const AttemptResult result = attempt.run(/*hang_timeout_s=*/0.3);
  REQUIRE(result.failure);
  CHECK(result.failure->rank == 2);
  CHECK_THAT(result.failure->cause, ContainsSubstring("it is stopped"));
}

TEST_CASE("the supervisor lets ranks save after one signal, but not after a second one") {
  const std::string saves = "trap 'sleep 0.2; touch $FOLDER/saved.$RANK; exit ";
  const std::string loops = "; touch $FOLDER/ready.$RANK; while :; do sleep 0.01; done";
  struct Case {
    std::string script;
    int signal;
    int exit_code;
    bool finished = false;
    const char* again = nullptr;
    int second = signal;
  };
  for (const Case& asked : {
           Case{saves + "143' TERM INT" + loops, SIGTERM, 128 + SIGTERM},
           Case{saves + "130' TERM INT" + loops, SIGINT, 128 + SIGINT},
           // Rank 0 exits with the status for SIGINT, although SIGTERM was sent.
           Case{"trap 'exit $((130 + 13 * RANK))' TERM" + loops, SIGTERM, 128 + SIGTERM},
           // The ranks ignore the signal and finish.
           Case{"trap '' TERM; touch $FOLDER/ready.$RANK; sleep 0.3; exit 0", SIGTERM, 0, true},
           // The forwarded signal kills the ranks.
           Case{"touch $FOLDER/ready.$RANK; exec sleep 60", SIGTERM, 128 + SIGTERM},
           // The ranks do not stop.
           Case{"trap 'touch $FOLDER/noted.$RANK' INT" + loops, SIGINT, 128 + SIGINT, false,
                "noted.1"},
           Case{"trap 'touch $FOLDER/noted.$RANK' INT" + loops, SIGINT, 128 + SIGTERM, false,
                "noted.1", SIGQUIT},
       }) {
    INFO(asked.script);
    const double begin_s = monotonic_seconds();
    Attempt attempt(2, asked.script);
    if (asked.finished) attempt.finished(0).finished(1);
    const AttemptResult result = attempt.run_with_signal(asked.signal, asked.again, asked.second);
    CHECK_FALSE(result.failure);
    CHECK(result.stopped_by == asked.second);
    CHECK(result.exit_code == asked.exit_code);
    CHECK(result.killed_before_save == (asked.again != nullptr));
    const bool saved = asked.script.starts_with(saves);
    CHECK(fs::exists(attempt.folder.path() / "saved.0") == saved);
    CHECK(fs::exists(attempt.folder.path() / "saved.1") == saved);
    CHECK(monotonic_seconds() - begin_s < 10);
  }
}

/// A machine without cgroups whose kernel counts out-of-memory kills.
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

TEST_CASE("a rank killed by the OOM killer is reported, and the second kill ends the run") {
  Machine machine;
  RestartPolicy policy(machine.path());
  AttemptResult first = lost_rank(20);
  AttemptResult second = lost_rank(40);
  for (AttemptResult* result : {&first, &second}) {
    machine.kill();
    policy.add_memory_limit(*result);
    CHECK(result->failure->restart_may_help == (result == &first));
    CHECK_FALSE(policy.is_futile(*result));
  }
  CHECK(first.failure->code == ExitCode::kRunFailed);
  CHECK_THAT(first.failure->cause,
             ContainsSubstring("rank 1 was lost: out of memory: processes used up the 1 GiB"));
  CHECK_THAT(first.failure->cause,
             ContainsSubstring("lower batch_size or the number of processes"));
}

TEST_CASE("if memory runs out before a step completes, the run does not restart") {
  for (const std::int64_t step : {0, 1}) {
    Machine machine;
    RestartPolicy policy(machine.path());
    machine.kill();
    AttemptResult result = lost_rank(step);
    policy.add_memory_limit(result);
    CHECK_FALSE(result.failure->restart_may_help);
  }
}

TEST_CASE("a rank lost for another reason is not reported as out of memory") {
  Machine machine;
  RestartPolicy policy(machine.path());
  for (const bool killed_by_hand : {true, false}) {
    AttemptResult result = lost_rank(0, killed_by_hand);
    policy.add_memory_limit(result);
    CHECK(result.failure->cause == "rank 1 was lost");
    CHECK(result.failure->code == ExitCode::kDistributed);
    CHECK(result.failure->restart_may_help);
    machine.kill();  // the OOM killer kills another program
  }
}

TEST_CASE("the run ends after three consecutive attempts without progress") {
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
  RestartPolicy before_first_step(machine.path());
  for (const bool futile : {false, false, true}) {
    CHECK(before_first_step.is_futile(lost_rank(0)) == futile);
  }
}

sockaddr_in own_address(const ListenSocket& listener) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  ::getsockname(listener.fd.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return address;
}

TEST_CASE("the port is reserved, and child processes do not inherit it") {
  const ListenSocket first = listen_on_loopback();
  const ListenSocket second = listen_on_loopback();
  CHECK(first.port != second.port);
  CHECK((::fcntl(first.fd.get(), F_GETFD) & FD_CLOEXEC) != 0);
}

TEST_CASE("a host's socket listens only on the host's address, and only if this machine has it") {
  const int port = listen_on_loopback().port;  // probably still free
  for (const char* host : {"127.0.0.1", "localhost"}) {
    const auto listener = listen_on_host(host, port, /*others_come=*/false);
    REQUIRE(listener);
    CHECK(listener->port == port);
    if (own_address(*listener).sin_family == AF_INET) {
      CHECK(ntohl(own_address(*listener).sin_addr.s_addr) == INADDR_LOOPBACK);
    }
  }
  CHECK_FALSE(listen_on_host("127.0.0.1", port, /*others_come=*/true));
  CHECK_FALSE(listen_on_host("192.0.2.1", port, /*others_come=*/true));  // TEST-NET-1
  CHECK_FALSE(listen_on_host("no such host", port, /*others_come=*/true));
}

TEST_CASE("the error about a port in use names host and port") {
  const ListenSocket holder = listen_on_loopback();
  const auto failure = testing::error_of([&] { listen_on_host("127.0.0.1", holder.port, false); });
  CHECK(failure.code == ExitCode::kDistributed);
  CHECK(failure.message == "cannot listen on port " + std::to_string(holder.port) +
                               " of 127.0.0.1: Address already in use");
}

/// A rank in its first step, observed at the regular interval.
struct Watched {
  explicit Watched(double limit_s) : meter(limit_s) { (void)meter.sample(status, now_s); }

  double look_for(double seconds) {
    double stalled_s = 0;
    for (const double end_s = now_s + seconds; now_s < end_s - 1e-6;) {
      now_s += StallMeter::kSampleInterval_s;
      stalled_s = meter.sample(status, now_s);
    }
    return stalled_s;
  }
  double sleep(double seconds) { return meter.sample(status, now_s += seconds); }

  std::unique_ptr<RankStatus> on_heap = std::make_unique<RankStatus>();  // aligned
  RankStatus& status = *on_heap;
  StallMeter meter;
  double now_s = 1000;
};

TEST_CASE("a stall lasts until the status changes") {
  Watched rank(10);
  CHECK(rank.look_for(4) == Approx(4));
  CHECK(rank.look_for(4) == Approx(8));
  rank.status.updated_s = rank.now_s;
  CHECK(rank.look_for(1) < 1);
  { const WaitScope waiting(&rank.status, Wait::kAllReduce); }  // counts as progress
  CHECK(rank.look_for(1) < 1);
}

TEST_CASE("time during which the observer was stopped does not count") {
  for (const double slept_s : {0.9, 3.0, 11.0, 1e6}) {
    Watched rank(10);
    CHECK(rank.look_for(5) == Approx(5));
    CHECK(rank.sleep(slept_s) < 5.5);
    CHECK(rank.look_for(4) < 9.5);
  }
}

TEST_CASE("a rank that resumes later than its observer gets the full time limit again") {
  Watched rank(2);
  (void)rank.look_for(1.8);  // the rank is stopped before its observer
  (void)rank.sleep(60);
  CHECK(rank.look_for(1.8) < 2);
  CHECK(rank.look_for(0.4) >= 2);  // the rank never resumes
}

TEST_CASE("an observer that is often late still detects a stall") {
  Watched rank(10);
  for (int i = 0; i < 30; ++i) (void)rank.sleep(0.9);
  CHECK(rank.sleep(0.2) >= 10);
}

/// Returns the seconds until a watch with a limit of 0.3 s warns, or 1.5 if it does not warn.
double spoke_after_s(RankStatus& status) {
  const double begin_s = monotonic_seconds();
  std::atomic<double> spoke_s = 1.5;
  const ProgressWatch watch(status, 0.3, [&](double) { spoke_s = monotonic_seconds() - begin_s; });
  while (spoke_s == 1.5 && monotonic_seconds() - begin_s < 1.5) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return spoke_s;
}

TEST_CASE("a wait beyond the limit is reported in any phase") {
  const auto on_heap = std::make_unique<RankStatus>();
  RankStatus& status = *on_heap;
  update(status, Phase::kLoadingWeights, 0, 0);
  CHECK(spoke_after_s(status) == 1.5);  // loading is not a wait
  const WaitScope waiting(&status, Wait::kBroadcast);
  CHECK(spoke_after_s(status) < 1.5);
}

/// Ranks that step at the pace of the slowest rank and are checked every four seconds.
struct Run {
  explicit Run(int ranks) : board(StatusBoard::attach(-1, ranks)), watch(ranks) {
    for (int rank = 0; rank < ranks; ++rank) update(board.of(rank), Phase::kTraining, 1, 0);
    (void)watch.check(board, now_s);
  }

  /// `own_ms`: compute time per step, by rank.
  std::optional<std::string> check_after(int steps, const std::vector<double>& own_ms) {
    const double step_ms = *std::max_element(own_ms.begin(), own_ms.end());
    for (std::size_t rank = 0; rank < own_ms.size(); ++rank) {
      RankStatus& status = board.of(static_cast<int>(rank));
      update(status, Phase::kTraining, 1, status.step + steps);
      status.stepped_s += 1e-3 * step_ms * steps;
      status.waited_s = status.waited_s + 1e-3 * (step_ms - own_ms[rank]) * steps;
    }
    now_s += 4;
    return watch.check(board, now_s);
  }

  StatusBoard board;
  StragglerWatch watch;
  double now_s = 100;
};

TEST_CASE("a slow rank is reported once, at the second check") {
  Run run(3);
  CHECK_FALSE(run.check_after(100, {10, 30, 11}));
  const auto warning = run.check_after(100, {10, 30, 11});
  REQUIRE(warning);
  CHECK_THAT(*warning, ContainsSubstring("rank 1 is slow: its steps take 30.0 ms"));
  CHECK_THAT(*warning, ContainsSubstring("compared with 11.0 ms"));
  for (int i = 0; i < 3; ++i) CHECK_FALSE(run.check_after(100, {10, 30, 11}));
}

TEST_CASE("ranks of similar speed, or ranks that take turns being slow, cause no warning") {
  Run alike(2);
  Run in_turn(2);
  for (int i = 0; i < 4; ++i) {
    CHECK_FALSE(alike.check_after(100, {10, 14}));
    CHECK_FALSE(in_turn.check_after(100, {10, 40}));
    CHECK_FALSE(in_turn.check_after(100, {40, 10}));
  }
}

TEST_CASE("tiny steps, few steps and a single rank never cause a warning") {
  Run tiny(2);
  for (int i = 0; i < 4; ++i) CHECK_FALSE(tiny.check_after(1000, {0.1, 0.9}));
  Run few(2);
  CHECK_FALSE(few.check_after(1, {1000, 3000}));
  CHECK_FALSE(few.check_after(1, {1000, 3000}));
  CHECK_FALSE(few.check_after(3, {1000, 3000}));  // the first valid check, after five steps
  CHECK(few.check_after(5, {1000, 3000}));
  Run alone(1);
  for (int i = 0; i < 4; ++i) CHECK_FALSE(alone.check_after(100, {10}));
}

}  // namespace
}  // namespace mnist_train::launch
