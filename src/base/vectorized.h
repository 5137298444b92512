#pragma once

/// Marks a function with vectorizable loops: it is compiled for several CPUs, and the best version
/// is selected at startup. List its file under VECTORIZED in the layer's CMakeLists.txt, which
/// disables fused multiply-add, so that results are bit-identical on all CPUs.
#if defined(__x86_64__)
#define MNIST_TRAIN_VECTORIZED [[gnu::target_clones("avx512f", "avx2", "default")]]
#else
#define MNIST_TRAIN_VECTORIZED
#endif
