#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "launch/job.h"
#include "launch/status_board.h"
#include "launch/supervisor.h"
#include "support/error_of.h"
#include "support/scoped_environment.h"
#include "support/shell_worker.h"

namespace mnist_train::launch {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::ContainsSubstring;
using namespace testing;

constexpr int kLong_ms = 20000;

const WorkerExit& end_of(WorkerProcess& worker) {
  for (int wait_ms = 0; worker.running() && wait_ms < kLong_ms; wait_ms += 2) {
    ::usleep(2000);
    worker.reap();
  }
  REQUIRE(worker.exit());
  return *worker.exit();
}

bool eventually_contains(const fs::path& path, const std::string& text) {
  for (int wait_ms = 0; wait_ms < kLong_ms; wait_ms += 5) {
    if (text_of(path).find(text) != std::string::npos) return true;
    ::usleep(5000);
  }
  return false;
}

/// Workers that run a shell script with a temporary folder in `$FOLDER`.
struct Workers {
  explicit Workers(const std::string& script, int world_size = 2) {
    setup.executable = shell_worker(folder, "FOLDER=" + folder.path().string() + "\n" + script);
    setup.world_size = world_size;
  }

  WorkerProcess start(int rank = 0) const { return WorkerProcess::start(setup, rank); }
  void run_all() const {
    for (int rank = 0; rank < setup.world_size; ++rank) {
      WorkerProcess worker = start(rank);
      CHECK(end_of(worker).code == 0);
    }
  }
  fs::path path(const char* name) const { return folder.path() / name; }
  std::string text(const char* name) const { return text_of(path(name)); }

  TempFolder folder;
  WorkerSetup setup;
};

TEST_CASE("a worker's variables override those in the launcher's environment") {
  const ScopedEnvironment stale("RANK", "17");
  const ScopedEnvironment kept("MNIST_TRAIN_TEST_KEPT", "yes");
  Workers workers("env > $FOLDER/env.$RANK; cat >> $FOLDER/stdin.$RANK", 3);
  workers.setup.master_port = 4567;
  WorkerProcess worker = workers.start(1);
  CHECK(worker.rank() == 1);
  CHECK(end_of(worker).code == 0);
  const std::string environment = "\n" + workers.text("env.1");
  for (const char* line : {"RANK=1", "LOCAL_RANK=1", "WORLD_SIZE=3", "LOCAL_WORLD_SIZE=3",
                           "MASTER_ADDR=127.0.0.1", "MASTER_PORT=4567", "MNIST_TRAIN_TEST_KEPT=yes",
                           "MNIST_TRAIN_HANDED_OVER=failure console"}) {
    CHECK_THAT(environment, ContainsSubstring(std::string("\n") + line + "\n"));
  }
  CHECK_THAT(environment, !ContainsSubstring("RANK=17"));
  CHECK(workers.text("stdin.1").empty());
}

TEST_CASE("descriptors are passed under fixed numbers, and the socket only to rank 0") {
  const UniqueFd job = publish_job({});
  const StatusBoard board = StatusBoard::create(2);
  const ListenSocket listener = listen_on_loopback();
  Workers workers(
      "echo \"$MNIST_TRAIN_HANDED_OVER\" > $FOLDER/names.$RANK; for fd in 3 4 5 6 7 8 9 10 11; do "
      "[ -e /proc/$$/fd/$fd ] && echo $fd; done > $FOLDER/open.$RANK; cat <&3 > "
      "$FOLDER/job.$RANK");
  workers.setup.descriptors[kJobFd] = job.get();
  workers.setup.descriptors[kStatusFd] = board.fd();
  workers.setup.descriptors[kListenFd] = listener.fd.get();
  workers.run_all();
  CHECK(workers.text("names.0") == "job failure console status listen\n");
  CHECK(workers.text("names.1") == "job failure console status\n");
  // dash itself reads the script from descriptor 10.
  CHECK_THAT(workers.text("open.0"), Catch::Matchers::StartsWith("3\n4\n5\n6\n9\n"));
  CHECK_THAT(workers.text("open.1"), Catch::Matchers::StartsWith("3\n4\n5\n6\n10"));
}

TEST_CASE("a worker's report and exit status are collected") {
  struct Case {
    const char* script;
    int code;
    int signal;
    const char* message;  // null: no report
  };
  for (const Case& known :
       {Case{"exit 0", 0, 0, nullptr}, Case{"exit 7", 7, 0, nullptr},
        Case{"kill -KILL $$", 0, SIGKILL, nullptr}, Case{"kill -SEGV $$", 0, SIGSEGV, nullptr},
        Case{"printf '{\"code\":3,\"message\":\"bad file\"}' >&4; exit 3", 3, 0, "bad file"},
        Case{"printf '{\"code\":3,\"mess' >&4; kill -KILL $$", 0, SIGKILL, nullptr}}) {
    const Workers workers(known.script);
    WorkerProcess worker = workers.start();
    const WorkerExit& exit = end_of(worker);
    INFO(known.script);
    CHECK(exit.code == known.code);
    CHECK(exit.signal == known.signal);
    CHECK(exit.failure.has_value() == (known.message != nullptr));
    if (exit.failure && known.message != nullptr) CHECK(exit.failure->message == known.message);
    CHECK_FALSE(worker.running());
  }
}

TEST_CASE("workers write to their logs, but rank 0 shares the launcher's standard output") {
  Workers workers("echo out $RANK; echo err $RANK >&2");
  workers.setup.log_folder = workers.folder.path();
  // Temporarily replaces the standard output of this process.
  const UniqueFd saved(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 100));
  const UniqueFd file(::open(workers.path("stdout").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  REQUIRE(::dup2(file.get(), STDOUT_FILENO) >= 0);
  workers.run_all();
  REQUIRE(::dup2(saved.get(), STDOUT_FILENO) >= 0);
  CHECK(workers.text("stdout") == "out 0\n");
  CHECK(workers.text("rank-0.log") == "err 0\n");
  CHECK(workers.text("rank-1.log") == "out 1\nerr 1\n");
}

TEST_CASE("workers do not inherit blocked signals") {
  const TempFolder folder;
  // The script runs `tail -f` on itself instead of a shell, which could change the signal mask.
  const fs::path script = folder.write("worker", "#!/usr/bin/tail -f\nready\n");
  fs::permissions(script, fs::perms::owner_all);
  sigset_t blocked;
  sigset_t before;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, SIGTERM);
  REQUIRE(::pthread_sigmask(SIG_BLOCK, &blocked, &before) == 0);
  WorkerSetup setup;
  setup.executable = script;
  setup.world_size = 2;
  setup.log_folder = folder.path();
  WorkerProcess worker = WorkerProcess::start(setup, 1);
  REQUIRE(::pthread_sigmask(SIG_SETMASK, &before, nullptr) == 0);
  CHECK(eventually_contains(folder.path() / "rank-1.log", "ready"));
  worker.reap();
  CHECK(worker.running());
  worker.send(SIGTERM);
  CHECK(end_of(worker).signal == SIGTERM);
}

TEST_CASE("destroying a WorkerProcess kills the worker") {
  const Workers workers("exec sleep 60");
  pid_t pid = -1;
  {
    WorkerProcess first = workers.start();
    const WorkerProcess worker = std::move(first);
    pid = worker.pid();
    CHECK(::kill(pid, 0) == 0);
  }
  CHECK(::kill(pid, 0) != 0);
}

TEST_CASE("the error about an executable that cannot be started has the path and the reason") {
  Workers workers("");
  workers.setup.executable = workers.path("absent");
  CHECK_THAT(error_of([&] { workers.start(); }),
             IsError(ExitCode::kRunFailed, "absent: No such file or directory"));
}

TEST_CASE("a log that cannot be opened is an error, and no worker is started") {
  Workers workers("");
  workers.setup.log_folder = workers.path("absent");
  CHECK_THAT(error_of([&] { workers.start(); }), IsError(ExitCode::kRunFailed, "rank-0.log"));
}

TEST_CASE("a worker knows which descriptors were passed to it") {
  const ScopedEnvironment names("MNIST_TRAIN_HANDED_OVER", "job failure dataset-ready");
  CHECK(was_handed_over("job"));
  CHECK(was_handed_over("failure"));
  CHECK(was_handed_over("dataset-ready"));
  CHECK_FALSE(was_handed_over("dataset"));
  CHECK_FALSE(was_handed_over("ready"));
  CHECK_FALSE(was_handed_over("listen"));
  const ScopedEnvironment nothing("MNIST_TRAIN_HANDED_OVER", nullptr);
  CHECK_FALSE(was_handed_over("job"));
}

}  // namespace
}  // namespace mnist_train::launch
