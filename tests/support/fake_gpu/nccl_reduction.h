#pragma once

#include <nccl.h>

#include <cstddef>
#include <span>

namespace mnist_train::fake_gpu {

/// Returns the size of an element in bytes; 0 for a type that the stand-in cannot send.
std::size_t bytes_of(ncclDataType_t type);

/// Returns whether `reduce` can combine elements of that type in that way.
bool can_reduce(ncclDataType_t type, ncclRedOp_t operation);

/// Combines `count` elements of each of `inputs` into `output`, in the order of the inputs.
void reduce(std::span<const std::byte* const> inputs, std::byte* output, std::size_t count,
            ncclDataType_t type, ncclRedOp_t operation);

}  // namespace mnist_train::fake_gpu
