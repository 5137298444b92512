#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>
#include <spdlog/spdlog.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/runtime/graph_iterator.h>
#include <torch/csrc/jit/serialization/import.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/system.h"
#include "models/model.h"
#include "plugin/model.h"

namespace mnist_train::models {

namespace {

/// Returns the reasons why parameters cannot be trained, one per line; empty if all can.
std::string training_obstacles(const torch::OrderedDict<std::string, at::Tensor>& parameters) {
  std::string errors;
  std::map<const void*, std::string> names;
  for (const auto& item : parameters) {
    const at::Tensor& tensor = item.value();
    const auto add = [&](const std::string& what) { errors += "\n  " + item.key() + " " + what; };
    if (tensor.scalar_type() != at::kFloat) {
      add(std::string("is ") + c10::toString(tensor.scalar_type()) + ", expected Float");
    }
    if (tensor.numel() == 0) continue;
    const auto [first, is_new] = names.emplace(tensor.const_data_ptr(), item.key());
    if (!is_new) add("shares memory with " + first->second);
  }
  return errors;
}

/// Returns the cause of an error in one line, without the stack traces of LibTorch and TorchScript.
std::string cause_of(const std::exception& error) {
  const auto* from_torch = dynamic_cast<const c10::Error*>(&error);
  std::string message = from_torch != nullptr ? from_torch->what_without_backtrace() : error.what();
  spdlog::debug("{}", message);
  // The interpreter's messages begin with stack traces and end with the original message.
  while (!message.empty() && message.back() == '\n') message.pop_back();
  const bool has_traces = message.starts_with("The following operation failed");
  return has_traces ? message.substr(message.rfind('\n') + 1)
                    : message.substr(0, message.find('\n'));
}

/// An external network, with the names of its own state_dict. Derived classes register the tensors
/// that the network's code uses, so these are trained in place.
class ExternalModel : public Model {
 public:
  at::Tensor forward(const at::Tensor& images) override {
    try {
      // Sets the strides of single channels, too, which determine the format of convolutions.
      return compute(images.contiguous().view(-1).view(images.sizes()));
    } catch (const c10::Error&) {
      throw;  // its type indicates whether a restart may help
    } catch (const std::exception& error) {
      const std::string cause = cause_of(error);
      const bool has_one_sample = cause.find("more than 1 value per channel") != std::string::npos;
      throw Error(ExitCode::kRunFailed,
                  source_ + ": forward failed: " + cause +
                      (has_one_sample ? "; change batch_size so that each process has at least two "
                                        "samples in an epoch's last step"
                                      : ""));
    }
  }
  bool is_external() const override { return true; }
  /// As in Python, so that `view` can flatten the outputs of convolutions.
  at::MemoryFormat memory_format() const override { return at::MemoryFormat::Contiguous; }
  void compute_in_bfloat16() override {
    Model::compute_in_bfloat16();
    try_forward(at::kBFloat16, "; set precision to fp32");
  }

  /// Makes all buffers contiguous. Throws Error(kConfig) unless the network has parameters, all of
  /// them are fp32, none share memory, and two images of the expected shape produce logits for the
  /// expected classes.
  void require_usable() {
    for (const at::Tensor& buffer : buffers()) buffer.set_data(buffer.contiguous());
    const auto parameters = named_parameters();
    if (parameters.is_empty()) {
      reject("has no parameters to train; torch.jit.freeze turns them into constants, so omit it");
    }
    const std::string obstacles = training_obstacles(parameters);
    if (!obstacles.empty()) reject("has parameters that cannot be trained:" + obstacles);
    try_forward(at::kFloat, "");
  }

 protected:
  /// `source` is the prefix of messages: the config key and its file.
  ExternalModel(std::string source, const network::ImageShape& shape)
      : source_(std::move(source)), shape_(shape) {}

  /// Computes the logits of images; see `forward`.
  virtual at::Tensor compute(const at::Tensor& images) = 0;

  const std::string& source() const { return source_; }
  /// Throws Error(kConfig) with the message prefixed by the source.
  [[noreturn]] void reject(const std::string& message) const {
    throw ConfigKeyError(source_ + ": " + message);
  }

 private:
  /// `advice` is appended to the error message if the forward pass fails.
  void try_forward(at::ScalarType type, const std::string& advice) {
    const at::NoGradGuard no_grad;
    const std::vector<std::int64_t> sizes{2, shape_.channels, shape_.height, shape_.width};
    const std::string images =
        c10::str("images ", at::IntArrayRef(sizes), " of type ", c10::toString(type));
    eval();
    at::Tensor logits;
    try {
      logits = compute(at::zeros(sizes, type));
    } catch (const std::exception& error) {
      reject("forward fails on " + images + ": " + cause_of(error) + advice);
    }
    const std::vector<std::int64_t> expected{2, shape_.classes};
    if (!logits.defined() || logits.sizes() != expected || !logits.is_floating_point()) {
      const std::string found =
          logits.defined() ? c10::str(logits.scalar_type(), " ", logits.sizes()) : "no tensor";
      reject(c10::str("forward returns ", found, " for ", images,
                      ", expected floating-point logits ", at::IntArrayRef(expected)));
    }
    train();
  }

  std::string source_;
  network::ImageShape shape_;
};

/// Registers the tensors and submodules of `script` in `module` under the same names. Each
/// submodule keeps the name of its type.
void mirror(const torch::jit::Module& script, torch::nn::Module& module) {
  for (const auto& item : script.named_parameters(/*recurse=*/false)) {
    module.register_parameter(item.name, item.value, item.value.requires_grad());
  }
  for (const auto& item : script.named_buffers(/*recurse=*/false)) {
    module.register_buffer(item.name, item.value);
  }
  for (const auto& item : script.named_children()) {
    auto child = std::make_shared<torch::nn::Module>(item.value.type()->name()->name());
    mirror(item.value, *child);
    module.register_module(item.name, std::move(child));
  }
}

/// Switches each module of `script` to evaluation mode if its mirror in `module` is in that mode.
void copy_evaluation_mode(const torch::nn::Module& module, torch::jit::Module script) {
  if (!module.is_training()) return script.eval();
  for (const auto& item : module.named_children()) {
    copy_evaluation_mode(*item.value(), script.attr(item.key()).toModule());
  }
}

/// Returns the operations, such as dropout, that tracing fixed in training mode.
std::set<std::string> training_mode_operations(const torch::jit::Module& script) {
  auto graph = script.get_method("forward").graph()->copy();
  torch::jit::Inline(*graph);
  torch::jit::DepthFirstGraphNodeIterator nodes(graph);
  std::set<std::string> kinds;
  while (torch::jit::Node* node = nodes.next()) {
    for (const char* flag : {"train", "training"}) {
      if (node->maybeSchema() == nullptr || !node->hasNamedInput(flag)) continue;
      const auto value = torch::jit::toIValue(node->namedInput(flag));
      if (value && value->isBool() && value->toBool()) kinds.insert(node->kind().toUnqualString());
    }
  }
  return kinds;
}

/// Makes `script` use the tensors of `module`, which mirrors it.
void share_tensors(const torch::nn::Module& module, torch::jit::Module script) {
  for (const auto& tensors :
       {module.named_parameters(/*recurse=*/false), module.named_buffers(/*recurse=*/false)}) {
    for (const auto& item : tensors) script.setattr(item.key(), item.value());
  }
  for (const auto& item : module.named_children()) {
    share_tensors(*item.value(), script.attr(item.key()).toModule());
  }
}

class ScriptModel : public ExternalModel {
 public:
  ScriptModel(const std::filesystem::path& file, const network::ImageShape& shape)
      : ExternalModel("/model/torchscript: " + file.string(), shape), file_(file) {
    load_script();
    require_signature();
    mirror(script_, *this);
  }

  void train(bool on) override {
    Model::train(on);
    script_.train(on);
    copy_evaluation_mode(*this, script_);
  }

  std::string remark() const override {
    const std::set<std::string> fixed = training_mode_operations(script_);
    if (fixed.empty()) return {};
    return fmt::format(
        "{}: was traced in training mode, so these operations ignore model.eval(): {}; trace after "
        "model.eval(), or use torch.jit.script",
        source(), fmt::join(fixed, ", "));
  }

  using Model::to;
  void to(at::Device device, bool non_blocking) override {
    Model::to(device, non_blocking);
    if (device.is_cpu()) return;
    // Tensors that are neither parameters nor buffers, such as constants in the code, are moved to
    // the device only by loading the script there.
    script_ = torch::jit::load(file_.string(), device);
    share_tensors(*this, script_);
  }

 protected:
  at::Tensor compute(const at::Tensor& images) override {
    // The optimising executor profiles the first calls and uses different kernels afterwards, so a
    // resumed run would differ from an uninterrupted one.
    const torch::jit::GraphOptimizerEnabledGuard no_optimization(false);
    return script_.forward({images}).toTensor();
  }

 private:
  void load_script() {
    try {
      script_ = torch::jit::load(file_.string(), at::kCPU);
    } catch (const std::exception& error) {
      const std::string cause = cause_of(error);
      reject("is damaged or not a TorchScript file; create it with torch.jit.script(model).save: " +
             cause.substr(0, cause.find(". ")));
    }
  }

  void require_signature() const {
    const auto forward = script_.find_method("forward");
    if (!forward) reject("has no forward method");
    const c10::FunctionSchema& schema = forward->function().getSchema();
    const auto is_tensor = [](const c10::Argument& argument) {
      return argument.type()->kind() == c10::TypeKind::TensorType;
    };
    const auto& inputs = schema.arguments();  // the first is the module itself
    bool fits = inputs.size() >= 2 && is_tensor(inputs[1]);
    for (std::size_t i = 2; i < inputs.size(); ++i) fits &= inputs[i].default_value().has_value();
    fits &= schema.returns().size() == 1 && is_tensor(schema.returns().front());
    if (!fits) {
      reject(c10::str("forward must take and return one tensor; its signature is ", schema));
    }
  }

  std::filesystem::path file_;
  torch::jit::Module script_;
};

/// The options that a plug-in reads from the config. Errors are collected, because exceptions must
/// not propagate through the plug-in's code.
class PluginOptions final : public plugin::Options {
 public:
  /// `json` is a JSON object.
  explicit PluginOptions(const std::string& json) : values_(nlohmann::json::parse(json)) {}

  std::int64_t integer(const std::string& name, std::int64_t fallback, std::int64_t min,
                       std::int64_t max) override {
    const auto fits = [&](const nlohmann::json& value) {
      return value.is_number_integer() &&
             (!value.is_number_unsigned() || value.get<std::uint64_t>() <= INT64_MAX) &&
             value >= min && value <= max;
    };
    return read(name, fallback, fits, fmt::format("an integer from {} to {}", min, max));
  }

  double number(const std::string& name, double fallback, double min, double max) override {
    const auto fits = [&](const nlohmann::json& value) {
      return value.is_number() && value >= min && value <= max;
    };
    return read(name, fallback, fits, fmt::format("a number from {} to {}", min, max));
  }

  bool boolean(const std::string& name, bool fallback) override {
    return read(
        name, fallback, [](const auto& value) { return value.is_boolean(); }, "true or false");
  }

  std::string text(const std::string& name, const std::string& fallback,
                   const std::vector<std::string>& choices) override {
    const auto fits = [&](const nlohmann::json& value) {
      return value.is_string() &&
             (choices.empty() || contains(choices, value.get_ref<const std::string&>()));
    };
    return read(
        name, fallback, fits,
        choices.empty() ? "text" : fmt::format("one of \"{}\"", fmt::join(choices, "\", \"")));
  }

  /// Throws Error(kConfig) listing all invalid values and, once `all_read`, unknown keys, if any.
  void require_valid(bool all_read) const {
    std::vector<std::string> errors = errors_;
    const std::string known =
        keys_read_.empty() ? "the plug-in reads no options"
                           : fmt::format("the plug-in reads {}", fmt::join(keys_read_, ", "));
    for (const auto& [name, value] : values_.items()) {
      if (!all_read || contains(keys_read_, name)) continue;
      errors.push_back(fmt::format("/model/options/{}: unknown key; {}", name, known));
    }
    if (!errors.empty()) throw ConfigKeyError(fmt::format("{}", fmt::join(errors, "\n")));
  }

 private:
  static bool contains(const std::vector<std::string>& list, const std::string& item) {
    return std::find(list.begin(), list.end(), item) != list.end();
  }

  template <class T, class Fits>
  T read(const std::string& name, const T& fallback, const Fits& fits,
         const std::string& expected) {
    if (!contains(keys_read_, name)) keys_read_.push_back(name);
    const auto found = values_.find(name);
    if (found == values_.end()) return fallback;
    if (fits(*found)) return found->template get<T>();
    errors_.push_back(
        fmt::format("/model/options/{}: expected {}, found {}", name, expected, found->dump()));
    return fallback;
  }

  nlohmann::json values_;
  std::vector<std::string> keys_read_;  // in the order in which the plug-in reads them
  std::vector<std::string> errors_;
};

/// Returns the entry point of a library. Throws Error(kConfig) unless the library is a plug-in that
/// was built for this program's versions of the header and LibTorch.
const plugin::EntryPoint& load_entry(const std::filesystem::path& file, const std::string& source) {
  const auto require = [&](bool fits, const std::string& message) {
    if (!fits) throw ConfigKeyError(source + ": " + message);
  };
  const SharedLibrary library(file.string());
  require(library.loaded(), "cannot be loaded: " + library.error());
  const auto entry_function = library.find<const plugin::EntryPoint*()>(plugin::kEntryFunction);
  require(
      entry_function != nullptr,
      fmt::format("is not a plug-in: it has no function {}, which MNIST_TRAIN_CLASSIFIER defines",
                  plugin::kEntryFunction));
  const plugin::EntryPoint& entry = *entry_function();
  const auto versions = [](auto header, auto torch) {
    return fmt::format("version {} of mnist_train/model.h and LibTorch {}", header, torch);
  };
  const std::string built_with = versions(entry.api_version, entry.torch_version);
  const std::string expected = versions(plugin::kApiVersion, TORCH_VERSION);
  require(built_with == expected,
          "was built with " + built_with + ", but this program needs " + expected + "; rebuild it");
  return entry;
}

class PluginModel : public ExternalModel {
 public:
  PluginModel(const std::string& source, const network::ImageShape& shape,
              std::shared_ptr<plugin::Classifier> classifier)
      : ExternalModel(source, shape), network_(std::move(classifier)) {
    for (const auto& item : network_->named_parameters(/*recurse=*/false)) {
      register_parameter(item.key(), item.value(), item.value().requires_grad());
    }
    for (const auto& item : network_->named_buffers(/*recurse=*/false)) {
      register_buffer(item.key(), item.value());
    }
    for (const auto& item : network_->named_children()) register_module(item.key(), item.value());
  }

  // Forwarded because the plug-in may override these functions; both modules share their tensors.
  void train(bool on) override {
    Model::train(on);
    network_->train(on);
    keep_frozen_statistics();
  }
  using Model::to;
  void to(at::Device device, bool non_blocking) override { network_->to(device, non_blocking); }

 protected:
  at::Tensor compute(const at::Tensor& images) override { return network_->forward(images); }

 private:
  std::shared_ptr<plugin::Classifier> network_;
};

}  // namespace

std::shared_ptr<Model> make_script_model(const std::filesystem::path& file,
                                         const network::ImageShape& shape) {
  auto model = std::make_shared<ScriptModel>(file, shape);
  model->require_usable();
  return model;
}

std::shared_ptr<Model> make_plugin_model(const std::filesystem::path& file,
                                         const std::string& options,
                                         const network::ImageShape& shape) {
  const std::string source = "/model/plugin: " + file.string();
  const plugin::EntryPoint& entry = load_entry(file, source);
  PluginOptions reader(options);
  std::shared_ptr<plugin::Classifier> classifier;
  try {
    classifier = entry.make({shape.channels, shape.height, shape.width, shape.classes}, reader);
  } catch (const std::exception& error) {
    reader.require_valid(/*all_read=*/false);  // an invalid option may be the cause
    throw ConfigKeyError(source + ": cannot create its network: " + cause_of(error));
  }
  reader.require_valid(/*all_read=*/true);
  auto model = std::make_shared<PluginModel>(source, shape, std::move(classifier));
  model->require_usable();
  return model;
}

}  // namespace mnist_train::models
