#pragma once

/// Stands before a function whose loops the compiler turns into vectors: it is compiled for several
/// processors, of which the program takes the best when it starts. Its file is under VECTORIZED in
/// the layer's CMakeLists.txt, where products and sums stay apart, so that the bits are the same on
/// all processors.
#if defined(__x86_64__)
#define MNIST_TRAIN_VECTORIZED [[gnu::target_clones("avx512f", "avx2", "default")]]
#else
#define MNIST_TRAIN_VECTORIZED
#endif
