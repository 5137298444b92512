#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>

#include "base/file.h"
#include "base/parallel.h"
#include "base/system.h"
#include "comm/gradient_averager.h"

namespace mnist_train::comm {

namespace {

/// Creates the memory and allocates all its pages now, because a failure to allocate a page later
/// would kill the process. Returns an errno, or 0.
int make_segment(std::size_t bytes, UniqueFd& fd) {
  fd = UniqueFd(::memfd_create("mnist-train-ranks", MFD_CLOEXEC));
  if (!fd.valid()) return errno;
  int error = 0;
  do {
    error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes));
  } while (error == EINTR);
  return error;
}

/// The file of rank 0's memory, as rank 0 sees it. Device and inode show whether another rank opens
/// the same file: in a different PID namespace, the path may name another one.
using SegmentFile = std::array<std::int64_t, 4>;  // process, descriptor, device, inode

SegmentFile segment_file(int fd) {
  struct stat file {};
  (void)::fstat(fd, &file);
  return {::getpid(), fd, static_cast<std::int64_t>(file.st_dev),
          static_cast<std::int64_t>(file.st_ino)};
}

/// Opens rank 0's memory. Returns an errno, or 0.
int open_segment(const SegmentFile& rank_0_file, UniqueFd& fd) {
  const std::string path =
      "/proc/" + std::to_string(rank_0_file[0]) + "/fd/" + std::to_string(rank_0_file[1]);
  fd = UniqueFd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd.valid()) return errno;
  const SegmentFile opened = segment_file(fd.get());
  return opened[2] == rank_0_file[2] && opened[3] == rank_0_file[3] ? 0 : ENOENT;
}

at::Tensor as_tensor(std::int64_t* numbers, std::int64_t count) {
  return at::from_blob(numbers, {count}, at::kLong);
}

/// Throws on all ranks if any of them has an `error` (an errno): otherwise the others would hang.
void require_success(const Communicator& communicator, int error) {
  std::vector<std::int64_t> errors(static_cast<std::size_t>(communicator.world_size()));
  errors[static_cast<std::size_t>(communicator.rank())] = error;
  at::Tensor all = as_tensor(errors.data(), communicator.world_size());
  communicator.all_reduce_sum(all);
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    if (errors[rank] == 0) continue;
    throw SharedMemoryError(static_cast<int>(rank), static_cast<int>(errors[rank]));
  }
}

/// Memory shared by the ranks of one host. It has no name, so nothing is left behind however the
/// processes end, and the size limit of /dev/shm, which is small in containers, does not apply.
/// Initially zero. All ranks allocate the same pieces from it. This object and each tensor in a
/// piece keep the whole segment alive.
class SharedSegment {
 public:
  /// On all ranks, maps memory created by rank 0, or throws SharedMemoryError. Collective.
  SharedSegment(const Communicator& communicator, std::size_t bytes) : bytes_(bytes) {
    UniqueFd fd;
    int error = communicator.rank() == 0 ? make_segment(bytes, fd) : 0;
    SegmentFile file = segment_file(fd.get());
    at::Tensor numbers = as_tensor(file.data(), static_cast<std::int64_t>(file.size()));
    communicator.broadcast(numbers);
    if (communicator.rank() != 0) error = open_segment(file, fd);
    if (error == 0) {
      constexpr int kFlags = MAP_SHARED | MAP_POPULATE;
      void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kFlags, fd.get(), 0);
      if (memory == MAP_FAILED) {
        error = errno;
      } else {
        memory_ = {static_cast<std::uint8_t*>(memory),
                   [bytes](std::uint8_t* address) { ::munmap(address, bytes); }};
      }
    }
    require_success(communicator, error);  // rank 0 keeps the file open until all have mapped it
  }

  /// Allocates the next piece, of `cache_aligned(bytes)` bytes. All ranks must allocate pieces of
  /// the same sizes in the same order.
  std::uint8_t* allocate(std::size_t bytes) {
    std::uint8_t* piece = memory_.get() + used_;
    used_ += cache_aligned(bytes);
    if (used_ > bytes_) throw std::logic_error("a shared segment is too small");
    return piece;
  }
  /// Allocates the next piece as a contiguous tensor with the shape and type of `example`.
  at::Tensor allocate_like(const at::Tensor& example) {
    return at::from_blob(
        allocate(example.nbytes()), example.sizes(), [memory = memory_](void* /*piece*/) {},
        example.options());
  }
  /// Moves the entire storage of `tensor`, with every view of it, into the next piece. Unless
  /// `copies_contents` is set, the tensor takes on the contents of the piece.
  void relocate(const at::Tensor& tensor, bool copies_contents) {
    using Owner = std::shared_ptr<std::uint8_t>;
    const at::Storage& storage = tensor.storage();
    if (storage.nbytes() != tensor.nbytes()) {
      throw std::logic_error("only an entire storage can move into a shared segment");
    }
    std::uint8_t* piece = allocate(tensor.nbytes());
    if (copies_contents) std::memcpy(piece, storage.data(), tensor.nbytes());
    storage.set_data_ptr_noswap({piece, new Owner(memory_),
                                 [](void* owner) { delete static_cast<Owner*>(owner); }, at::kCPU});
  }

 private:
  std::shared_ptr<std::uint8_t> memory_;
  std::size_t bytes_;
  std::size_t used_ = 0;
};

[[noreturn]] void throw_lost(int rank, launch::Wait wait) {
  throw PeerError(std::string("lost another rank during ") + launch::wait_name(wait) +
                  ": the process of rank " + std::to_string(rank) + " is gone");
}

constexpr std::int64_t kGrain = 64;  // elements; keeps ranks off each other's cache lines
constexpr std::size_t kMaxSmall_bytes = 64 << 10;  // 4,000 channels' statistics in fp64

/// Sums gradients in memory shared by ranks on the CPUs of one host. Each rank sums its slice of
/// all ranks' gradients and updates its slice of the weights. Weights and optimizer state are
/// shared too, so no update is copied or computed twice. The order of summation is fixed.
///
/// A waiting rank checks ten times a second whether the other processes are alive. The launcher, or
/// a thread of the rank, monitors this wait and detects hung processes.
class SharedMemoryAverager : public GradientAverager {
 public:
  SharedMemoryAverager(const Communicator& communicator, GradientBuffer buffer)
      : GradientAverager(std::move(buffer)),
        communicator_(communicator),
        segment_(communicator, segment_bytes()),
        barrier_(segment_.allocate(SharedBarrier::bytes(ranks())), rank(), ranks()),
        states_(reinterpret_cast<RankState*>(
            segment_.allocate(sizeof(RankState) * static_cast<std::size_t>(ranks())))),
        small_(segment_.allocate(small_bytes())) {
    for (int other = 0; other < ranks(); ++other) {
      statistics_slots_.push_back(segment_.allocate_like(local_statistics()));
      const auto share = [&](const at::Tensor& local) {
        if (other != rank()) return segment_.allocate_like(local);
        segment_.relocate(local, /*copies_contents=*/true);
        return local;
      };
      tables_.push_back(share(buffer_.rows));
      if (keeps_bf16()) bf16_tables_.push_back(share(buffer_.bf16_rows));
    }
    states_[rank()].pid = ::getpid();
    communicator_.barrier();
    for (int other = 0; other < ranks(); ++other) {
      const pid_t pid = states_[other].pid;
      processes_.emplace_back(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
      if (has_exited(other)) throw_lost(other, launch::Wait::kAveraging);
    }
  }

  Slice owned_slice() const override { return slice_of(rank()); }

  void move_to_shared_memory(const std::vector<at::Tensor>& state) override {
    std::size_t bytes = 0;
    for (const at::Tensor& tensor : state) bytes += cache_aligned(tensor.nbytes());
    SharedSegment segment(communicator_, bytes);
    for (const at::Tensor& tensor : state)
      segment.relocate(tensor, /*copies_contents=*/rank() == 0);
    barrier();
  }

  void average() override {
    statistics_slots_[static_cast<std::size_t>(rank())].copy_(local_statistics());
    barrier();
    // Every rank sums these in place, so each needs its own copy.
    add_rows(at::cat(statistics_slots_).unbind(), buffer_.tree.cross_rank_sums(), statistics());
  }

  bool all_reduce_small(at::Tensor& tensor) override {
    if (tensor.nbytes() > kMaxSmall_bytes) return false;
    // Alternate between two sets: once a rank passes the barrier, all have read the previous set.
    uses_second_set_ = !uses_second_set_;
    const auto slot_of = [&](int owner) {
      const auto number = static_cast<std::size_t>(uses_second_set_ ? ranks() + owner : owner);
      return at::from_blob(small_ + number * kMaxSmall_bytes, tensor.sizes(), tensor.options());
    };
    slot_of(rank()).copy_(tensor);
    barrier(launch::Wait::kAllReduce);
    tensor.copy_(slot_of(0));
    for (int other = 1; other < ranks(); ++other) tensor.add_(slot_of(other));
    return true;
  }

  void all_gather() override {
    barrier();
    for (int owner = 0; owner < ranks(); ++owner) {
      if (owner != rank()) sums_of(rank(), owner).copy_(sums_of(owner, owner));
    }
    barrier();
  }

  bool end_update(bool finite) override {
    if (!finite) states_[rank()].non_finite = true;
    barrier();
    return std::none_of(states_, states_ + ranks(),
                        [](const RankState& state) { return state.non_finite.load(); });
  }

  const char* name() const override { return "shared_memory"; }

 private:
  /// State that a rank publishes to the others, on its own cache line.
  struct alignas(64) RankState {
    std::atomic<pid_t> pid;
    std::atomic<bool> non_finite;  // the update of its slice is not finite
  };

  int rank() const { return communicator_.rank(); }
  int ranks() const { return communicator_.world_size(); }
  DeferredSum summands() const override { return summands_in(tables_, bf16_tables_); }
  bool keeps_bf16() const { return buffer_.bf16_rows.defined(); }

  std::size_t segment_bytes() const {
    std::size_t bytes_per_rank = sizeof(RankState) + cache_aligned(local_statistics().nbytes()) +
                                 cache_aligned(buffer_.rows.nbytes());
    if (keeps_bf16()) bytes_per_rank += cache_aligned(buffer_.bf16_rows.nbytes());
    return SharedBarrier::bytes(ranks()) + small_bytes() +
           bytes_per_rank * static_cast<std::size_t>(ranks());
  }
  std::size_t small_bytes() const {
    return 2 * kMaxSmall_bytes * static_cast<std::size_t>(ranks());
  }

  Slice slice_of(int owner) const {
    const std::int64_t count = gradient_count();
    const auto begin_of = [&](std::int64_t number) {
      const std::int64_t even = count * number / ranks();
      return std::min(count, (even + kGrain - 1) / kGrain * kGrain);
    };
    return {begin_of(owner), begin_of(owner + 1) - begin_of(owner)};
  }

  /// Returns the owner's slice of the first row in the table of `holder`.
  at::Tensor sums_of(int holder, int owner) const {
    return slice_of(owner).of(tables_[static_cast<std::size_t>(holder)].select(0, 0));
  }

  /// Returns a view of the statistics in the rows that this rank contributes.
  at::Tensor local_statistics() const {
    return buffer_.rows.narrow(0, 0, static_cast<std::int64_t>(buffer_.tree.rows_per_rank()))
        .narrow(1, gradient_count(), buffer_.statistics);
  }

  void barrier(launch::Wait wait = launch::Wait::kAveraging) {
    const launch::WaitScope waiting(communicator_.status(), wait);
    barrier_.arrive_and_wait([this, wait](int other) {
      if (!has_exited(other)) return;
      // Unless all ranks have arrived by now, the process has died, perhaps after its arrival.
      for (int each = 0; each < ranks(); ++each) {
        if (!barrier_.has_arrived(each)) throw_lost(other, wait);
      }
    });
  }

  /// Polls the pidfd, which reports that the process has exited even before its parent has reaped
  /// it; uses /proc if pidfds are not available (before Linux 5.3, and in some sandboxes).
  bool has_exited(int other) const {
    const UniqueFd& process = processes_[static_cast<std::size_t>(other)];
    if (!process.valid()) {
      const auto state = process_state(states_[other].pid);
      return !state || state == 'Z';
    }
    pollfd end{process.get(), POLLIN, 0};
    return ::poll(&end, 1, 0) == 1;
  }

  const Communicator& communicator_;
  SharedSegment segment_;
  SharedBarrier barrier_;
  RankState* states_;    // by rank
  std::uint8_t* small_;  // two sets of slots for `all_reduce_small`, by rank
  bool uses_second_set_ = false;
  std::vector<UniqueFd> processes_;           // by rank
  std::vector<at::Tensor> statistics_slots_;  // by rank, [rows of a rank, statistics]
  std::vector<at::Tensor> tables_;            // by rank: the buffers' rows
  std::vector<at::Tensor> bf16_tables_;       // by rank; empty if no rows are bf16
};

}  // namespace

SharedMemoryError::SharedMemoryError(int rank, int error)
    : Error(error == ENOMEM || error == ENOSPC ? ExitCode::kRunFailed : ExitCode::kConfig,
            "rank " + std::to_string(rank) + " cannot " +
                (rank == 0 ? "create memory for all ranks" : "open the memory of rank 0") + " (" +
                error_text(error) +
                "), which gradient_averaging.strategy \"shared_memory\" needs; \"flat\" does not") {
}

std::unique_ptr<GradientAverager> make_shared_memory_averager(const Communicator& communicator,
                                                              GradientBuffer buffer) {
  return std::make_unique<SharedMemoryAverager>(communicator, std::move(buffer));
}

}  // namespace mnist_train::comm
