#include "app/build_trainer.h"
#include "app/commands.h"
#include "app/open_dataset.h"
#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/weights.h"
#include "interchange/onnx_model.h"
#include "interchange/python_module.h"

namespace mnist_train::app {

namespace {

/// Returns the options that a checkpoint was trained with.
settings::TrainOptions options_of(const checkpoint::TensorFile& file, const std::string& name) {
  return settings::parse_run_config({name, checkpoint::checkpoint_facts(file, name).config, {}})
      .train;
}

void export_with_optimizer(const Worker& worker) {
  const std::string name = worker.job.checkpoint.string();
  if (checkpoint::holds_weights_alone(worker.job.checkpoint)) {
    throw Error(ExitCode::kCheckpoint,
                name +
                    ": holds weights alone: --with-optimizer needs a checkpoint, a file of the "
                    "run's folder checkpoints/");
  }
  const checkpoint::TensorFile file = checkpoint::read_checkpoint(worker.job.checkpoint);
  checkpoint::write_python_checkpoint(worker.job.export_path, file, options_of(file, name), name);
}

/// Writes what is computed, for which the weights must be those of the config's model.
void export_network(Worker& worker) {
  const settings::RunConfig& config = worker.config;
  const data::ImageSet images = images_trained_on(worker);
  const auto model = make_model_with_weights(worker, images, worker.job.checkpoint);
  const network::Network net = network::make_network(config.model, model_input(config, images));
  const auto normalize = settings::effective_normalize(config.data, images.channels);
  launch::update(worker.status(), launch::Phase::kSaving, 0, 0);
  std::string content;
  if (worker.job.export_format == "python") {
    content = interchange::python_module(net, normalize);
  } else {
    const checkpoint::NamedTensors weights = checkpoint::state_dict(*model);
    const auto find_weight = [&](const std::string& name) {
      const at::Tensor& tensor = *checkpoint::find_named(weights, name);
      return std::span(tensor.const_data_ptr<float>(), static_cast<std::size_t>(tensor.numel()));
    };
    content = interchange::onnx_model(net, find_weight, normalize);
  }
  write_file_atomically(worker.job.export_path, content, ExitCode::kCheckpoint);
}

}  // namespace

void run_export(Worker& worker) {
  if (!worker.is_rank0()) return;
  launch::update(worker.status(), launch::Phase::kLoadingWeights, 0, 0);
  const std::string& format = worker.job.export_format;
  if (worker.job.with_optimizer) return export_with_optimizer(worker);
  if (format == "onnx" || format == "python") return export_network(worker);
  const auto weights = checkpoint::read_weights(worker.job.checkpoint);
  launch::update(worker.status(), launch::Phase::kSaving, 0, 0);
  checkpoint::write_weights(
      worker.job.export_path, weights,
      format == "pt" ? checkpoint::WeightsFormat::kPt : checkpoint::WeightsFormat::kSafetensors);
}

}  // namespace mnist_train::app
