#include "checkpoint/checkpoint.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/safetensors_header.h"
#include "checkpoint/progress_text.h"
#include "settings/image_size.h"

namespace mnist_train::checkpoint {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kModelPrefix = "model.";
constexpr const char* kOptimizerPrefix = "optimizer.";
constexpr int kVersion = 1;
constexpr std::int64_t kMostChannels = 3;
constexpr std::int64_t kMostClasses = 256;  // labels are bytes

Json state_of(const TensorFile& checkpoint, const std::string& source) {
  const std::string* text = checkpoint.find_metadata(kCheckpointState);
  Json state = text == nullptr ? Json() : Json::parse(*text, nullptr, false);
  if (!state.is_object() || state.find("version") == state.end() || state["version"] != kVersion) {
    throw Error(ExitCode::kCheckpoint,
                source + ": is no checkpoint that this version of mnist-train can read");
  }
  return state;
}

train::Progress progress_of(const Json& state, const std::string& source) {
  const auto progress = state.find("progress");
  if (progress == state.end()) {
    throw Error(ExitCode::kCheckpoint, source + ": does not say how far the run had come");
  }
  try {
    return progress_from_text(progress->dump());
  } catch (const Error& error) {
    throw Error(error.code(), source + ": " + error.what());
  }
}

/// "optimizer.momentum_buffer.conv1.weight" and so on: one tensor a parameter, as PyTorch keeps
/// them.
NamedTensors optimizer_tensors(const train::Trainer& trainer) {
  NamedTensors tensors;
  const auto names = trainer.model().named_parameters().keys();
  for (const train::OptimizerTensor& state : trainer.optimizer().state()) {
    for (std::size_t i = 0; i < names.size(); ++i) {
      tensors.emplace_back(kOptimizerPrefix + state.name + "." + names[i],
                           trainer.parameters().view_like_parameter(state.flat, i));
    }
  }
  return tensors;
}

std::string optimizer_differences(const NamedTensors& targets, const TensorFile& checkpoint) {
  std::string text;
  for (const auto& [name, target] : targets) {
    const at::Tensor* found = checkpoint.find(name);
    if (found == nullptr) text += "\n  missing: " + name;
    if (found != nullptr && found->sizes() != target.sizes()) text += "\n  misshapen: " + name;
  }
  for (const auto& [name, tensor] : checkpoint.tensors) {
    const bool known =
        std::any_of(targets.begin(), targets.end(),
                    [&wanted = name](const auto& target) { return target.first == wanted; });
    if (name.starts_with(kOptimizerPrefix) && !known) text += "\n  unexpected: " + name;
  }
  return text;
}

/// A model is made of these numbers, so they are bounded as those of data are.
models::ImageShape image_shape(const Json& json, const std::string& source) {
  const auto number = [&](const char* key, std::int64_t most) {
    const auto value = json.at(key).get<std::int64_t>();
    if (value >= 1 && value <= most) return value;
    throw Error(ExitCode::kCheckpoint, source + ": says that its images' " + key + " is " +
                                           std::to_string(value) + ", not 1 to " +
                                           std::to_string(most));
  };
  return {number("channels", kMostChannels), number("height", settings::kMaxImageSide),
          number("width", settings::kMaxImageSide), number("classes", kMostClasses)};
}

}  // namespace

TensorFile snapshot(const train::Trainer& trainer, const RunFacts& facts) {
  const at::NoGradGuard no_grad;
  TensorFile file;
  for (const auto& [name, tensor] : state_dict(trainer.model())) {
    file.tensors.emplace_back(kModelPrefix + name, tensor);
  }
  for (const auto& [name, tensor] : optimizer_tensors(trainer)) {
    file.tensors.emplace_back(name, tensor.to(at::kCPU).clone(at::MemoryFormat::Contiguous));
  }
  const models::ImageShape& images = facts.images;
  const Json state = {{"version", kVersion},
                      {"progress", Json::parse(progress_to_text(trainer.progress()))},
                      {"config", Json::parse(facts.config)},
                      {"data_hash", facts.data_hash},
                      {"world_size", facts.world_size},
                      {"metrics_bytes", facts.metrics_bytes},
                      {"event_bytes", facts.event_bytes},
                      {"restarts", facts.restarts},
                      {"images",
                       {{"channels", images.channels},
                        {"height", images.height},
                        {"width", images.width},
                        {"classes", images.classes}}}};
  file.metadata.emplace_back("format", "pt");
  file.metadata.emplace_back(kCheckpointState, state.dump());
  return file;
}

void write_checkpoint(const std::filesystem::path& path, const TensorFile& snapshot) {
  write_safetensors(path, snapshot, /*seal=*/true, ExitCode::kCheckpoint);
}

TensorFile read_checkpoint(const std::filesystem::path& path) {
  TensorFile file = read_safetensors(path, /*require_seal=*/true);
  state_of(file, path.string());
  return file;
}

RunFacts restore(train::Trainer& trainer, const TensorFile& checkpoint,
                 const std::string& data_hash, const std::string& source) {
  // Everything is read before anything is changed.
  train::Progress progress = progress_of(state_of(checkpoint, source), source);
  RunFacts facts = checkpoint_facts(checkpoint, source);
  if (facts.data_hash != data_hash) {
    throw Error(ExitCode::kCheckpoint, source + ": was trained on other data (" + facts.data_hash +
                                           "), this run has " + data_hash +
                                           "; to start from its weights alone use model.weights");
  }
  const NamedTensors weights = checkpoint_weights(checkpoint);
  const NamedTensors targets = optimizer_tensors(trainer);
  std::string wrong;
  if (const std::string text = differences(trainer.model(), weights); !text.empty()) {
    wrong += ": does not fit the model:" + text;
  }
  if (const std::string text = optimizer_differences(targets, checkpoint); !text.empty()) {
    wrong += (wrong.empty() ? ": " : "\n") + ("does not fit the optimizer:" + text);
  }
  if (!wrong.empty()) throw Error(ExitCode::kCheckpoint, source + wrong);
  load_state_dict(trainer.model(), weights, source);
  const at::NoGradGuard no_grad;
  for (const auto& [name, target] : targets) {
    at::Tensor place = target;
    place.copy_(*checkpoint.find(name));
  }
  trainer.progress() = std::move(progress);
  trainer.optimizer().restored(trainer.progress().step);
  return facts;
}

bool is_checkpoint(const TensorFile& file) {
  return file.find_metadata(kCheckpointState) != nullptr;
}

NamedTensors checkpoint_weights(const TensorFile& checkpoint) {
  const std::string prefix = kModelPrefix;
  NamedTensors weights;
  for (const auto& [name, tensor] : checkpoint.tensors) {
    if (name.starts_with(prefix)) weights.emplace_back(name.substr(prefix.size()), tensor);
  }
  return weights;
}

train::Progress checkpoint_progress(const TensorFile& checkpoint, const std::string& source) {
  return progress_of(state_of(checkpoint, source), source);
}

RunFacts checkpoint_facts(const TensorFile& checkpoint, const std::string& source) try {
  const Json state = state_of(checkpoint, source);
  RunFacts facts;
  facts.config = state.at("config").dump();
  state.at("data_hash").get_to(facts.data_hash);
  state.at("world_size").get_to(facts.world_size);
  state.at("metrics_bytes").get_to(facts.metrics_bytes);
  state.at("event_bytes").get_to(facts.event_bytes);
  state.at("restarts").get_to(facts.restarts);
  facts.images = image_shape(state.at("images"), source);
  return facts;
} catch (const nlohmann::json::exception& error) {
  throw Error(ExitCode::kCheckpoint,
              source + ": what it says about its run cannot be read: " + error.what());
}

}  // namespace mnist_train::checkpoint
