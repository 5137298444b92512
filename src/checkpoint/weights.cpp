#include "checkpoint/weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "accelerator/device.h"
#include "base/checkpoint_file.h"
#include "base/file.h"
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

/// The model's own parameters and buffers by name, module by module as in Python's state_dict.
NamedTensors model_tensors(const models::Model& model) {
  NamedTensors tensors;
  add_tensors(model, "", tensors);
  return tensors;
}

std::string shape_text(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sizes();
  return text.str();
}

/// The tensors that differ in one way: the first ones on a line each, the others by name.
class DifferenceList {
 public:
  explicit DifferenceList(std::string kind) : kind_(std::move(kind)) {}

  void add(const std::string& name, const std::string& what) {
    if (++count_ <= kMostLines) {
      lines_ += "\n  " + kind_ + ": " + name + what;
    } else {
      others_ += (others_.empty() ? "" : ", ") + name;
    }
  }
  std::string text() const {
    if (others_.empty()) return lines_;
    return lines_ + "\n  " + kind_ + ": " + std::to_string(count_ - kMostLines) +
           " more: " + others_;
  }

 private:
  static constexpr std::size_t kMostLines = 10;

  std::string kind_;
  std::size_t count_ = 0;
  std::string lines_;
  std::string others_;
};

/// Removes a prefix from all names, if all have it.
bool remove_prefix(std::string_view prefix, NamedTensors& weights) {
  const auto has_prefix = [&](const auto& entry) { return entry.first.starts_with(prefix); };
  if (weights.empty() || !std::ranges::all_of(weights, has_prefix)) return false;
  for (auto& [name, tensor] : weights) name.erase(0, prefix.size());
  return true;
}

/// Removes the prefixes that DistributedDataParallel and torch.compile put before all names, in the
/// order in which a script applied them.
NamedTensors without_wrappers(NamedTensors weights) {
  while (remove_prefix("module.", weights) || remove_prefix("_orig_mod.", weights)) {
  }
  return weights;
}

/// Returns whether the file is a zip archive, as torch.save writes since PyTorch 1.6.
bool is_pt_file(const std::filesystem::path& path) {
  return is_zip_file(MappedFile::open(path, ExitCode::kCheckpoint).bytes());
}

}  // namespace

NamedTensors state_dict(const models::Model& model) {
  const at::NoGradGuard no_grad;
  NamedTensors weights;
  for (const auto& [name, tensor] : model_tensors(model)) {
    const auto type = tensor.is_floating_point() ? at::kFloat : tensor.scalar_type();
    // Always a copy: the next step changes the model's tensors, which share one memory.
    weights.emplace_back(
        name, accelerator::to_host(tensor.detach())
                  .to(type, /*non_blocking=*/false, /*copy=*/true, at::MemoryFormat::Contiguous));
  }
  return weights;
}

std::string differences(const NamedTensors& expected, const NamedTensors& found) {
  DifferenceList missing("missing");
  DifferenceList resized("size mismatch");
  DifferenceList unexpected("unexpected");
  for (const auto& [name, tensor] : expected) {
    const at::Tensor* other = find_named(found, name);
    if (other == nullptr) {
      missing.add(name, " " + shape_text(tensor));
    } else if (other->sizes() != tensor.sizes()) {
      resized.add(name, " is " + shape_text(*other) + ", expected " + shape_text(tensor));
    }
  }
  for (const auto& [name, tensor] : found) {
    if (find_named(expected, name) == nullptr) {
      unexpected.add(name, " " + shape_text(tensor));
    }
  }
  return missing.text() + resized.text() + unexpected.text();
}

std::string differences(const models::Model& model, const NamedTensors& weights) {
  return differences(model_tensors(model), weights);
}

void load_state_dict(models::Model& model, const NamedTensors& weights, const std::string& source) {
  const std::string wrong = differences(model, weights);
  if (!wrong.empty()) {
    throw Error(ExitCode::kCheckpoint, source + ": does not fit the model:" + wrong);
  }
  const at::NoGradGuard no_grad;
  for (const auto& [name, target] : model_tensors(model)) {
    target.copy_(*find_named(weights, name));
  }
}

void require_finite(const models::Model& model, const std::string& source) {
  const auto check = [&](const std::string& name, const at::Tensor& wrong) {
    if (!wrong.any().item<bool>()) return;
    throw Error(ExitCode::kCheckpoint,
                source + ": tensor " + name +
                    " has values that are NaN or infinite: the training that wrote it has failed; "
                    "take weights that it saved earlier");
  };
  const at::NoGradGuard no_grad;
  for (const auto& item : model.named_parameters()) {
    check(item.key(), at::isfinite(item.value()).logical_not());
  }
  // Some networks mask by infinite values in buffers.
  for (const auto& item : model.named_buffers()) check(item.key(), at::isnan(item.value()));
}

void load_weights(models::Model& model, const std::filesystem::path& path) {
  load_state_dict(model, read_weights(path), path.string());
  require_finite(model, path.string());
}

bool holds_weights_alone(const std::filesystem::path& path) {
  return is_pt_file(path) || !is_checkpoint(read_safetensors(path, /*require_seal=*/false));
}

std::optional<RunFacts> facts_of(const std::filesystem::path& path) {
  if (is_pt_file(path)) return std::nullopt;
  const TensorFile file = read_safetensors(path, /*require_seal=*/false);
  return is_checkpoint(file) ? std::optional(checkpoint_facts(file, path.string())) : std::nullopt;
}

NamedTensors read_weights(const std::filesystem::path& path) {
  if (is_pt_file(path)) return without_wrappers(read_pt(path));
  TensorFile file = read_safetensors(path, /*require_seal=*/false);
  // A checkpoint always has a seal; one that seems to have none has lost it to damage.
  if (is_checkpoint(file)) return checkpoint_weights(read_checkpoint(path));
  return std::move(file.tensors);
}

WeightsFormat format_of(const std::filesystem::path& path) {
  return path.extension() == ".safetensors" ? WeightsFormat::kSafetensors : WeightsFormat::kPt;
}

void write_weights(const std::filesystem::path& path, const NamedTensors& weights,
                   WeightsFormat format) {
  if (format == WeightsFormat::kPt) {
    write_pt(path, weights);
  } else {
    write_safetensors(path, {weights, {{"format", "pt"}}}, /*seal=*/false);
  }
}

}  // namespace mnist_train::checkpoint
