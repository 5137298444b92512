#include "comm/shared_segment.h"

#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/limits.h"
#include "base/system.h"

namespace mnist_train::comm {

namespace {

/// Makes the memory, and allocates all pages now: one that is missing later would kill the process.
/// Returns an errno, 0 if that went well.
int make_segment(std::size_t bytes, UniqueFd& fd) {
  fd = UniqueFd(::memfd_create("mnist-train-ranks", MFD_CLOEXEC));
  if (!fd.valid()) return errno;
  int error = 0;
  do {
    error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes));
  } while (error == EINTR);
  return error;
}

/// Where rank 0's memory is, and which file it is: the same path may name another one where ranks
/// do not see the same processes.
using Place = std::array<std::int64_t, 4>;  // process, descriptor, device, inode

Place place_of(int fd) {
  struct stat file {};
  (void)::fstat(fd, &file);
  return {::getpid(), fd, static_cast<std::int64_t>(file.st_dev),
          static_cast<std::int64_t>(file.st_ino)};
}

/// Opens rank 0's memory. Returns an errno, 0 if that went well.
int open_segment(const Place& place, UniqueFd& fd) {
  const std::string path = "/proc/" + std::to_string(place[0]) + "/fd/" + std::to_string(place[1]);
  fd = UniqueFd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd.valid()) return errno;
  const Place found = place_of(fd.get());
  return found[2] == place[2] && found[3] == place[3] ? 0 : ENOENT;
}

at::Tensor numbers_in(std::int64_t* numbers, std::int64_t count) {
  return at::from_blob(numbers, {count}, at::kLong);
}

/// Throws on all ranks if one of them has an `error`, an errno: the others would wait for it.
void require_success(const Communicator& communicator, int error) {
  std::vector<std::int64_t> errors(static_cast<std::size_t>(communicator.world_size()));
  errors[static_cast<std::size_t>(communicator.rank())] = error;
  at::Tensor all = numbers_in(errors.data(), communicator.world_size());
  communicator.all_reduce_sum(all);
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    if (errors[rank] == 0) continue;
    throw SharedMemoryError(static_cast<int>(rank), static_cast<int>(errors[rank]));
  }
}

}  // namespace

SharedMemoryError::SharedMemoryError(int rank, int error)
    : Error(error == ENOMEM || error == ENOSPC ? ExitCode::kRunFailed : ExitCode::kConfig,
            "rank " + std::to_string(rank) + " cannot " +
                (rank == 0 ? "make memory for all ranks" : "open the memory of rank 0") + " (" +
                error_text(error) +
                "), which gradient_averaging.strategy \"shared_memory\" needs; \"flat\" does not") {
}

SharedSegment::SharedSegment(const Communicator& communicator, std::size_t bytes) : bytes_(bytes) {
  UniqueFd fd;
  int error = communicator.rank() == 0 ? make_segment(bytes, fd) : 0;
  Place place = place_of(fd.get());
  at::Tensor numbers = numbers_in(place.data(), static_cast<std::int64_t>(place.size()));
  communicator.broadcast(numbers);
  if (communicator.rank() != 0) error = open_segment(place, fd);
  void* memory = MAP_FAILED;
  if (error == 0) {
    memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd.get(), 0);
    if (memory == MAP_FAILED) error = errno;
  }
  if (memory != MAP_FAILED) {
    memory_ = {static_cast<std::uint8_t*>(memory),
               [bytes](std::uint8_t* address) { ::munmap(address, bytes); }};
  }
  require_success(communicator, error);  // rank 0 keeps the descriptor until all have used it
}

std::uint8_t* SharedSegment::take(std::size_t bytes) {
  std::uint8_t* piece = memory_.get() + taken_;
  taken_ += cache_aligned(bytes);
  if (taken_ > bytes_) throw std::logic_error("a shared segment is too small");
  return piece;
}

at::Tensor SharedSegment::take_like(const at::Tensor& example) {
  return at::from_blob(
      take(example.nbytes()), example.sizes(), [memory = memory_](void* /*piece*/) {},
      example.options());
}

void SharedSegment::move_here(const at::Tensor& tensor, bool with_contents) {
  using Owner = std::shared_ptr<std::uint8_t>;
  const at::Storage& storage = tensor.storage();
  if (storage.nbytes() != tensor.nbytes()) {
    throw std::logic_error("only a whole storage moves into a shared segment");
  }
  std::uint8_t* piece = take(tensor.nbytes());
  if (with_contents) std::memcpy(piece, storage.data(), tensor.nbytes());
  storage.set_data_ptr_noswap({piece, new Owner(memory_),
                               [](void* owner) { delete static_cast<Owner*>(owner); }, at::kCPU});
}

}  // namespace mnist_train::comm
