#include "comm/shared_segment.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "base/system.h"

namespace mnist_train::comm {

namespace {

constexpr std::size_t kPathBytes = 64;

[[noreturn]] void throw_errno(const char* action) {
  throw Error(ExitCode::kRunFailed, std::string("gradients and weights: cannot ") + action +
                                        " shared memory: " + std::strerror(errno) +
                                        "; gradient_averaging.strategy \"flat\" needs none");
}

/// Allocates all pages now: one that is missing later would kill the process.
UniqueFd make_segment(std::size_t bytes) {
  UniqueFd fd(::memfd_create("mnist-train-ranks", MFD_CLOEXEC));
  if (!fd.valid()) throw_errno("make");
  int error = 0;
  do {
    error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes));
  } while (error == EINTR);
  if (error == 0) return fd;
  errno = error;
  throw_errno("allocate");
}

/// Returns where all ranks can open rank 0's descriptor. Collective.
std::string agree_on_path(const Communicator& communicator, int fd) {
  std::string path = "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(fd);
  path.resize(kPathBytes);
  at::Tensor bytes = at::empty({static_cast<std::int64_t>(kPathBytes)}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), path.data(), kPathBytes);
  communicator.broadcast(bytes);
  return static_cast<const char*>(bytes.const_data_ptr());
}

}  // namespace

SharedSegment::SharedSegment(const Communicator& communicator, std::size_t bytes) : bytes_(bytes) {
  UniqueFd fd;
  if (communicator.rank() == 0) fd = make_segment(bytes);
  const std::string path = agree_on_path(communicator, fd.get());
  if (communicator.rank() != 0) fd = UniqueFd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd.valid()) throw_errno("open");
  void* memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd.get(), 0);
  if (memory == MAP_FAILED) throw_errno("map");
  memory_ = {static_cast<std::uint8_t*>(memory),
             [bytes](std::uint8_t* address) { ::munmap(address, bytes); }};
  communicator.barrier();  // rank 0 keeps the descriptor until all have used it
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
