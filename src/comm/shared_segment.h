#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "comm/communicator.h"

namespace mnist_train::comm {

/// Memory that the ranks of one host share, unnamed, so that nothing is left of it whatever ends
/// the processes, and without the limit of /dev/shm, which is small in containers. Zeros at first.
/// What is taken from it is the same piece for all ranks, and keeps it alive.
class SharedSegment {
 public:
  /// Collective. Throws Error(kRunFailed) when the system has no memory left.
  SharedSegment(const Communicator& communicator, std::size_t bytes);

  /// The next piece, which takes up `cache_aligned(bytes)`. All ranks take the same ones in the
  /// same order.
  std::uint8_t* take(std::size_t bytes);
  /// The next piece as a tensor like `model`, contiguous.
  at::Tensor take_like(const at::Tensor& model);
  /// `tensor`, which is all of its storage, and all views of it lie in the next piece from here on,
  /// with the contents that they have, or with those of the piece.
  void move_here(const at::Tensor& tensor, bool with_contents);

 private:
  std::shared_ptr<std::uint8_t> memory_;
  std::size_t bytes_;
  std::size_t taken_ = 0;
};

}  // namespace mnist_train::comm
