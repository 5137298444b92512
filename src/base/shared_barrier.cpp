#include "base/shared_barrier.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <climits>

namespace mnist_train {

namespace {

constexpr int kSpins = 2000;
constexpr long kSleep_ns = 100'000'000;  // between two checks of the other ranks

static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

/// Sleeps until the word differs from `seen`. Returns false if it still was `seen` after a while.
bool wait_for_change(std::atomic<std::uint32_t>& word, std::uint32_t seen) {
  const timespec at_most{0, kSleep_ns};
  return ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &at_most, nullptr, 0) == 0 ||
         errno != ETIMEDOUT;
}

}  // namespace

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
    } else if (++spins < kSpins) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    } else if (!wait_for_change(changes_->value, seen)) {
      for (int other = rank; other < ranks_; ++other) {
        if (!has_arrived(other)) check(other);
      }
    }
  }
}

bool SharedBarrier::has_arrived(int rank) const {
  const std::uint32_t reached = arrivals_[rank].value.load(std::memory_order_acquire);
  return static_cast<std::int32_t>(reached - arrived_) >= 0;  // also if they wrapped around
}

}  // namespace mnist_train
