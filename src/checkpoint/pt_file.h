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

/// Reads a state_dict (a dict or OrderedDict of tensors by name) that `torch.save` wrote. The
/// pickle inside is never executed, see `unpickle_state_dict`. Throws Error(kCheckpoint).
NamedTensors read_pt(const std::filesystem::path& path);

/// Returns the CRC-32 of every file in a zip archive, by name, from its central directory
/// (APPNOTE.TXT 4.3.12 to 4.3.16, ZIP64 included). Throws std::runtime_error if the directory is
/// missing or damaged, or names a file twice.
std::map<std::string, std::uint32_t> zip_checksums(std::span<const std::uint8_t> bytes);

/// The description of one tensor in a pickled state_dict. Its bytes are the archive's record
/// `data/<storage>`.
struct PickledTensor {
  std::string storage;
  c10::ScalarType type = c10::ScalarType::Float;
  std::int64_t offset = 0;            // elements
  std::vector<std::int64_t> sizes;    // none negative
  std::vector<std::int64_t> strides;  // none negative, as many as sizes

  /// Returns the least number of elements of the storage. Throws std::runtime_error if it
  /// overflows, which `unpickle_state_dict` has checked.
  std::uint64_t required_elements() const;
};

/// Returns the names and tensors of a pickled state_dict, or of the one in a dict under
/// "model_state_dict" or "state_dict", beside anything else that a training script saves. The
/// pickle is not executed but interpreted with an allow-list: some twenty opcodes, and the
/// functions that `torch.save` needs for tensors (`_rebuild_tensor_v2`, `_rebuild_parameter`,
/// `OrderedDict`, storage types). Throws std::runtime_error on anything else.
std::vector<std::pair<std::string, PickledTensor>> unpickle_state_dict(std::string_view pickle);

}  // namespace mnist_train::checkpoint
