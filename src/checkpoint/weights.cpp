#include "checkpoint/weights.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <sstream>

#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/pt_file.h"

namespace mnist_train::checkpoint {

namespace {

void add_tensors(const torch::nn::Module& module, const std::string& prefix,
                 NamedTensors& tensors) {
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    tensors.emplace_back(prefix + item.key(), item.value());
  }
  for (const auto& item : module.named_buffers(/*recurse=*/false)) {
    tensors.emplace_back(prefix + item.key(), item.value());
  }
  for (const auto& child : module.named_children()) {
    add_tensors(*child.value(), prefix + child.key() + ".", tensors);
  }
}

/// Parameters and buffers as they lie in the model, by name, in the order of Python's state_dict:
/// module by module.
NamedTensors model_tensors(const models::Model& model) {
  NamedTensors tensors;
  add_tensors(model, "", tensors);
  return tensors;
}

const at::Tensor* find(const NamedTensors& tensors, const std::string& name) {
  const auto found = std::find_if(tensors.begin(), tensors.end(),
                                  [&](const auto& item) { return item.first == name; });
  return found == tensors.end() ? nullptr : &found->second;
}

std::string shape_text(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sizes();
  return text.str();
}

std::string differences_of(const NamedTensors& expected, const NamedTensors& found) {
  std::string text;
  for (const auto& [name, tensor] : expected) {
    const at::Tensor* other = find(found, name);
    if (other == nullptr) {
      text += "\n  missing: " + name + " " + shape_text(tensor);
    } else if (other->sizes() != tensor.sizes()) {
      text += "\n  misshapen: " + name + " is " + shape_text(*other) + ", the model has " +
              shape_text(tensor);
    }
  }
  for (const auto& [name, tensor] : found) {
    if (find(expected, name) == nullptr) {
      text += "\n  unexpected: " + name + " " + shape_text(tensor);
    }
  }
  return text;
}

/// Names as the module alone has them, where all begin as DistributedDataParallel's or
/// torch.compile's do.
NamedTensors without_wrapper(NamedTensors weights) {
  for (const std::string_view prefix : {"module.", "_orig_mod."}) {
    const bool all = std::all_of(weights.begin(), weights.end(), [&](const auto& entry) {
      return entry.first.starts_with(prefix);
    });
    if (!all) continue;
    for (auto& [name, tensor] : weights) name.erase(0, prefix.size());
  }
  return weights;
}

bool starts_with(const std::filesystem::path& path, std::string_view magic) {
  const MappedFile file = MappedFile::open(path, ExitCode::kCheckpoint);
  const auto bytes = file.bytes();
  return bytes.size() >= magic.size() && std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
}

}  // namespace

NamedTensors state_dict(const models::Model& model) {
  const at::NoGradGuard no_grad;
  NamedTensors weights;
  for (const auto& [name, tensor] : model_tensors(model)) {
    const auto type = tensor.is_floating_point() ? at::kFloat : tensor.scalar_type();
    // Always a copy: the model's own tensors share one memory, which the next step changes.
    weights.emplace_back(name, tensor.detach().to(at::kCPU, type, /*non_blocking=*/false,
                                                  /*copy=*/true, at::MemoryFormat::Contiguous));
  }
  return weights;
}

std::string differences(const models::Model& model, const NamedTensors& weights) {
  return differences_of(model_tensors(model), weights);
}

void load_state_dict(models::Model& model, const NamedTensors& weights, const std::string& source) {
  const std::string wrong = differences(model, weights);
  if (!wrong.empty()) {
    throw Error(ExitCode::kCheckpoint, source + ": does not fit the model:" + wrong);
  }
  const at::NoGradGuard no_grad;
  for (const auto& [name, target] : model_tensors(model)) {
    at::Tensor place = target;
    place.copy_(*find(weights, name));
  }
}

std::optional<models::ImageShape> trained_image_shape(const std::filesystem::path& path) {
  if (starts_with(path, "PK\x03\x04")) return std::nullopt;
  const TensorFile file = read_safetensors(path, /*require_seal=*/false);
  if (!is_checkpoint(file)) return std::nullopt;
  return checkpoint_facts(file, path.string()).images;
}

NamedTensors read_weights(const std::filesystem::path& path) {
  if (starts_with(path, "PK\x03\x04")) return without_wrapper(read_pt(path));
  if (starts_with(path, "\x80\x02\x8a")) {
    throw Error(ExitCode::kCheckpoint,
                path.string() +
                    ": is in torch.save's format from before PyTorch 1.6; load it in "
                    "Python and save it again");
  }
  TensorFile file = read_safetensors(path, /*require_seal=*/false);
  // A checkpoint always has a seal; one that seems to have none has lost it to damage.
  if (is_checkpoint(file)) return checkpoint_weights(read_checkpoint(path));
  return std::move(file.tensors);
}

void write_weights(const std::filesystem::path& path, const NamedTensors& weights,
                   WeightsFormat format) {
  if (format == WeightsFormat::kPt) {
    write_pt(path, weights);
  } else {
    write_safetensors(path, {weights, {{"format", "pt"}}}, /*seal=*/false, ExitCode::kCheckpoint);
  }
}

}  // namespace mnist_train::checkpoint
