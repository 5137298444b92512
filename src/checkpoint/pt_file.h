#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/pickle.h"
#include "checkpoint/tensor_file.h"

namespace mnist_train::checkpoint {

/// Writes the file that `torch.save(dict, path)` writes for a plain dict of these tensors, which
/// must be contiguous and share no memory; `torch.load(path, weights_only=True)` reads it. Whole or
/// not at all. Throws Error(kCheckpoint).
void write_pt(const std::filesystem::path& path, const NamedTensors& weights);

/// Does the same for a value of dicts, lists, tuples, texts, numbers and tensors. `tensors` are all
/// tensors in it.
void write_pt_value(const std::filesystem::path& path, const c10::IValue& value,
                    const std::vector<at::Tensor>& tensors);

/// Reads the state_dict in a file of `torch.save`, in its present format or the one before PyTorch
/// 1.6, as `unpickle_state_dict` finds it. Throws Error(kCheckpoint).
TensorFile read_pt(const std::filesystem::path& path);

/// Returns the CRC-32 of every file in a zip archive, by name, from its central directory
/// (APPNOTE.TXT 4.3.12 to 4.3.16, ZIP64 included). Throws std::runtime_error if the directory is
/// missing or damaged, or names a file twice.
std::map<std::string, std::uint32_t> zip_checksums(std::span<const std::uint8_t> bytes);

}  // namespace mnist_train::checkpoint
