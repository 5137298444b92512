#include "comm/shared_memory_averager.h"

#include <ATen/ops/add.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"

namespace mnist_train::comm {

namespace {

constexpr std::size_t kCacheLine = 64;
constexpr std::size_t kPathBytes = 64;
constexpr int kSpins = 2000;             // some 20 microseconds
constexpr long kSleep_ns = 100'000'000;  // between two looks at the other processes

static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

[[noreturn]] void throw_errno(const char* action) {
  throw Error(ExitCode::kRunFailed, std::string("gradient averaging: cannot ") + action +
                                        " shared memory: " + std::strerror(errno) +
                                        "; gradient_averaging.strategy \"flat\" goes without");
}

std::size_t aligned(std::size_t bytes) {
  return (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
}

/// Unnamed, so that nothing is left of it whatever ends the processes, and without the limit of
/// /dev/shm, which is small in containers. All of it is taken now: a page that is missing later
/// would kill the process.
UniqueFd make_segment(std::size_t bytes) {
  UniqueFd fd(::memfd_create("mnist-train-gradients", MFD_CLOEXEC));
  if (!fd.valid()) throw_errno("make");
  if (const int error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes)); error != 0) {
    errno = error;
    throw_errno("allocate");
  }
  return fd;
}

/// Collective: rank 0's segment, by which the others find it.
std::string agree_on_path(const Communicator& communicator, int fd) {
  std::string path = "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(fd);
  path.resize(kPathBytes);
  at::Tensor bytes = at::empty({static_cast<std::int64_t>(kPathBytes)}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), path.data(), kPathBytes);
  communicator.broadcast(bytes);
  return static_cast<const char*>(bytes.const_data_ptr());
}

/// Collective.
void meet(const Communicator& communicator) {
  at::Tensor nothing = at::zeros({1});
  communicator.all_reduce_sum(nothing);
}

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

bool is_before(std::uint32_t step, std::uint32_t wanted) {
  return static_cast<std::int32_t>(step - wanted) < 0;  // also when they have wrapped around
}

}  // namespace

bool SharedMemoryAverager::fits(const Communicator& communicator, const GradientBuffer& buffer) {
  at::Tensor misfits = at::full({1}, communicator.one_host() && buffer.flat.is_cpu() ? 0.0 : 1.0);
  communicator.all_reduce_sum(misfits);
  return misfits.item<float>() == 0;
}

SharedMemoryAverager::SharedMemoryAverager(const Communicator& communicator, GradientBuffer buffer)
    : communicator_(communicator), buffer_(std::move(buffer)) {
  if (!fits(communicator_, buffer_)) {
    throw Error(ExitCode::kConfig,
                "gradient_averaging.strategy \"shared_memory\" is for processes on the CPUs of one "
                "host; take \"flat\" or \"bucketed\"");
  }
  const auto ranks = static_cast<std::size_t>(communicator_.world_size());
  const std::size_t slot_bytes = aligned(buffer_.flat.nbytes());
  const std::size_t bytes = slots_offset() + (ranks + 1) * slot_bytes;
  UniqueFd fd;
  if (communicator_.rank() == 0) fd = make_segment(bytes);
  const std::string path = agree_on_path(communicator_, fd.get());
  if (communicator_.rank() != 0) fd = UniqueFd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd.valid()) throw_errno("open");
  map_segment(fd.get(), bytes);
  state(communicator_.rank()).pid = ::getpid();
  meet(communicator_);
  for (int rank = 0; rank < communicator_.world_size(); ++rank) {
    const pid_t pid = state(rank).pid;
    processes_.emplace_back(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (!processes_.back().valid() && errno == ESRCH) throw_lost(rank);
  }
}

std::size_t SharedMemoryAverager::slots_offset() const {
  return kCacheLine + sizeof(RankState) * static_cast<std::size_t>(communicator_.world_size());
}

void SharedMemoryAverager::map_segment(int fd, std::size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (memory == MAP_FAILED) throw_errno("map");
  segment_ = {static_cast<std::uint8_t*>(memory),
              [bytes](std::uint8_t* address) { ::munmap(address, bytes); }};
  changes_ = reinterpret_cast<std::atomic<std::uint32_t>*>(segment_.get());
  std::uint8_t* next = segment_.get() + slots_offset();
  const auto take = [&] {
    at::Tensor tensor = at::from_blob(next, buffer_.flat.sizes(), buffer_.flat.options());
    next += aligned(buffer_.flat.nbytes());
    return tensor;
  };
  sum_ = take();
  for (int rank = 0; rank < communicator_.world_size(); ++rank) slots_.push_back(take());
}

SharedMemoryAverager::RankState& SharedMemoryAverager::state(int rank) const {
  return reinterpret_cast<RankState*>(segment_.get() + kCacheLine)[rank];
}

void SharedMemoryAverager::finish() {
  ++step_;
  const int rank = communicator_.rank();
  const int ranks = communicator_.world_size();
  slots_[static_cast<std::size_t>(rank)].copy_(buffer_.flat);
  publish(&RankState::arrived);
  wait_for_all(&RankState::arrived);
  const std::int64_t count = buffer_.flat.numel();
  const std::int64_t begin = count * rank / ranks;
  const std::int64_t size = count * (rank + 1) / ranks - begin;
  at::Tensor part = sum_.narrow(0, begin, size);
  const auto part_of = [&](std::size_t slot) { return slots_[slot].narrow(0, begin, size); };
  at::add_out(part, part_of(0), part_of(1));
  for (std::size_t slot = 2; slot < slots_.size(); ++slot) part.add_(part_of(slot));
  publish(&RankState::reduced);
  // Nobody reads slots any more once all have passed here, nor the sum once all come back.
  wait_for_all(&RankState::reduced);
  buffer_.flat.copy_(sum_);
}

void SharedMemoryAverager::publish(Counter counter) {
  (state(communicator_.rank()).*counter).store(step_, std::memory_order_release);
  changes_->fetch_add(1);
  wake_all(*changes_);
}

void SharedMemoryAverager::wait_for_all(Counter counter) const {
  const launch::WaitScope waiting(communicator_.status(), launch::Wait::kAveraging);
  const double begin_s = monotonic_seconds();
  int spins = 0;
  for (int rank = 0; rank < communicator_.world_size();) {
    const std::uint32_t seen = changes_->load();
    if (!is_before((state(rank).*counter).load(std::memory_order_acquire), step_)) {
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
