#include "checkpoint/checkpoint.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <limits>

#include "accelerator/device.h"
#include "base/system.h"
#include "settings/augment_options.h"
#include "settings/data_options.h"

namespace mnist_train::checkpoint {

namespace fs = std::filesystem;

namespace {

using Json = nlohmann::json;

constexpr std::string_view kModelPrefix = "model.";
constexpr std::string_view kEmaPrefix = "ema.";
constexpr int kVersion = 2;
constexpr std::int64_t kMaxChannels = 3;

Json state_of(const TensorFile& file, const std::string& source) {
  Json state;
  if (is_checkpoint(file)) state = Json::parse(file.metadata.at(kCheckpointState), nullptr, false);
  if (!state.is_object() || state.find("version") == state.end() || state["version"] != kVersion) {
    fail_checkpoint(source + ": is not a checkpoint that this version of mnist-train can read");
  }
  return state;
}

/// Returns the tensors of the trainer's state under their names in a checkpoint, such as
/// "model.conv1.weight" or "optimizer.momentum_buffer.conv1.weight" (in which "momentum_buffer" is
/// PyTorch's name). They share the trainer's memory.
NamedTensors named_state(const train::Trainer& trainer) {
  NamedTensors tensors;
  const auto add_model = [&](std::string_view prefix, const models::Model& model) {
    for (const auto& [name, tensor] : model_tensors(model)) {
      tensors.emplace_back(std::string(prefix) + name, tensor);
    }
  };
  add_model(kModelPrefix, trainer.model());
  if (trainer.ema() != nullptr) add_model(kEmaPrefix, trainer.ema()->model());
  const std::vector<std::string>& names = trainer.parameters().names();
  for (const train::OptimizerTensor& state : trainer.optimizer().state()) {
    for (std::size_t i = 0; i < names.size(); ++i) {
      tensors.emplace_back("optimizer." + state.name + "." + names[i],
                           trainer.parameters().view_like_parameter(state.flat, i));
    }
  }
  return tensors;
}

/// Returns the tensors whose names begin with `prefix`, and removes it from their names.
NamedTensors tensors_with_prefix(std::string_view prefix, const TensorFile& file) {
  NamedTensors found;
  for (const auto& [name, tensor] : file.tensors) {
    if (name.starts_with(prefix)) found.emplace_back(name.substr(prefix.size()), tensor);
  }
  return found;
}

/// Throws unless the checkpoint's tensors match those of the trainer's state. The states of adam
/// and adamw have the same names and shapes, so the optimizer's name is compared too.
void check_restorable(const train::Trainer& trainer, const TensorFile& file,
                      const std::string& source) {
  const Json config = Json::parse(checkpoint_facts(file, source).config);
  const Json name = trainer.optimizer().name();
  const Json saved = config.is_object() ? config.value("optimizer", name) : name;
  std::string text;
  if (saved != name) {
    text = "\n  its optimizer is " + saved.dump() + ", but this run uses " + name.dump();
  }
  text += differences(named_state(trainer), file.tensors);
  if (text.empty()) return;
  if (differences(model_tensors(trainer.model()), tensors_with_prefix(kModelPrefix, file))
          .empty()) {
    text += "\nto start from only its weights, use model.weights";
  }
  fail_checkpoint(source + ": does not fit this run:" + text);
}

/// Visits each saved member of the progress, which may be const. Requests to stop are not saved.
template <class SomeProgress, class Visit>
void for_each_member(SomeProgress& progress, const Visit& visit) {
  visit("/epoch", progress.epoch);
  visit("/samples_into_epoch", progress.samples_into_epoch);
  visit("/step", progress.step);
  visit("/samples_seen", progress.samples_seen);
  visit("/epoch_train_seconds", progress.epoch_train_seconds);
  visit("/train_seconds", progress.train_seconds);
  visit("/test_seconds", progress.test_seconds);
  visit("/accuracies", progress.accuracies);
  visit("/best_accuracy", progress.best_accuracy);
  visit("/best_step", progress.best_step);
  visit("/epoch_sums/loss", progress.epoch_sums.loss);
  visit("/epoch_sums/correct", progress.epoch_sums.correct);
  visit("/epoch_sums/samples", progress.epoch_sums.samples);
  visit("/best/test_accuracy", progress.best_test_accuracy);
  visit("/best/epoch", progress.best_epoch);
  visit("/best/score", progress.best_score);
  visit("/highest_accuracy", progress.highest_accuracy);
  visit("/plateau/best_loss", progress.plateau.best_loss);
  visit("/plateau/bad_epochs", progress.plateau.bad_epochs);
  visit("/plateau/factor", progress.plateau.factor);
  visit("/early_stopping/best_accuracy", progress.early_stopping.best_accuracy);
  visit("/early_stopping/bad_epochs", progress.early_stopping.bad_epochs);
}

/// Calls `visit(path, member)` for all facts except the config and those that may be empty.
template <class Facts, class Visit>
void for_each_fact(Facts& facts, const Visit& visit) {
  visit("/data_hash", facts.data_hash);
  visit("/world_size", facts.world_size);
  visit("/metrics_bytes", facts.positions.metrics_bytes);
  visit("/event_bytes", facts.positions.event_bytes);
  visit("/restarts", facts.restarts);
  visit("/images/channels", facts.images.channels);
  visit("/images/height", facts.images.height);
  visit("/images/width", facts.images.width);
  visit("/images/classes", facts.images.classes);
}

/// Throws if a size is outside the limits for data, because a model will be built from these sizes.
void check_image_shape(const network::ImageShape& shape, const std::string& source) {
  const auto check = [&](const char* key, std::int64_t value, std::int64_t max) {
    if (value >= 1 && value <= max) return;
    fail_checkpoint(fmt::format("{}: {} is {}, expected 1 to {}", source, key, value, max));
  };
  check("channels", shape.channels, kMaxChannels);
  check("height", shape.height, settings::kMaxImageSide);
  check("width", shape.width, settings::kMaxImageSide);
  check("classes", shape.classes, settings::kMaxClasses);
}

/// Returns the step of a checkpoint, or the largest integer if the file cannot be read.
std::int64_t step_of(const fs::path& path) {
  try {
    return checkpoint_progress(read_checkpoint(path), path.string()).step;
  } catch (const Error&) {
    return std::numeric_limits<std::int64_t>::max();
  }
}

}  // namespace

NamedTensors model_tensors(const models::Model& model) {
  NamedTensors tensors;
  for (const auto& module : model.named_modules()) {
    const std::string prefix = module.key().empty() ? "" : module.key() + ".";
    for (const auto& list : {module.value()->named_parameters(/*recurse=*/false),
                             module.value()->named_buffers(/*recurse=*/false)}) {
      for (const auto& item : list) tensors.emplace_back(prefix + item.key(), item.value());
    }
  }
  return tensors;
}

NamedTensors state_dict(const models::Model& model) {
  const at::NoGradGuard no_grad;
  NamedTensors weights;
  for (const auto& [name, tensor] : model_tensors(model)) {
    const auto type = tensor.is_floating_point() ? at::kFloat : tensor.scalar_type();
    // Always a copy: the parameters share one buffer, which the next step changes.
    weights.emplace_back(
        name, accelerator::to_host(tensor.detach())
                  .to(type, /*non_blocking=*/false, /*copy=*/true, at::MemoryFormat::Contiguous));
  }
  return weights;
}

std::string differences(const NamedTensors& expected, const NamedTensors& found) {
  std::string missing, resized, unexpected;
  for (const auto& [name, tensor] : expected) {
    const at::Tensor* other = find_named(found, name);
    if (other == nullptr) {
      missing += c10::str("\n  missing: ", name, " ", tensor.sizes());
    } else if (other->sizes() != tensor.sizes()) {
      resized += c10::str("\n  size mismatch: ", name, " is ", other->sizes(), ", expected ",
                          tensor.sizes());
    }
  }
  for (const auto& [name, tensor] : found) {
    if (find_named(expected, name) != nullptr) continue;
    unexpected += c10::str("\n  unexpected: ", name, " ", tensor.sizes());
  }
  return missing + resized + unexpected;
}

void copy_tensors(const NamedTensors& targets, const NamedTensors& values) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, target] : targets) target.copy_(*find_named(values, name));
}

void require_finite(const models::Model& model, const std::string& source) {
  const auto check = [&](const std::string& name, const at::Tensor& wrong) {
    if (!wrong.any().item<bool>()) return;
    fail_checkpoint(
        source + ": tensor " + name +
        " contains NaN or infinite values: the run that wrote it has diverged; use weights "
        "that it saved earlier");
  };
  const at::NoGradGuard no_grad;
  for (const auto& item : model.named_parameters()) {
    check(item.key(), item.value().isfinite().logical_not());
  }
  // Some networks use infinite values in buffers as masks.
  for (const auto& item : model.named_buffers()) check(item.key(), item.value().isnan());
}

StateTensors state_tensors(const train::Trainer& trainer) {
  StateTensors state;
  state.flat.push_back(trainer.parameters().weights());
  for (const auto& tensor : trainer.optimizer().state()) state.flat.push_back(tensor.flat);
  state.buffers = trainer.model().buffers();
  if (trainer.ema() != nullptr) {
    state.flat.push_back(trainer.ema()->values());
    const auto more = trainer.ema()->model().buffers();
    state.buffers.insert(state.buffers.end(), more.begin(), more.end());
  }
  return state;
}

Json progress_to_json(const train::Progress& progress) {
  Json json;
  for_each_member(progress, [&](const char* path, const auto& value) {
    json[Json::json_pointer(path)] = value;
  });
  return json;
}

train::Progress progress_from_json(const Json& json) {
  train::Progress progress;
  for_each_member(progress, [&](const char* path, auto& value) {
    json.at(Json::json_pointer(path)).get_to(value);
  });
  return progress;
}

void broadcast_state(train::Trainer& trainer, comm::Communicator& communicator) {
  if (communicator.alone()) return;
  const at::NoGradGuard no_grad;
  StateTensors state = state_tensors(trainer);
  for (auto* tensors : {&state.flat, &state.buffers}) {
    for (at::Tensor& tensor : *tensors) communicator.broadcast(tensor);
  }
  trainer.progress() = progress_from_json(
      Json::parse(communicator.broadcast_text(progress_to_json(trainer.progress()).dump())));
  trainer.optimizer().restored(trainer.progress().step);
}

TensorFile snapshot(const train::Trainer& trainer, const RunFacts& facts) {
  const at::NoGradGuard no_grad;
  TensorFile file;
  for (const auto& [name, tensor] : named_state(trainer)) {
    file.tensors.emplace_back(name,
                              accelerator::to_host(tensor).clone(at::MemoryFormat::Contiguous));
  }
  Json state = {{"version", kVersion},
                {"progress", progress_to_json(trainer.progress())},
                {"config", Json::parse(facts.config)}};
  for_each_fact(
      facts, [&](const char* path, const auto& value) { state[Json::json_pointer(path)] = value; });
  if (!facts.class_names.empty()) state["class_names"] = facts.class_names;
  if (!facts.files_hash.empty()) state["files_hash"] = facts.files_hash;
  if (!facts.code_hash.empty()) state["code_hash"] = facts.code_hash;
  file.metadata = {{"format", "pt"}, {kCheckpointState, state.dump()}};
  return file;
}

TensorFile read_checkpoint(const std::filesystem::path& path) {
  TensorFile file = read_safetensors(path, /*require_seal=*/true);
  state_of(file, path.string());
  return file;
}

void restore(train::Trainer& trainer, const TensorFile& file, const std::string& source) {
  // Everything is read and checked before anything is changed.
  train::Progress progress = checkpoint_progress(file, source);
  check_restorable(trainer, file, source);
  copy_tensors(named_state(trainer), file.tensors);
  trainer.progress() = std::move(progress);
  trainer.optimizer().restored(trainer.progress().step);
}

bool is_checkpoint(const TensorFile& file) { return file.metadata.contains(kCheckpointState); }

NamedTensors checkpoint_weights(const TensorFile& file) {
  NamedTensors ema = tensors_with_prefix(kEmaPrefix, file);
  return ema.empty() ? tensors_with_prefix(kModelPrefix, file) : ema;
}

train::Progress checkpoint_progress(const TensorFile& file, const std::string& source) try {
  return progress_from_json(state_of(file, source).at("progress"));
} catch (const nlohmann::json::exception& error) {
  fail_checkpoint(source + ": cannot read the run's progress: " + error.what());
}

RunFacts checkpoint_facts(const TensorFile& file, const std::string& source) try {
  const Json state = state_of(file, source);
  RunFacts facts;
  facts.config = state.at("config").dump();
  for_each_fact(facts, [&](const char* path, auto& value) {
    state.at(Json::json_pointer(path)).get_to(value);
  });
  check_image_shape(facts.images, source);
  if (state.contains("class_names")) state["class_names"].get_to(facts.class_names);
  facts.files_hash = state.value("files_hash", "");
  facts.code_hash = state.value("code_hash", "");
  return facts;
} catch (const nlohmann::json::exception& error) {
  fail_checkpoint(source + ": cannot read its description of the run: " + error.what());
}

void CheckpointFolder::save(const TensorFile& snapshot, std::int64_t step, bool is_extra,
                            std::int64_t replaced) {
  std::error_code ignored;
  // Not its parents: if the run folder has been removed, writing should fail.
  fs::create_directory(folder_, ignored);
  remove_leftovers(folder_);
  write_safetensors(path_of(step), snapshot, /*seal=*/true);
  read_checkpoint(path_of(step));
  if (replaced >= 0 && replaced != step) fs::remove(path_of(replaced), ignored);
  std::vector<std::int64_t> steps = saved_steps(folder_);
  if (is_extra) std::erase(steps, step);
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep_) < steps.size(); ++i) {
    fs::remove(path_of(steps[i]), ignored);  // a file that cannot be removed does no harm
  }
}

void CheckpointFolder::mark_best(const fs::path& checkpoint) const {
  const fs::path temporary = folder_ / (".best.partial-" + std::to_string(::getpid()));
  std::error_code error;
  fs::create_directory(folder_, error);
  fs::remove(temporary, error);
  fs::create_hard_link(checkpoint, temporary, error);
  if (error) fs::copy_file(checkpoint, temporary, error);  // a file system without hard links
  if (!error) fs::rename(temporary, best(), error);
  std::error_code ignored;
  fs::remove(temporary, ignored);  // left on failure, or if `best` was already the same file
  if (error) {
    fail_checkpoint(best().string() + ": cannot replace the best checkpoint: " + error.message());
  }
}

bool CheckpointFolder::restore_best(std::int64_t step, const fs::path& other) {
  const std::int64_t marked = path_exists(best()) ? step_of(best()) : -1;
  if (marked >= 0 && marked == step) return true;
  if (marked > step) abandon(best());
  const std::string name = checkpoint_name(step);
  for (const fs::path& file : {folder_ / name, other / kBestCheckpoint, other / name}) {
    if (!path_exists(file) || step_of(file) != step) continue;
    mark_best(file);
    return true;
  }
  if (path_exists(best())) abandon(best());
  return false;
}

void CheckpointFolder::abandon(const fs::path& file) {
  if (abandoned_.empty()) {
    abandoned_ = first_numbered(folder_ / "abandoned", std::not_fn(path_exists));
  }
  std::error_code error;
  fs::create_directories(abandoned_, error);
  fs::rename(file, abandoned_ / file.filename(), error);
  if (!error) return;
  fail_checkpoint(file.string() + ": does not belong to the resumed state and cannot be moved to " +
                  abandoned_.string() + ": " + error.message());
}

std::int64_t CheckpointFolder::abandon_later_than(std::int64_t step) {
  std::int64_t count = 0;
  for (const std::int64_t later : saved_steps(folder_)) {
    if (later <= step) continue;
    abandon(path_of(later));
    ++count;
  }
  return count;
}

CheckpointWriter::~CheckpointWriter() {
  try {
    wait();
  } catch (const std::exception& error) {
    spdlog::error("{}", error.what());
  }
}

void CheckpointWriter::start(TensorFile snapshot, std::int64_t step, bool best, bool is_extra,
                             std::int64_t replaced) {
  wait();
  const auto save = [this, snapshot = std::move(snapshot), step, best, is_extra, replaced] {
    folder_.save(snapshot, step, is_extra, replaced);
    if (best) folder_.mark_best(folder_.path_of(step));
  };
  try {
    saving_ = start_task(save);
  } catch (const Error& error) {
    if (!std::exchange(has_warned_, true)) {
      spdlog::warn("{}; training waits while the checkpoint is saved", error.what());
    }
    save();
  }
}

void CheckpointWriter::check() {
  const bool is_done =
      saving_.valid() && saving_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  if (is_done) wait();
}

void CheckpointWriter::wait() {
  if (saving_.valid()) saving_.get();
}

std::optional<FoundCheckpoint> newest_valid(const fs::path& folder) {
  const std::vector<fs::path> files = checkpoints_in(folder);
  if (files.empty()) return std::nullopt;
  std::string damage;
  for (const fs::path& file : files) {
    try {
      return FoundCheckpoint{file, read_checkpoint(file)};
    } catch (const Error& error) {
      spdlog::warn(
          "{}; {}", error.what(),
          file == files.back() ? "there is no earlier checkpoint" : "trying the previous one");
      damage += std::string("\n  ") + error.what();
    }
  }
  fail_checkpoint(folder.string() + ": no checkpoint can be read:" + damage +
                  "\nto start from scratch, move these files elsewhere");
}

}  // namespace mnist_train::checkpoint
