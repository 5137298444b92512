#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/error.h"
#include "comm/communicator.h"

namespace mnist_train::comm {

/// What keeps ranks of one host from sharing memory: a rank in a user namespace of its own or with
/// another view of /proc, an executable without read permission, a limit, a lack of memory. It is
/// Error(kRunFailed) if memory ran out, else Error(kConfig).
class SharedMemoryError : public Error {
 public:
  /// `error` is an errno.
  SharedMemoryError(int rank, int error);
};

/// Memory that the ranks of one host share. It has no name, so nothing is left of it whatever ends
/// the processes, and not the limit of /dev/shm, which is small in containers. It holds zeros at
/// first. All ranks take the same pieces from it, and a piece keeps all of it alive.
class SharedSegment {
 public:
  /// Makes the memory on rank 0 and maps it on all ranks. Collective. Throws SharedMemoryError on
  /// all ranks alike.
  SharedSegment(const Communicator& communicator, std::size_t bytes);

  /// Returns the next piece, which uses up `cache_aligned(bytes)`. All ranks must take pieces of
  /// the same sizes in the same order.
  std::uint8_t* take(std::size_t bytes);
  /// Takes the next piece as a contiguous tensor with the sizes and type of `example`, but not its
  /// contents.
  at::Tensor take_like(const at::Tensor& example);
  /// Moves the storage of `tensor`, which must be all of it, and so every view of it, into the next
  /// piece. `with_contents`: it keeps its contents, else it gets those of the piece.
  void move_here(const at::Tensor& tensor, bool with_contents);

 private:
  std::shared_ptr<std::uint8_t> memory_;
  std::size_t bytes_;
  std::size_t taken_ = 0;
};

}  // namespace mnist_train::comm
