#pragma once

#include <functional>

namespace mnist_train::fake_gpu {

/// Returns where the mock reaches memory of a device.
using Translate = void* (*)(void* address);

/// The function of a library that the mock's NVRTC made (see nvrtc_prologue.h), by this name:
/// sets `work` to what computes the kernel with a copy of the arguments, and returns whether there
/// is such a kernel.
using BindKernel = bool(const char* name, void* const* arguments, Translate translate,
                        unsigned blocks, unsigned threads, std::function<void()>* work);
inline constexpr const char* kBindKernel = "mnist_train_bind_kernel";

/// What the mock's NVRTC calls a cubin: this, the library's size in eight bytes, and the
/// library.
inline constexpr char kImageMagic[] = "fake_gpu kernels";

}  // namespace mnist_train::fake_gpu
