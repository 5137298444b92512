#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/import.h>

#include <string>
#include <utility>

#include "base/error.h"
#include "models/external_model.h"

namespace mnist_train::models {

namespace {

/// A module of a script, with its tensors and the name of its type.
struct ScriptPart : torch::nn::Module {
  using torch::nn::Module::Module;
};

/// Registers the tensors of `script` and of its modules in `module` under their names.
void mirror(const torch::jit::Module& script, torch::nn::Module& module) {
  for (const auto& item : script.named_parameters(/*recurse=*/false)) {
    module.register_parameter(item.name, item.value, item.value.requires_grad());
  }
  for (const auto& item : script.named_buffers(/*recurse=*/false)) {
    module.register_buffer(item.name, item.value);
  }
  for (const auto& item : script.named_children()) {
    auto part = std::make_shared<ScriptPart>(item.value.type()->name()->name());
    mirror(item.value, *part);
    module.register_module(item.name, std::move(part));
  }
}

/// Makes `script` compute with the tensors of `module`, which mirrors it.
void share_tensors(const torch::nn::Module& module, torch::jit::Module script) {
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    script.setattr(item.key(), item.value());
  }
  for (const auto& item : module.named_buffers(/*recurse=*/false)) {
    script.setattr(item.key(), item.value());
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
  }

  using Model::to;
  void to(at::Device device, bool non_blocking) override {
    Model::to(device, non_blocking);
    if (device.is_cpu()) return;
    // Tensors that are neither parameters nor buffers, such as constants of the code, reach the
    // device only if the script is loaded there.
    script_ = torch::jit::load(file_.string(), device);
    share_tensors(*this, script_);
  }

 protected:
  at::Tensor compute(const at::Tensor& images) override {
    // The optimising executor profiles the first calls and uses other kernels for later ones, so a
    // resumed run would differ from an uninterrupted one.
    const torch::jit::GraphOptimizerEnabledGuard as_written(false);
    return script_.forward({images}).toTensor();
  }

 private:
  void load_script() {
    try {
      caffe2::serialize::PyTorchStreamReader archive(file_.string());
      if (archive.hasRecord("constants.pkl")) {
        script_ = torch::jit::load(file_.string(), at::kCPU);
      } else if (archive.hasRecord("data.pkl")) {
        refuse("was written by torch.save; use torch.jit.script(model).save");
      } else {
        refuse("is not TorchScript; use torch.jit.script(model).save");
      }
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      const std::string cause = cause_of(error);
      refuse("is damaged or not TorchScript (use torch.jit.script(model).save): " +
             cause.substr(0, cause.find(". ")));
    }
  }

  void require_signature() const {
    const auto forward = script_.find_method("forward");
    if (!forward) refuse("has no method forward");
    const c10::FunctionSchema& schema = forward->function().getSchema();
    const auto is_tensor = [](const c10::Argument& argument) {
      return argument.type()->kind() == c10::TypeKind::TensorType;
    };
    const auto& inputs = schema.arguments();  // the first is the module itself
    bool fits = inputs.size() >= 2 && is_tensor(inputs[1]);
    for (std::size_t i = 2; i < inputs.size(); ++i) fits &= inputs[i].default_value().has_value();
    fits &= schema.returns().size() == 1 && is_tensor(schema.returns().front());
    if (!fits) refuse("forward must take one tensor and return one; it is" + text_of(schema));
  }

  static std::string text_of(const c10::FunctionSchema& schema) {
    std::string text;
    for (std::size_t i = 1; i < schema.arguments().size(); ++i) {
      text += (i > 1 ? ", " : " (") + schema.arguments()[i].type()->annotation_str();
    }
    text += schema.arguments().size() > 1 ? ") ->" : " () ->";
    for (const c10::Argument& result : schema.returns())
      text += " " + result.type()->annotation_str();
    return text;
  }

  std::filesystem::path file_;
  torch::jit::Module script_;
};

}  // namespace

std::shared_ptr<Model> make_script_model(const std::filesystem::path& file,
                                         const network::ImageShape& shape) {
  auto model = std::make_shared<ScriptModel>(file, shape);
  model->require_usable();
  return model;
}

}  // namespace mnist_train::models
