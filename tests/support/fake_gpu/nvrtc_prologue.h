#pragma once

// Included before the kernels' source when the mock NVRTC compiles it.
#include <functional>

#include "support/grid/grid.h"

extern "C" __attribute__((visibility("default"))) bool mnist_train_bind_kernel(
    const char* name, void* const* arguments, mnist_train::grid::Translate translate,
    unsigned blocks, unsigned threads, std::function<void()>* work) {
  const auto found = mnist_train::grid::all_kernels().find(name);
  if (found == mnist_train::grid::all_kernels().end()) return false;
  if (arguments != nullptr) {
    *work = [bound = found->second.with(arguments, translate), blocks, threads] {
      bound(blocks, threads);
    };
  }
  return true;
}
