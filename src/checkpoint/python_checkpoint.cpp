#include <ATen/ops/full.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/checkpoint_file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/pt_file.h"

namespace mnist_train::checkpoint {

namespace {

using PythonDict = c10::impl::GenericDict;
using PythonList = c10::impl::GenericList;

PythonDict make_dict(std::initializer_list<std::pair<const char*, c10::IValue>> entries = {}) {
  PythonDict dict(c10::StringType::get(), c10::AnyType::get());
  for (const auto& [name, value] : entries) dict.insert(name, value);
  return dict;
}

/// The names of the state that PyTorch's optimizer keeps of a parameter.
std::vector<std::string> state_names(const settings::TrainOptions& options) {
  if (options.optimizer != settings::OptimizerName::kSgd) return {"exp_avg", "exp_avg_sq"};
  if (options.sgd_momentum != 0) return {"momentum_buffer"};
  return {};
}

/// Returns the parameters without optimizer state, which the network itself has frozen, if others
/// have some.
std::set<std::string> stateless_in(const TensorFile& file,
                                   const std::vector<std::string>& parameters,
                                   const settings::TrainOptions& options) {
  std::set<std::string> stateless;
  for (const std::string& parameter : parameters) {
    for (const std::string& name : state_names(options)) {
      const std::string key = fmt::format("optimizer.{}.{}", name, parameter);
      if (file.find(key) == nullptr) stateless.insert(parameter);
    }
  }
  return stateless.size() < parameters.size() ? stateless : std::set<std::string>();
}

PythonDict state_of_parameter(const TensorFile& file, const std::string& parameter,
                              const settings::TrainOptions& options, std::int64_t step,
                              const std::string& source, std::vector<at::Tensor>& tensors) {
  PythonDict state = make_dict();
  if (options.optimizer != settings::OptimizerName::kSgd) {
    // A tensor for each parameter, because Python counts each of them up in place.
    tensors.push_back(at::full({}, static_cast<double>(step), at::kFloat));
    state.insert("step", tensors.back());
  }
  for (const std::string& name : state_names(options)) {
    const std::string key = fmt::format("optimizer.{}.{}", name, parameter);
    const at::Tensor* tensor = file.find(key);
    if (tensor == nullptr) fail_checkpoint(fmt::format("{}: lacks {}", source, key));
    tensors.push_back(*tensor);
    state.insert(name, *tensor);
  }
  return state;
}

/// Parameters with the same settings, by their numbers.
using ParameterGroup = std::pair<settings::ParameterSettings, std::vector<std::int64_t>>;

/// All entries that the constructors of PyTorch 2.x make.
PythonDict parameter_group(const settings::TrainOptions& options,
                           const ParameterGroup& parameters) {
  const auto& [trained, numbers] = parameters;
  const double weight_decay = trained.weight_decay.value_or(options.weight_decay);
  PythonDict group = make_dict({{"lr", options.learning_rate * trained.learning_rate_factor}});
  if (options.optimizer == settings::OptimizerName::kSgd) {
    group.insert("momentum", options.sgd_momentum);
    group.insert("dampening", std::int64_t{0});
    group.insert("weight_decay", weight_decay);
    group.insert("nesterov", options.nesterov);
  } else {
    group.insert("betas", c10::ivalue::Tuple::create({options.adam_beta1, options.adam_beta2}));
    group.insert("eps", options.adam_epsilon);
    group.insert("weight_decay", weight_decay);
    group.insert("amsgrad", false);
    group.insert("capturable", false);
    group.insert("decoupled_weight_decay", options.optimizer == settings::OptimizerName::kAdamW);
  }
  group.insert("maximize", false);
  group.insert("foreach", c10::IValue());
  group.insert("differentiable", false);
  group.insert("fused", c10::IValue());
  PythonList indices(c10::AnyType::get());
  for (const std::int64_t number : numbers) indices.push_back(number);
  group.insert("params", indices);
  return group;
}

}  // namespace

void write_python_checkpoint(const std::filesystem::path& path, const TensorFile& file,
                             const settings::TrainOptions& options, const std::string& source) {
  const train::Progress progress = checkpoint_progress(file, source);
  const std::vector<std::string> buffers = checkpoint_buffers(file, source);
  const NamedTensors weights = trained_weights(file);
  const NamedTensors evaluated = checkpoint_weights(file);
  std::vector<at::Tensor> tensors;
  PythonDict model = make_dict();
  PythonDict state(c10::IntType::get(), c10::AnyType::get());
  std::vector<std::string> parameters;
  for (const auto& [name, tensor] : weights) {
    model.insert(name, tensor);
    tensors.push_back(tensor);
    if (std::ranges::find(buffers, name) == buffers.end()) parameters.push_back(name);
  }
  // PyTorch numbers the parameters in the order of the state_dict, without the frozen ones.
  const auto trained = settings::parameter_settings(options.parameters, parameters,
                                                    stateless_in(file, parameters, options));
  std::vector<ParameterGroup> groups;
  std::int64_t number = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (trained[i].frozen) continue;
    const auto entry =
        state_of_parameter(file, parameters[i], options, progress.step, source, tensors);
    if (!entry.empty()) state.insert(number, entry);
    auto group = std::ranges::find(groups, trained[i], &ParameterGroup::first);
    if (group == groups.end()) group = groups.insert(group, {trained[i], {}});
    group->second.push_back(number++);
  }
  const auto saved = std::ranges::count_if(
      file.tensors, [](const auto& tensor) { return tensor.first.starts_with("optimizer."); });
  if (saved != number * static_cast<std::int64_t>(state_names(options).size())) {
    fail_checkpoint(source + ": has more optimizer state than PyTorch's optimizer of that kind");
  }
  PythonList python_groups(c10::AnyType::get());
  for (const ParameterGroup& group : groups)
    python_groups.push_back(parameter_group(options, group));
  PythonDict all = make_dict(
      {{"epoch", progress.epoch},
       {"step", progress.step},
       {"model_state_dict", model},
       {"optimizer_state_dict", make_dict({{"state", state}, {"param_groups", python_groups}})}});
  if (options.ema) {
    PythonDict average = make_dict();
    for (const auto& [name, tensor] : evaluated) {
      average.insert(name, tensor);
      tensors.push_back(tensor);
    }
    all.insert("ema_state_dict", average);
  }
  write_pt_value(path, all, tensors);
}

}  // namespace mnist_train::checkpoint
