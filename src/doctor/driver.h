#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace mnist_train::doctor {

/// A GPU as the NVIDIA driver describes it.
struct Gpu {
  std::string name;
  int compute_major = 0;
  int compute_minor = 0;
  std::uint64_t memory_bytes = 0;
};

/// What the NVIDIA driver tells through its own library, without any part of CUDA.
struct Driver {
  std::string kernel_version;  // "580.65.06"; empty: no kernel module is loaded
  bool library = false;        // libcuda.so.1 is there
  std::string error;           // why it does not work; empty: it does
  int cuda_version = 0;        // the newest that it supports: 13000 is 13.0
  std::vector<Gpu> gpus;       // those that CUDA_VISIBLE_DEVICES shows
  std::vector<std::pair<int, int>> without_peer_access;  // pairs of GPUs
  int gpus_on_bus = 0;  // NVIDIA's display and 3D controllers on PCI
};

/// Asks the driver of this machine.
Driver ask_driver();

}  // namespace mnist_train::doctor
