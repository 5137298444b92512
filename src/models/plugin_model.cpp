#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/shared_library.h"
#include "models/external_model.h"
#include "plugin/model.h"

namespace mnist_train::models {

namespace {

/// The options that a plug-in reads from the config. Mistakes are collected, because exceptions
/// must not pass through the plug-in's code.
class PluginOptions final : public plugin::Options {
 public:
  /// `text` is a JSON object.
  explicit PluginOptions(const std::string& text) : values_(nlohmann::json::parse(text)) {}

  std::int64_t integer(const std::string& name, std::int64_t otherwise, std::int64_t min,
                       std::int64_t max) override {
    const auto fits = [&](const nlohmann::json& value) {
      return value.is_number_integer() &&
             (!value.is_number_unsigned() || value.get<std::uint64_t>() <= INT64_MAX) &&
             value >= min && value <= max;
    };
    return read(name, otherwise, fits, fmt::format("an integer from {} to {}", min, max));
  }

  double number(const std::string& name, double otherwise, double min, double max) override {
    const auto fits = [&](const nlohmann::json& value) {
      return value.is_number() && value >= min && value <= max;
    };
    return read(name, otherwise, fits, fmt::format("a number from {} to {}", min, max));
  }

  bool boolean(const std::string& name, bool otherwise) override {
    return read(
        name, otherwise, [](const auto& value) { return value.is_boolean(); }, "true or false");
  }

  std::string text(const std::string& name, const std::string& otherwise,
                   const std::vector<std::string>& choices) override {
    const auto fits = [&](const nlohmann::json& value) {
      return value.is_string() &&
             (choices.empty() || contains(choices, value.get_ref<const std::string&>()));
    };
    return read(
        name, otherwise, fits,
        choices.empty() ? "text" : fmt::format("one of \"{}\"", fmt::join(choices, "\", \"")));
  }

  /// Throws Error(kConfig) with all wrong values and, once the plug-in has read its options, all
  /// unknown keys.
  void require_correct(bool all_were_read) const {
    std::vector<std::string> errors = errors_;
    const std::string known = known_.empty()
                                  ? "the plug-in reads no options"
                                  : fmt::format("the plug-in reads {}", fmt::join(known_, ", "));
    for (const auto& [name, value] : values_.items()) {
      if (!all_were_read || contains(known_, name)) continue;
      errors.push_back(fmt::format("/model/options/{}: unknown key; {}", name, known));
    }
    if (!errors.empty()) throw ConfigKeyError(fmt::format("{}", fmt::join(errors, "\n")));
  }

 private:
  static bool contains(const std::vector<std::string>& list, const std::string& text) {
    return std::find(list.begin(), list.end(), text) != list.end();
  }

  template <class T, class Fits>
  T read(const std::string& name, const T& otherwise, const Fits& fits,
         const std::string& expected) {
    if (!contains(known_, name)) known_.push_back(name);
    const auto found = values_.find(name);
    if (found == values_.end()) return otherwise;
    if (fits(*found)) return found->template get<T>();
    errors_.push_back(
        fmt::format("/model/options/{}: expected {}, found {}", name, expected, found->dump()));
    return otherwise;
  }

  nlohmann::json values_;
  std::vector<std::string> known_;  // in the order of the plug-in's requests
  std::vector<std::string> errors_;
};

/// Returns the entry point of a library. Throws Error(kConfig) unless it is a plug-in of this
/// version.
const plugin::EntryPoint& load_entry(const std::filesystem::path& file, const std::string& source) {
  const SharedLibrary library(file.string());
  if (!library.loaded()) {
    throw ConfigKeyError(source + ": cannot be loaded: " + library.error());
  }
  const auto entry_function = library.find<const plugin::EntryPoint*()>(plugin::kEntryFunction);
  if (entry_function == nullptr) {
    throw ConfigKeyError(source + ": is not a plug-in: it has no function " +
                         plugin::kEntryFunction + ", which MNIST_TRAIN_CLASSIFIER defines");
  }
  const plugin::EntryPoint& entry = *entry_function();
  const auto versions = [](auto header, auto torch) {
    return fmt::format("version {} of mnist_train/model.h and LibTorch {}", header, torch);
  };
  const std::string built_for = versions(entry.api_version, entry.torch_version);
  const std::string expected = versions(plugin::kApiVersion, TORCH_VERSION);
  if (built_for != expected) {
    throw ConfigKeyError(source + ": is built for " + built_for + ", but this program for " +
                         expected + "; build it again");
  }
  return entry;
}

std::shared_ptr<plugin::Classifier> make_network(const plugin::EntryPoint& entry,
                                                 const network::ImageShape& shape,
                                                 PluginOptions& options,
                                                 const std::string& source) {
  std::shared_ptr<plugin::Classifier> made;
  try {
    made = entry.make({shape.channels, shape.height, shape.width, shape.classes}, options);
  } catch (const std::exception& error) {
    options.require_correct(/*all_were_read=*/false);  // a wrong option may be the cause
    throw ConfigKeyError(source + ": cannot make its network: " + cause_of(error));
  }
  options.require_correct(/*all_were_read=*/true);
  return made;
}

class PluginModel : public ExternalModel {
 public:
  PluginModel(const std::string& source, const network::ImageShape& shape,
              std::shared_ptr<plugin::Classifier> made)
      : ExternalModel(source, shape), network_(std::move(made)) {
    for (const auto& item : network_->named_parameters(/*recurse=*/false)) {
      register_parameter(item.key(), item.value(), item.value().requires_grad());
    }
    for (const auto& item : network_->named_buffers(/*recurse=*/false)) {
      register_buffer(item.key(), item.value());
    }
    for (const auto& item : network_->named_children()) register_module(item.key(), item.value());
  }

  // The plug-in may override these; both modules share their tensors.
  void train(bool on) override {
    Model::train(on);
    network_->train(on);
  }
  using Model::to;
  void to(at::Device device, bool non_blocking) override { network_->to(device, non_blocking); }

 protected:
  at::Tensor compute(const at::Tensor& images) override { return network_->forward(images); }

 private:
  std::shared_ptr<plugin::Classifier> network_;
};

}  // namespace

std::shared_ptr<Model> make_plugin_model(const std::filesystem::path& file,
                                         const std::string& options,
                                         const network::ImageShape& shape) {
  const std::string source = "/model/plugin: " + file.string();
  const plugin::EntryPoint& entry = load_entry(file, source);
  PluginOptions reader(options);
  auto model =
      std::make_shared<PluginModel>(source, shape, make_network(entry, shape, reader, source));
  model->require_usable();
  return model;
}

}  // namespace mnist_train::models
