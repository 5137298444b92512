#include "launch/supervisor.h"

#include <poll.h>
#include <spdlog/fmt/fmt.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>

namespace mnist_train::launch {

namespace {

constexpr double kGraceAfterFailure_s = 1.0;
constexpr int kPollInterval_ms = static_cast<int>(1000 * StallMeter::kSampleInterval_s);

sigset_t supervised_signals() {
  sigset_t signals = stop_signal_set();
  ::sigaddset(&signals, SIGCHLD);
  return signals;
}

/// Returns whether a process ended because of a stop signal.
bool is_stop(const WorkerExit& exit) {
  return std::ranges::any_of(stop_signals(), [&exit](int signal) {
    return exit.signal != 0 ? exit.signal == signal : exit.code == stopped_exit_code(signal);
  });
}

/// The state of one attempt while it runs.
class Attempt {
 public:
  Attempt(const WorkerSetup& setup, const StatusBoard& board, double hang_timeout_s,
          const BackgroundTask& background, const Warn& warn)
      : board_(board),
        hang_timeout_s_(hang_timeout_s),
        background_(background),
        warn_(warn),
        may_restart_(setup.may_restart),
        stragglers_(setup.world_size),
        meters_(static_cast<std::size_t>(setup.world_size), StallMeter(hang_timeout_s)) {
    const sigset_t signals = supervised_signals();
    signal_fd_ = UniqueFd(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!signal_fd_.valid()) throw_errno("listen for signals");
    for (int rank = 0; rank < setup.world_size; ++rank) {
      workers_.push_back(WorkerProcess::start(setup, rank));
    }
    if (background_.ready_fd >= 0) background_.start();
  }

  AttemptResult run() {
    while (std::ranges::any_of(workers_, &WorkerProcess::running)) {
      wait_for_event();
      take_signals();
      finish_background();
      collect_exits();
      check_progress();
      warn_of_stragglers();
      if (failed() && monotonic_seconds() >= failed_at_s_ + grace_s()) kill_all();
    }
    collect_exits();  // sending a signal may reveal that a rank never began
    return result();
  }

 private:
  bool failed() const { return failed_at_s_ > 0; }

  void wait_for_event() {
    std::vector<pollfd> events{{signal_fd_.get(), POLLIN, 0}};  // also readable when a rank exits
    if (background_.ready_fd >= 0) events.push_back({background_.ready_fd, POLLIN, 0});
    for (const WorkerProcess& worker : workers_) {
      if (worker.is_pending()) events.push_back({worker.started_fd(), POLLIN, 0});
    }
    ::poll(events.data(), events.size(), kPollInterval_ms);
  }

  void take_signals() {
    signalfd_siginfo info{};
    while (::read(signal_fd_.get(), &info, sizeof info) == sizeof info) {
      const int signal = static_cast<int>(info.ssi_signo);
      if (signal == SIGCHLD) continue;
      const bool from_keyboard = signal == SIGINT || signal == SIGQUIT;
      if (from_keyboard && ++interrupts_ > 1) {
        stopped_by_ = signal;
        kill_all();
        continue;
      }
      if (stopped_by_ == 0) stopped_by_ = signal;
      collect_exits();  // a rank that could not be started was not stopped by this signal
      for (WorkerProcess& worker : workers_) worker.send(signal);
    }
  }

  void finish_background() {
    if (background_.ready_fd < 0) return;
    pollfd event{background_.ready_fd, POLLIN, 0};
    if (::poll(&event, 1, 0) != 1) return;
    background_.ready_fd = -1;
    background_.finish();  // if it throws, the ranks' destructors kill them
  }

  bool has_succeeded(const WorkerProcess& worker) const {
    const WorkerExit& exit = *worker.exit();
    // A stop signal kills a rank that does not handle signals yet. If multiple signals were sent, a
    // rank may have received a different one first.
    if (stopped_by_ != 0 && is_stop(exit)) return true;
    // Ranks also save and stop if a signal was sent to one of them instead of to the launcher.
    return (exit.code == 0 || is_stop(exit)) && board_.of(worker.rank()).phase == Phase::kFinished;
  }

  void collect_exits() {
    for (WorkerProcess& worker : workers_) {
      worker.reap();
      if (worker.running() || std::ranges::count(ends_, worker.rank(), &RankEnd::rank) > 0)
        continue;
      ends_.push_back(
          {worker.rank(), worker.pid(), *worker.exit(), killed_, has_succeeded(worker)});
      if (ends_.back().succeeded || killed_) continue;
      if (!failed()) failed_at_s_ = monotonic_seconds();
      is_cause_known_ = is_cause_known_ || worker.exit()->signal != 0;
    }
  }

  /// Returns how long to wait for the other ranks' reports, which are not needed before a restart
  /// if a killed rank is known to be the cause.
  double grace_s() const {
    return may_restart_ && is_cause_known_ && stopped_by_ == 0 ? 0 : kGraceAfterFailure_s;
  }

  void check_progress() {
    if (failed()) return;
    std::vector<StalledRank> ranks;
    double longest_s = 0;
    for (const WorkerProcess& worker : workers_) {
      if (!worker.running()) continue;
      StallMeter& meter = meters_[static_cast<std::size_t>(worker.rank())];
      ranks.push_back(
          {worker.rank(), meter.sample(board_.of(worker.rank()), monotonic_seconds()), false, 0});
      longest_s = std::max(longest_s, ranks.back().seconds);
    }
    if (ranks.empty() || longest_s < hang_timeout_s_) return;
    for (StalledRank& stalled : ranks) {
      stalled.stopped = workers_[static_cast<std::size_t>(stalled.rank)].is_stopped();
    }
    stalled_ = find_culprit(ranks, board_);
    if (stalled_->seconds < hang_timeout_s_ / 2) stalled_->others_wait_s = longest_s;
    failed_at_s_ = monotonic_seconds();
    kill_all();
  }

  void warn_of_stragglers() {
    if (failed() || stopped_by_ != 0) return;
    const auto warning = stragglers_.check(board_, monotonic_seconds());
    if (warning && warn_) warn_(*warning);
  }

  void kill_all() {
    collect_exits();  // a rank that has just exited on its own was not killed
    for (WorkerProcess& worker : workers_) worker.send(SIGKILL);
    killed_ = true;
  }

  AttemptResult result() const {
    AttemptResult result;
    result.stopped_by = stopped_by_;
    result.finished = board_.of(0).phase == Phase::kFinished;
    for (const RankEnd& end : ends_) {
      result.furthest_step = std::max(result.furthest_step, board_.of(end.rank).step.load());
      result.killed_before_save =
          result.killed_before_save ||
          (interrupts_ > 1 && end.rank == 0 && end.killed_by_launcher && !end.succeeded);
      const bool is_stopped = stopped_by_ != 0 && (end.exit.signal != 0 || is_stop(end.exit));
      result.exit_code =
          std::max(result.exit_code, is_stopped ? stopped_exit_code(stopped_by_) : end.exit.code);
    }
    if (failed() && !only_stopped()) result.failure = summarize_failure(ends_, stalled_, board_);
    return result;
  }

  /// Returns whether the ranks ended only on request, or as victims of a rank that stopped first.
  bool only_stopped() const {
    return stopped_by_ != 0 && !stalled_ && std::ranges::all_of(ends_, [](const RankEnd& end) {
             return end.succeeded || end.killed_by_launcher ||
                    (end.exit.failure && end.exit.failure->is_victim);
           });
  }

  const StatusBoard& board_;
  double hang_timeout_s_;
  BackgroundTask background_;
  const Warn& warn_;
  bool may_restart_;
  StragglerWatch stragglers_;
  std::vector<StallMeter> meters_;  // by rank
  UniqueFd signal_fd_;
  std::vector<WorkerProcess> workers_;
  std::vector<RankEnd> ends_;  // in chronological order
  std::optional<StalledRank> stalled_;
  double failed_at_s_ = 0;
  int stopped_by_ = 0;
  int interrupts_ = 0;  // from the keyboard
  bool is_cause_known_ = false;
  bool killed_ = false;
};

void watch(const std::stop_token& stop, const RankStatus& status, double limit_s,
           const ProgressWatch::OnStall& on_stall) {
  constexpr double kMargin_s = 2;  // lets a rank that waits for this one report first and name it
  std::mutex mutex;
  std::condition_variable_any ended;
  std::unique_lock lock(mutex);
  StallMeter meter(limit_s);
  while (!ended.wait_for(lock, stop, std::chrono::duration<double>(StallMeter::kSampleInterval_s),
                         [&stop] { return stop.stop_requested(); })) {
    const double stalled_s = meter.sample(status, monotonic_seconds());
    const Phase phase = status.phase;
    const bool waits = status.wait != Wait::kNothing;
    const bool steps = phase == Phase::kTraining || phase == Phase::kEvaluation;
    const bool too_long = stalled_s > limit_s + (waits ? 0 : kMargin_s);
    if (too_long && (waits || steps)) return on_stall(stalled_s);
  }
}

}  // namespace

std::vector<int> stop_signals() {
  std::vector<int> signals{SIGTERM, SIGINT, SIGQUIT, SIGUSR1};
  struct sigaction hang_up {};
  ::sigaction(SIGHUP, nullptr, &hang_up);
  if (hang_up.sa_handler != SIG_IGN) signals.push_back(SIGHUP);
  return signals;
}

sigset_t stop_signal_set() {
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int signal : stop_signals()) ::sigaddset(&signals, signal);
  return signals;
}

int stopped_exit_code(int signal) {
  return static_cast<int>(signal == SIGINT ? ExitCode::kInterrupted : ExitCode::kTerminated);
}

void block_supervised_signals() {
  const sigset_t signals = supervised_signals();
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  ::signal(SIGCHLD, SIG_DFL);  // this process may have inherited it as ignored
}

AttemptResult supervise(const WorkerSetup& setup, const StatusBoard& board, double hang_timeout_s,
                        const BackgroundTask& background, const Warn& warn) {
  return Attempt(setup, board, hang_timeout_s, background, warn).run();
}

void RestartPolicy::add_memory_limit(AttemptResult& result) {
  const auto exhausted_limit = oom_kills_.new_kill();
  RunFailure& failure = *result.failure;
  if (!exhausted_limit || !failure.was_killed) return;
  failure.code = ExitCode::kRunFailed;
  failure.cause += ": " + out_of_memory(failure.phase, *exhausted_limit);
  const bool completed_a_step = result.furthest_step > std::max<std::int64_t>(furthest_step_, 1);
  failure.restart_may_help = completed_a_step && exhausted_limit_ != exhausted_limit;
  exhausted_limit_ = exhausted_limit;
}

bool RestartPolicy::is_futile(const AttemptResult& result) {
  constexpr int kMaxFutileAttempts = 3;
  const bool progress = result.furthest_step > furthest_step_;
  furthest_step_ = std::max(furthest_step_, result.furthest_step);
  futile_attempts_ = progress ? 0 : futile_attempts_ + 1;
  return futile_attempts_ >= kMaxFutileAttempts;
}

double StallMeter::sample(const RankStatus& status, double now_s) {
  const double elapsed_s = now_s - sampled_at_s_;
  sampled_at_s_ = now_s;
  const Progress progress{status.updated_s.load(), status.waits.load()};
  const bool has_progress = progress != seen_ || elapsed_s > long_sleep_s_;
  seen_ = progress;
  stalled_s_ = has_progress ? 0 : stalled_s_ + std::min(elapsed_s, 2 * kSampleInterval_s);
  return stalled_s_;
}

ProgressWatch::ProgressWatch(const RankStatus& status, double limit_s, OnStall on_stall)
    : watching_(
          start_task([&status, limit_s, on_stall = std::move(on_stall), stop = stop_.get_token()] {
            watch(stop, status, limit_s, on_stall);
          })) {}

StragglerWatch::StragglerWatch(int ranks)
    : ranks_(static_cast<std::size_t>(ranks)), suspect_(ranks_.size()) {}

std::optional<std::string> StragglerWatch::check(const StatusBoard& board, double now_s) {
  constexpr double kWindow_s = 3;
  constexpr std::int64_t kMinSteps = 5;
  constexpr double kMuchSlower = 1.5;
  constexpr double kNoticeable_s = 0.001;  // per step
  const std::size_t count = ranks_.size();
  if (count < 2 || now_s - checked_s_ < kWindow_s) return std::nullopt;
  std::vector<RankProgress> now = ranks_;
  std::vector<std::pair<double, std::size_t>> step_s;  // busy time per step, and the rank
  for (std::size_t rank = 0; rank < count; ++rank) {
    const RankStatus& status = board.of(static_cast<int>(rank));
    now[rank].step = status.step.load();
    now[rank].busy_s = status.stepped_s.load() - status.waited_s.load();
    const std::int64_t steps = now[rank].step - ranks_[rank].step;
    if (steps < kMinSteps) return std::nullopt;
    step_s.emplace_back((now[rank].busy_s - ranks_[rank].busy_s) / static_cast<double>(steps),
                        rank);
  }
  checked_s_ = now_s;
  ranks_ = std::move(now);
  std::sort(step_s.begin(), step_s.end());
  const auto [slowest_s, slowest] = step_s.back();
  const double others_s = step_s[(count - 1) / 2].first;  // the median
  const bool is_slow = slowest_s > kMuchSlower * others_s && slowest_s - others_s > kNoticeable_s;
  const bool is_slow_again = is_slow && suspect_ == slowest;
  suspect_ = is_slow ? slowest : count;
  if (!is_slow_again || std::exchange(ranks_[slowest].warned, true)) return std::nullopt;
  return fmt::format(
      "rank {} is slow: its steps take {:.1f} ms, compared with {:.1f} ms on {}", slowest,
      1000 * slowest_s, 1000 * others_s,
      count == 2 ? "the other rank, which waits for it" : "other ranks, which wait for it");
}

}  // namespace mnist_train::launch
