#pragma once

#include <string_view>

#include "support/fake_gpu/device.h"

namespace mnist_train::fake_gpu {

/// Returns what a kernel does if it is one of those of ATen's that a run's counters need, and an
/// empty operation if it is any other. Those kernels fill a contiguous tensor with a value, or they
/// add, add a number to, or convert the elements of contiguous tensors that are small. So a run
/// knows how many samples it has seen and whether it was asked to stop, although nothing is
/// computed.
///
/// `kernel` is the mangled name. `arguments` are those of at::native's
///
///     vectorized_elementwise_kernel<…>(int count, Functor, array<char*, N> tensors)
///     unrolled_elementwise_kernel<…>(int count, Functor, array<char*, N> tensors,
///                                    input offsets, output offsets, LoadWithCast, StoreWithCast)
///
/// in LibTorch 2.11; the first of the tensors is the result.
Operation emulate_aten_kernel(std::string_view kernel, void** arguments);

}  // namespace mnist_train::fake_gpu
