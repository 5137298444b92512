#include "comm/shared_memory_averager.h"

#include <ATen/ops/cat.h>
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
constexpr long kSleep_ns = 100'000'000;  // between two checks of the other processes

static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

/// Sleeps until the word is not `seen` any more. Returns false where it still was after a while.
bool wait_for_change(std::atomic<std::uint32_t>& word, std::uint32_t seen) {
  const timespec at_most{0, kSleep_ns};
  return ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &at_most, nullptr, 0) == 0 ||
         errno != ETIMEDOUT;
}

void wake_all(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

[[noreturn]] void throw_lost(int rank) {
  throw PeerError("lost another rank in gradient averaging: the process of rank " +
                  std::to_string(rank) + " is gone");
}

bool is_before(std::uint32_t reached, std::uint32_t wanted) {
  return static_cast<std::int32_t>(reached - wanted) < 0;  // also where they wrapped around
}

GradientBuffer require_fitting(const Communicator& communicator, GradientBuffer buffer) {
  if (SharedMemoryAverager::fits(communicator, buffer.flat.device())) return buffer;
  throw Error(ExitCode::kConfig,
              "gradient_averaging.strategy \"shared_memory\" needs all processes on the CPUs of "
              "one host; set it to \"flat\" or \"bucketed\"");
}

}  // namespace

bool SharedMemoryAverager::fits(const Communicator& communicator, at::Device device) {
  if (communicator.reduces_on_device()) return false;  // and has no way for a tensor on a CPU
  const bool fits_here = communicator.one_host() && device.is_cpu();
  return communicator.sum_over_ranks(fits_here ? 0 : 1) == 0;
}

SharedMemoryAverager::SharedMemoryAverager(const Communicator& communicator, GradientBuffer buffer)
    : GradientAverager(require_fitting(communicator, std::move(buffer))),
      communicator_(communicator),
      statistics_(statistics()),
      segment_(communicator, segment_bytes()),
      changes_(reinterpret_cast<std::atomic<std::uint32_t>*>(segment_.take(sizeof *changes_))),
      ranks_(reinterpret_cast<RankState*>(
          segment_.take(sizeof *ranks_ * static_cast<std::size_t>(communicator.world_size())))) {
  for (int rank = 0; rank < communicator_.world_size(); ++rank) {
    statistics_slots_.push_back(segment_.take_like(own_statistics()));
    const auto share = [&](const at::Tensor& own) {
      if (rank != communicator_.rank()) return segment_.take_like(own);
      segment_.move_here(own, /*with_contents=*/true);
      return own;
    };
    tables_.push_back(share(buffer_.rows));
    if (keeps_bf16()) bf16_tables_.push_back(share(buffer_.bf16_rows));
  }
  ranks_[communicator_.rank()].pid = ::getpid();
  communicator_.barrier();
  for (int rank = 0; rank < communicator_.world_size(); ++rank) {
    const pid_t pid = ranks_[rank].pid;
    processes_.emplace_back(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (is_gone(rank)) throw_lost(rank);
  }
}

std::size_t SharedMemoryAverager::segment_bytes() const {
  const auto ranks = static_cast<std::size_t>(communicator_.world_size());
  std::size_t bytes =
      cache_aligned(own_statistics().nbytes()) + cache_aligned(buffer_.rows.nbytes());
  if (keeps_bf16()) bytes += cache_aligned(buffer_.bf16_rows.nbytes());
  return cache_aligned(sizeof *changes_) + (sizeof *ranks_ + bytes) * ranks;
}

void SharedMemoryAverager::move_to_shared_memory(const std::vector<at::Tensor>& state) {
  std::size_t bytes = 0;
  for (const at::Tensor& tensor : state) bytes += cache_aligned(tensor.nbytes());
  SharedSegment segment(communicator_, bytes);
  for (const at::Tensor& tensor : state) {
    segment.move_here(tensor, /*with_contents=*/communicator_.rank() == 0);
  }
  barrier();
}

Slice SharedMemoryAverager::slice_of(int rank) const {
  const std::int64_t count = gradient_count();
  const auto begin_of = [&](std::int64_t number) {
    const std::int64_t even = count * number / communicator_.world_size();
    return std::min(count, (even + kGrain - 1) / kGrain * kGrain);
  };
  return {begin_of(rank), begin_of(rank + 1) - begin_of(rank)};
}

/// Returns the owner's slice of a row of the table of `rank`.
at::Tensor SharedMemoryAverager::gradients(int rank, std::int64_t row, int owner) const {
  return slice_of(owner).of(tables_[static_cast<std::size_t>(rank)].select(0, row));
}

/// Returns the statistics of the rows that this rank gives to the others, a view.
at::Tensor SharedMemoryAverager::own_statistics() const {
  return buffer_.rows.narrow(0, 0, static_cast<std::int64_t>(buffer_.tree.rows_of_rank()))
      .narrow(1, gradient_count(), buffer_.statistics);
}

void SharedMemoryAverager::average() {
  const int mine = communicator_.rank();
  statistics_slots_[static_cast<std::size_t>(mine)].copy_(own_statistics());
  barrier();
  // All ranks add these up, so each needs a copy to do it in.
  comm::add_up(at::cat(statistics_slots_).unbind(), buffer_.tree.over_ranks(), statistics_);
}

void SharedMemoryAverager::all_gather() {
  const int mine = communicator_.rank();
  barrier();
  for (int rank = 0; rank < communicator_.world_size(); ++rank) {
    if (rank != mine) gradients(mine, 0, rank).copy_(gradients(rank, 0, rank));
  }
  barrier();
}

bool SharedMemoryAverager::end_update(bool finite) {
  if (!finite) ranks_[communicator_.rank()].broken = true;
  barrier();
  return std::none_of(ranks_, ranks_ + communicator_.world_size(),
                      [](const RankState& rank) { return rank.broken.load(); });
}

void SharedMemoryAverager::barrier() {
  ++barriers_;
  ranks_[communicator_.rank()].barriers.store(barriers_, std::memory_order_release);
  changes_->fetch_add(1);
  wake_all(*changes_);
  wait_for_all();
}

void SharedMemoryAverager::wait_for_all() const {
  const launch::WaitScope waiting(communicator_.status(), launch::Wait::kAveraging);
  int spins = 0;
  for (int rank = 0; rank < communicator_.world_size();) {
    const std::uint32_t seen = changes_->load();
    if (has_arrived(rank)) {
      ++rank;
      continue;
    }
    if (++spins < kSpins) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
      continue;
    }
    if (wait_for_change(*changes_, seen)) continue;
    require_no_loss();
  }
}

bool SharedMemoryAverager::has_arrived(int rank) const {
  return !is_before(ranks_[rank].barriers.load(std::memory_order_acquire), barriers_);
}

/// Throws PeerError where a process has ended before it reached the barrier. Whether it has ended
/// is asked first, since it may reach the barrier and end meanwhile.
void SharedMemoryAverager::require_no_loss() const {
  for (int rank = 0; rank < communicator_.world_size(); ++rank) {
    if (!has_arrived(rank) && is_gone(rank) && !has_arrived(rank)) throw_lost(rank);
  }
}

/// Asks the process's descriptor, which tells its end even while its parent has not waited for it,
/// or /proc where the system has no such descriptors (before Linux 5.3, and in some sandboxes).
bool SharedMemoryAverager::is_gone(int rank) const {
  const UniqueFd& process = processes_[static_cast<std::size_t>(rank)];
  if (!process.valid()) {
    const auto state = process_state(ranks_[rank].pid);
    return !state || state == 'Z';
  }
  pollfd end{process.get(), POLLIN, 0};
  return ::poll(&end, 1, 0) == 1;
}

}  // namespace mnist_train::comm
