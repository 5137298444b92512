#include "models/plugin_model.h"

#include <spdlog/fmt/fmt.h>

#include <utility>

#include "base/error.h"
#include "base/shared_library.h"
#include "models/external_model.h"
#include "models/plugin_options.h"
#include "plugin/model.h"

namespace mnist_train::models {

namespace {

/// Returns what a library says of itself. Throws Error(kConfig) where it is no plug-in of this
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
  const std::string built_for = fmt::format("version {} of mnist_train/model.h and LibTorch {}",
                                            entry.api_version, entry.torch_version);
  const std::string expected = fmt::format("version {} of mnist_train/model.h and LibTorch {}",
                                           plugin::kApiVersion, TORCH_VERSION);
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
    options.require_correct(/*all_were_read=*/false);  // which may be why
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

  // The plug-in's module may override these; the tensors are the same in both.
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
