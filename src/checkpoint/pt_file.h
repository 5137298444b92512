#pragma once

#include <ATen/core/ivalue.h>

#include <filesystem>
#include <vector>

#include "checkpoint/weights.h"

namespace mnist_train::checkpoint {

/// Writes what `torch.save(dict, path)` writes, readable by `torch.load(path, weights_only=True)`:
/// a plain dict of the given tensors, which are contiguous and have each a memory of its own. Whole
/// or not at all. Throws Error(kCheckpoint).
void write_pt(const std::filesystem::path& path, const NamedTensors& weights);

/// The same for any value of dicts, lists, tuples, texts and numbers; `tensors` are all that are in
/// it, as above.
void write_pt_value(const std::filesystem::path& path, const c10::IValue& value,
                    const std::vector<at::Tensor>& tensors);

/// Reads a state_dict that `torch.save` wrote (a dict or OrderedDict of tensors by name). The
/// pickle inside is never executed: see `unpickle_state_dict`. Throws Error(kCheckpoint).
NamedTensors read_pt(const std::filesystem::path& path);

}  // namespace mnist_train::checkpoint
