#include "comm/shared_memory_averager.h"

#include <ATen/ops/full.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/system.h"

namespace mnist_train::comm {

namespace {

constexpr std::int64_t kGrain = 64;      // elements; no two ranks write to one cache line
constexpr int kSpins = 2000;             // some 20 microseconds
constexpr long kSleep_ns = 100'000'000;  // between two looks at the other processes

static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

void sleep_until_changed(std::atomic<std::uint32_t>& word, std::uint32_t seen) {
  const timespec at_most{0, kSleep_ns};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &at_most, nullptr, 0);
}

void wake_all(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

[[noreturn]] void throw_lost(int rank) {
  throw PeerError("lost another rank in gradient averaging: the process of rank " +
                  std::to_string(rank) + " is gone");
}

bool is_before(std::uint32_t meeting, std::uint32_t wanted) {
  return static_cast<std::int32_t>(meeting - wanted) < 0;  // also when they have wrapped around
}

GradientBuffer require_fitting(const Communicator& communicator, GradientBuffer buffer) {
  if (SharedMemoryAverager::fits(communicator, buffer)) return buffer;
  throw Error(ExitCode::kConfig,
              "gradient_averaging.strategy \"shared_memory\" is for processes on the CPUs of one "
              "host; take \"flat\" or \"bucketed\"");
}

}  // namespace

bool SharedMemoryAverager::fits(const Communicator& communicator, const GradientBuffer& buffer) {
  if (communicator.reduces_on_device()) return false;  // and has no way for a tensor on a CPU
  at::Tensor misfits = at::full({1}, communicator.one_host() && buffer.flat.is_cpu() ? 0.0 : 1.0);
  communicator.all_reduce_sum(misfits);
  return misfits.item<float>() == 0;
}

SharedMemoryAverager::SharedMemoryAverager(const Communicator& communicator, GradientBuffer buffer)
    : GradientAverager(require_fitting(communicator, std::move(buffer))),
      communicator_(communicator),
      riders_(riders()),
      segment_(communicator, segment_bytes()),
      changes_(reinterpret_cast<std::atomic<std::uint32_t>*>(segment_.take(sizeof *changes_))),
      ranks_(reinterpret_cast<RankState*>(
          segment_.take(sizeof *ranks_ * static_cast<std::size_t>(communicator.world_size())))) {
  for (int rank = 0; rank < communicator_.world_size(); ++rank) {
    rider_slots_.push_back(segment_.take_like(riders_));
    if (rank == communicator_.rank()) {
      segment_.move_here(buffer_.flat, /*with_contents=*/true);
      slots_.push_back(buffer_.flat);
    } else {
      slots_.push_back(segment_.take_like(buffer_.flat));
    }
  }
  ranks_[communicator_.rank()].pid = ::getpid();
  communicator_.barrier();
  for (int rank = 0; rank < communicator_.world_size(); ++rank) {
    const pid_t pid = ranks_[rank].pid;
    processes_.emplace_back(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (!processes_.back().valid() && errno == ESRCH) throw_lost(rank);
  }
}

std::size_t SharedMemoryAverager::segment_bytes() const {
  const auto ranks = static_cast<std::size_t>(communicator_.world_size());
  return cache_aligned(sizeof *changes_) + sizeof *ranks_ * ranks +
         ranks * (cache_aligned(riders_.nbytes()) + cache_aligned(buffer_.flat.nbytes()));
}

/// Rank 0's contents, which are everybody's.
void SharedMemoryAverager::move_to_shared_memory(const std::vector<at::Tensor>& state) {
  std::size_t bytes = 0;
  for (const at::Tensor& tensor : state) bytes += cache_aligned(tensor.nbytes());
  SharedSegment segment(communicator_, bytes);
  for (const at::Tensor& tensor : state) {
    segment.move_here(tensor, /*with_contents=*/communicator_.rank() == 0);
  }
  barrier();
}

Shard SharedMemoryAverager::shard_of(int rank) const {
  const std::int64_t count = gradient_count();
  const auto begin_of = [&](std::int64_t number) {
    const std::int64_t even = count * number / communicator_.world_size();
    return std::min(count, (even + kGrain - 1) / kGrain * kGrain);
  };
  return {begin_of(rank), begin_of(rank + 1) - begin_of(rank)};
}

at::Tensor SharedMemoryAverager::gradients(int slot, int shard_of_rank) const {
  return shard_of(shard_of_rank).of(slots_[static_cast<std::size_t>(slot)]);
}

void SharedMemoryAverager::finish() {
  const int mine = communicator_.rank();
  rider_slots_[static_cast<std::size_t>(mine)].copy_(riders_);
  barrier();
  riders_.zero_();
  for (const at::Tensor& riders : rider_slots_) riders_.add_(riders);
  // Nobody else reads this part of this slot, so the sum can take its place.
  at::Tensor sum = gradients(mine, mine);
  for (int rank = 0; rank < communicator_.world_size(); ++rank) {
    if (rank != mine) sum.add_(gradients(rank, mine));
  }
}

void SharedMemoryAverager::all_gather() {
  const int mine = communicator_.rank();
  barrier();
  for (int rank = 0; rank < communicator_.world_size(); ++rank) {
    if (rank != mine) gradients(mine, rank).copy_(gradients(rank, rank));
  }
  barrier();
}

/// Returns when all ranks have come here as often as this one.
void SharedMemoryAverager::barrier() {
  ++meetings_;
  ranks_[communicator_.rank()].meetings.store(meetings_, std::memory_order_release);
  changes_->fetch_add(1);
  wake_all(*changes_);
  wait_for_all();
}

void SharedMemoryAverager::wait_for_all() const {
  const launch::WaitScope waiting(communicator_.status(), launch::Wait::kAveraging);
  const double begin_s = monotonic_seconds();
  int spins = 0;
  for (int rank = 0; rank < communicator_.world_size();) {
    const std::uint32_t seen = changes_->load();
    if (!is_before(ranks_[rank].meetings.load(std::memory_order_acquire), meetings_)) {
      ++rank;
      continue;
    }
    if (++spins < kSpins) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
      continue;
    }
    sleep_until_changed(*changes_, seen);
    require_alive(rank);
    if (monotonic_seconds() - begin_s > communicator_.timeout_s()) {
      throw PeerError("gradient averaging: rank " + std::to_string(rank) + " did not come within " +
                      std::to_string(static_cast<int>(communicator_.timeout_s())) + " s");
    }
  }
}

/// By its descriptor, which tells the end of a process also where its parent has not asked for it.
void SharedMemoryAverager::require_alive(int rank) const {
  pollfd end{processes_[static_cast<std::size_t>(rank)].get(), POLLIN, 0};
  if (::poll(&end, 1, 0) == 1) throw_lost(rank);
}

}  // namespace mnist_train::comm
