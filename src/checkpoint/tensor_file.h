#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace mnist_train::checkpoint {

/// Named tensors and named texts: what a safetensors file holds.
struct TensorFile {
  std::vector<std::pair<std::string, at::Tensor>> tensors;  // contiguous, on the CPU when read
  std::vector<std::pair<std::string, std::string>> metadata;

  const at::Tensor* find(const std::string& name) const;
  const std::string* find_metadata(const std::string& name) const;
};

/// Writes a safetensors file (https://github.com/huggingface/safetensors), whole or not at all.
/// With `seal` its last tensor is `mnist-train.seal` (u8[16]): the XXH3-128 of every byte before
/// it, so that any flipped bit or missing byte is noticed, while every safetensors reader still
/// takes the file. Throws Error(code).
void write_safetensors(const std::filesystem::path& path, const TensorFile& content, bool seal,
                       ExitCode code);

/// Reads and checks: header, types, shapes, offsets that cover the data exactly, the seal where
/// there is one or where `require_seal` demands it. Nothing is allocated beyond the file's size.
/// Throws Error(kCheckpoint) with path and reason.
TensorFile read_safetensors(const std::filesystem::path& path, bool require_seal);

}  // namespace mnist_train::checkpoint
