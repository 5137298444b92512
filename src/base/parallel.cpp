#include "base/parallel.h"

#include <dlfcn.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <exception>
#include <mutex>

#include "base/system.h"

namespace mnist_train {

namespace {

template <class Function>
Function* loaded_function(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
}

/// Functions for the calling thread's LibTorch thread count; null if LibTorch is not loaded.
struct OpenMp {
  /// at::get_num_threads, not OpenMP's own function, because a thread's first call initialises
  /// LibTorch's thread count for that thread.
  int (*max_threads)() = loaded_function<int()>("_ZN2at15get_num_threadsEv");
  void (*set_threads)(int) = loaded_function<void(int)>("omp_set_num_threads");
  int (*in_parallel)() = loaded_function<int()>("omp_in_parallel");

  bool is_loaded() const {
    return max_threads != nullptr && set_threads != nullptr && in_parallel != nullptr;
  }
};

const OpenMp& open_mp() {
  static const OpenMp kLibrary;
  return kLibrary;
}

thread_local bool in_shared_work = false;

/// Work divided into parts. Each thread takes the next part until none is left.
class SharedWork {
 public:
  using Function = std::function<void(std::int64_t, std::int64_t)>;

  SharedWork(std::int64_t begin, std::int64_t end, std::int64_t parts, const Function& work)
      : end_(end), part_size_((end - begin + parts - 1) / parts), next_(begin), function_(work) {}

  /// Processes parts until none is left. LibTorch operations inside them use one thread.
  void do_parts() {
    const int threads = open_mp().max_threads();
    open_mp().set_threads(1);
    in_shared_work = true;
    for (;;) {
      const std::int64_t begin = next_.fetch_add(part_size_);
      if (begin >= end_) break;
      try {
        function_(begin, std::min(begin + part_size_, end_));
      } catch (...) {
        if (!failed_.test_and_set()) failure_ = std::current_exception();
      }
    }
    in_shared_work = false;
    open_mp().set_threads(threads);
  }
  /// Rethrows the first exception of a part, if any. Call it after all threads have finished.
  void rethrow_failure() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  const std::int64_t end_, part_size_;
  std::atomic<std::int64_t> next_;
  const Function& function_;
  std::atomic_flag failed_;
  std::exception_ptr failure_;
};

/// Briefly yields the core to its other hardware thread.
void pause_spinning() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Spins with back-off before sleeping, because waking a thread takes longer than many waits. If a
/// spin fails, the other thread may need the core that spinning occupies, so the next waits sleep
/// at once: first one wait, then two, doubling up to 64.
class SpinWait {
 public:
  /// Returns whether `done` became true; if not, it is time to sleep.
  template <class Done>
  bool until(const Done& done) {
    if (skipped_ > 0) {
      --skipped_;
      return done();
    }
    const auto end = std::chrono::steady_clock::now() + kMaxSpinTime;
    do {
      for (int i = 0; i < kSpinsPerClockRead; ++i) {
        if (done()) {
          next_skipped_ = 1;
          return true;
        }
        pause_spinning();
      }
    } while (std::chrono::steady_clock::now() < end);
    skipped_ = next_skipped_;
    next_skipped_ = std::min(2 * next_skipped_, kMaxSkipped);
    return false;
  }

 private:
  static constexpr std::chrono::microseconds kMaxSpinTime{100};
  static constexpr int kSpinsPerClockRead = 16;
  static constexpr int kMaxSkipped = 64;

  int skipped_ = 0;
  int next_skipped_ = 1;
};

/// Helper threads for one calling thread at a time. They live as long as the process.
class Helpers {
 public:
  static Helpers& instance() {
    static auto* const kInstance = new Helpers();  // never destroyed: its threads are detached
    return *kInstance;
  }

  /// Does the work on the calling thread and at most `wanted` helpers. Does not wait for helpers
  /// that have not joined in. Returns false if the helpers are serving another thread.
  bool share(SharedWork& work, std::uint32_t wanted) {
    const std::unique_lock lock(in_use_, std::try_to_lock);
    if (!lock) return false;
    for (; threads_ < wanted; ++threads_) start_thread([this] { help(); }).detach();
    work_ = &work;
    crew_.store(wanted * kMaxHelpersUnit, std::memory_order_release);
    rounds_.fetch_add(1);
    rounds_.notify_all();
    work.do_parts();
    crew_.fetch_and(kActiveHelpersMask);
    const auto helpers_done = [this] { return crew_.load() == 0; };
    if (!spin_wait_.until(helpers_done)) {
      for (std::uint32_t seen = crew_.load(); seen != 0; seen = crew_.load()) crew_.wait(seen);
    }
    return true;
  }

 private:
  // The lower half of `crew_` counts active helpers; the upper half is their maximum number.
  static constexpr std::uint32_t kMaxHelpersUnit = 1U << 16U;
  static constexpr std::uint32_t kActiveHelpersMask = kMaxHelpersUnit - 1;

  void help() {
    SpinWait spin_wait;
    for (std::uint32_t seen = 0;;) {
      if (!spin_wait.until([&] { return rounds_.load() != seen; })) rounds_.wait(seen);
      seen = rounds_.load();
      if (!join()) continue;
      work_->do_parts();
      if (crew_.fetch_sub(1) == 1) crew_.notify_one();
    }
  }

  /// Returns whether this helper joined `crew_`. If so, it must decrement `crew_` after the work.
  bool join() {
    std::uint32_t crew = crew_.load(std::memory_order_acquire);
    do {
      if ((crew & kActiveHelpersMask) >= crew / kMaxHelpersUnit) return false;
    } while (!crew_.compare_exchange_weak(crew, crew + 1));
    return true;
  }

  std::mutex in_use_;
  std::uint32_t threads_ = 0;
  std::atomic<std::uint32_t> rounds_{0};  // of work so far
  std::atomic<std::uint32_t> crew_{0};
  SharedWork* work_ = nullptr;
  SpinWait spin_wait_;
};

constexpr std::int64_t kPartsPerThread = 4;  // so that a descheduled thread takes fewer

constexpr int kBarrierSpins = 2000;
constexpr long kBarrierSleep_ns = 100'000'000;  // between checks on the other ranks

static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

/// Sleeps while the word, which processes share, equals `seen`, but may wake spuriously. Returns
/// false on timeout.
bool wait_for_change(std::atomic<std::uint32_t>& word, std::uint32_t seen) {
  const timespec timeout{0, kBarrierSleep_ns};
  return ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &timeout, nullptr, 0) == 0 ||
         errno != ETIMEDOUT;
}

}  // namespace

void parallel_for(std::int64_t begin, std::int64_t end, std::int64_t grain,
                  const std::function<void(std::int64_t, std::int64_t)>& work) {
  if (begin >= end) return;
  const std::int64_t max_parts = (end - begin) / std::max<std::int64_t>(1, grain);
  const OpenMp& library = open_mp();
  if (max_parts > 1 && library.is_loaded() && !in_shared_work && library.in_parallel() == 0) {
    const int threads = library.max_threads();
    if (threads > 1) {
      SharedWork shared(begin, end, std::min(max_parts, threads * kPartsPerThread), work);
      const auto extra = static_cast<std::uint32_t>(std::min<std::int64_t>(threads, max_parts) - 1);
      if (Helpers::instance().share(shared, extra)) return shared.rethrow_failure();
    }
  }
  work(begin, end);
}

std::size_t SharedBarrier::bytes(int ranks) {
  return sizeof(Counter) * static_cast<std::size_t>(ranks + 1);
}

SharedBarrier::SharedBarrier(void* memory, int rank, int ranks)
    : changes_(static_cast<Counter*>(memory)),
      arrivals_(changes_ + 1),
      rank_(rank),
      ranks_(ranks) {}

void SharedBarrier::arrive_and_wait(const std::function<void(int rank)>& check) {
  arrivals_[rank_].value.store(++arrived_, std::memory_order_release);
  changes_->value.fetch_add(1);
  ::syscall(SYS_futex, &changes_->value, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  int spins = 0;
  for (int rank = 0; rank < ranks_;) {
    const std::uint32_t seen = changes_->value.load();
    if (has_arrived(rank)) {
      ++rank;
    } else if (++spins < kBarrierSpins) {
      pause_spinning();
    } else if (!wait_for_change(changes_->value, seen)) {
      for (int other = 0; other < ranks_; ++other) {
        if (other != rank_) check(other);
      }
    }
  }
}

bool SharedBarrier::has_arrived(int rank) const {
  const std::uint32_t reached = arrivals_[rank].value.load(std::memory_order_acquire);
  return static_cast<std::int32_t>(reached - arrived_) >= 0;  // even after wraparound
}

}  // namespace mnist_train
