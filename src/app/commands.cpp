#include "app/commands.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "app/proposed_config.h"
#include "base/print.h"
#include "checkpoint/weights.h"
#include "eval/evaluator.h"
#include "interchange/exports.h"
#include "loader/batch_source.h"
#include "report/records.h"

namespace mnist_train::app {

namespace {

void export_with_optimizer(const Worker& worker) {
  const std::string name = worker.job.checkpoint.string();
  if (!checkpoint::facts_of(worker.job.checkpoint)) {
    throw Error(ExitCode::kCheckpoint,
                name +
                    ": holds weights alone: --with-optimizer needs a checkpoint, a file of the "
                    "run's folder checkpoints/");
  }
  const checkpoint::TensorFile file = checkpoint::read_checkpoint(worker.job.checkpoint);
  const std::string config = checkpoint::checkpoint_facts(file, name).config;
  checkpoint::write_python_checkpoint(worker.job.export_path, file,
                                      settings::parse_run_config({name, config, {}}).train, name);
}

/// Returns how pictures like these become the network's input. Classes without names are numbered.
interchange::Pictures pictures_of(const Worker& worker, const data::ImageSet& images) {
  const settings::DataOptions& options = worker.config.data;
  const settings::Background background = settings::background_of(options);
  std::vector<std::string> names = class_names_of(worker);
  if (names.empty() && options.has_picture_files() && worker.job.dataset_record.empty() &&
      !checkpoint::facts_of(worker.job.checkpoint)) {
    spdlog::warn(
        "the names of the classes are unknown, so the file numbers them: {} is neither a "
        "checkpoint nor beside the dataset.json of its run",
        worker.job.checkpoint.string());
  }
  for (std::size_t i = names.size(); i < static_cast<std::size_t>(images.classes); ++i) {
    names.push_back(std::to_string(i));
  }
  return {{images.height, images.width},
          options.fit,
          background,
          settings::list_for_images(options.augment, images.channels, background),
          settings::effective_normalize(options, images.channels),
          std::move(names)};
}

/// Writes the network, for which the weights must be those of the config's model.
void export_network(Worker& worker) {
  const settings::RunConfig& config = worker.config;
  const data::ImageSet images = images_trained_on(worker);
  const auto model = make_model_with_weights(worker, images, worker.job.checkpoint);
  const network::Network net = network::make_network(config.model, model_input(config, images));
  const interchange::Pictures pictures = pictures_of(worker, images);
  launch::update(worker.status(), launch::Phase::kSaving, 0, 0);
  std::string content;
  if (worker.job.export_format == "python") {
    content = interchange::python_module(net, pictures);
  } else {
    const checkpoint::NamedTensors weights = checkpoint::state_dict(*model);
    const auto find_weight = [&](const std::string& name) {
      const at::Tensor& tensor = *checkpoint::find_named(weights, name);
      return std::span(tensor.const_data_ptr<float>(), static_cast<std::size_t>(tensor.numel()));
    };
    content =
        interchange::onnx_model(net, find_weight, pictures, worker.job.export_input == "bytes");
  }
  write_file_atomically(worker.job.export_path, content, ExitCode::kCheckpoint);
}

std::int64_t parameters_of(const torch::nn::Module& module, bool with_children) {
  std::int64_t count = 0;
  for (const at::Tensor& tensor : module.parameters(with_children)) count += tensor.numel();
  return count;
}

/// Returns "Conv2d" for "torch::nn::Conv2dImpl" and for "(anonymous namespace)::Conv2d".
std::string class_of(const torch::nn::Module& module) {
  const std::string& name = module.name();
  const std::string own = name.substr(name.rfind(':') + 1);
  return own.ends_with("Impl") ? own.substr(0, own.size() - 4) : own;
}

/// Returns which published network a file of weights belongs to. Throws Error(kCheckpoint).
InitialWeights published_weights(const std::filesystem::path& file) {
  const auto like =
      checkpoint::network_like(checkpoint::read_weights(file), network::ImageShape{3, 1, 1, 2});
  std::string known;
  for (const settings::ModelName name : settings::all_models()) {
    settings::ModelOptions options;
    options.name = name;
    if (!settings::published_normalize(options)) continue;
    if (like == name) return {file, name};
    known += (known.empty() ? "" : ", ") + settings::name_of(name);
  }
  checkpoint::fail_checkpoint(on_one_line(file.string()) +
                              ": holds weights of no network that init fine-tunes (" + known +
                              "); for others, set model and model.weights in a config");
}

}  // namespace

void run_evaluation(Worker& worker) {
  const settings::RunConfig& config = worker.config;
  std::int64_t batch = 0;
  const auto update_status = [&] {
    launch::update(worker.status(), launch::Phase::kEvaluation, 0, 0, ++batch);
  };
  const data::Dataset dataset = open_dataset(worker, data::Splits::kTest);
  data::ImageSet test = dataset.test;
  // The test set alone may lack a class.
  if (const auto facts = checkpoint::facts_of(worker.job.checkpoint)) {
    test.classes = std::max(test.classes, facts->images.classes);
  }
  const auto model = make_model_with_weights(worker, test, worker.job.checkpoint);
  model->to(worker.device());
  update_status();
  const auto images = loader::make_batch_source(
      test, settings::effective_normalize(config.data, test.channels), worker.device(), at::kFloat,
      make_augmenter(worker, test, /*exchanges=*/false));
  const eval::Evaluation evaluation =
      eval::evaluate(*model, *images, config.train.test_batch_size, worker.communicator,
                     worker.device(), update_status, {.shards = config.train.shards.value_or(0)});
  if (!worker.is_rank0()) return;
  if (!worker.job.as_json) return print_text(report::to_text(evaluation));
  print_result(report::to_json(evaluation, dataset.class_names));
}

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

void run_description(Worker& worker) {
  if (!worker.is_rank0()) return;
  const data::ImageSet images = images_trained_on(worker);
  const network::ImageShape input = model_input(worker.config, images);
  const auto model = make_model(worker.config, images);
  const std::vector<std::string> names = model->named_parameters().keys();
  const auto by_parameter = settings::parameter_settings(worker.config.train.parameters, names,
                                                         model->frozen_parameters());
  report::ModuleTable table;
  table.input = {input.channels, input.height, input.width};
  table.parameters = parameters_of(*model, /*with_children=*/true);
  table.multiply_adds = model->multiply_adds();
  for (const auto& item : model->named_modules()) {
    const torch::nn::Module& module = *item.value();
    const bool is_root = item.key().empty();
    const std::int64_t parameters = parameters_of(module, /*with_children=*/false);
    if (is_root && parameters == 0) continue;
    const bool is_container = parameters == 0 && !module.children().empty();
    report::ModuleRow& row = table.rows.emplace_back(
        report::ModuleRow{item.key(),
                          is_root ? "(outside its modules)" : class_of(module),
                          {},
                          parameters,
                          std::nullopt,
                          is_container});
    for (const std::string& name : module.named_parameters(/*recurse=*/false).keys()) {
      const auto found = std::ranges::find(names, is_root ? name : item.key() + "." + name);
      const auto& own = by_parameter[static_cast<std::size_t>(found - names.begin())];
      row.own.push_back(report::parameter_row(name, own, worker.config.train));
    }
  }
  print_text(worker.job.as_json ? json_text(report::to_json(table), 2) + "\n"
                                : report::to_text(table));
}

void run_init(Worker& worker) {
  if (!worker.is_rank0()) return;
  launch::update(worker.status(), launch::Phase::kLoadingData, 0, 0);
  namespace fs = std::filesystem;
  fs::path folder = fs::absolute(worker.job.images.front()).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();  // "photos/"
  const PictureFolder pictures = open_picture_folder(folder);
  std::optional<InitialWeights> weights;
  if (!worker.job.checkpoint.empty()) weights = published_weights(worker.job.checkpoint);
  const ProposedConfig proposed = propose_config(pictures, weights);
  const std::string text = readable_json(proposed.config);
  // Whatever a run would refuse before its first step is an error here.
  const settings::RunConfig config = settings::parse_run_config({"the proposed config", text, {}});
  settings::DataOptions options = config.data;
  options.decode = settings::Decode::kStream;
  for (const std::string& note : data::DatasetReader(options).stream().notes) {
    spdlog::warn("{}", note);
  }
  for (const std::string& reason : proposed.reasons) spdlog::info("{}", reason);
  print_text(text);
}

}  // namespace mnist_train::app
