#include "app/commands.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <dlfcn.h>
#include <spdlog/fmt/ranges.h>
#include <spdlog/spdlog.h>
#include <torch/version.h>

#include <algorithm>
#include <span>

#include "accelerator/device.h"
#include "base/parallel.h"
#include "base/print.h"
#include "checkpoint/checkpoint.h"
#include "eval/evaluator.h"
#include "interchange/exports.h"
#include "loader/batch_source.h"
#include "report/records.h"

namespace mnist_train::app {

namespace {

std::int64_t parameters_of(const torch::nn::Module& module, bool with_children) {
  std::int64_t count = 0;
  for (const at::Tensor& tensor : module.parameters(with_children)) count += tensor.numel();
  return count;
}

/// Returns "Conv2d" for "torch::nn::Conv2dImpl" and for "(anonymous namespace)::Conv2d".
std::string class_of(const torch::nn::Module& module) {
  const std::string& name = module.name();
  const std::string base_name = name.substr(name.rfind(':') + 1);
  return base_name.ends_with("Impl") ? base_name.substr(0, base_name.size() - 4) : base_name;
}

/// Returns the names of the classes that the job's checkpoint was trained on, in label order, from
/// the checkpoint, the run's dataset.json or the named data set: an empty list if they have no
/// names or, after a warning, if the names are unknown.
std::vector<std::string> class_names_of(const Worker& worker) {
  const settings::DataOptions& options = worker.config.data;
  const std::filesystem::path& record = worker.job.dataset_record;
  if (!record.empty()) return data::read_dataset_record(record, options.format).class_names;
  if (!options.format) return settings::named_dataset(*options.dataset).class_names;
  if (options.has_picture_files()) {
    spdlog::warn(
        "the class names are unknown, so classes are numbered: {} is neither a checkpoint nor next "
        "to the dataset.json of its run",
        worker.job.checkpoint.string());
  }
  return {};
}

/// Creates the config's model for these images with the weights of the job's checkpoint or weights
/// file. Throws Error(kCheckpoint) if they do not fit the model.
std::shared_ptr<models::Model> make_model_with_weights(Worker& worker,
                                                       const data::ImageSet& images) {
  worker.enter(launch::Phase::kLoadingWeights);
  auto model = make_model(worker.config, images);
  checkpoint::load_weights(*model, {worker.job.checkpoint, {}}, model_input(worker.config, images),
                           /*starts_run=*/false, worker.is_rank0());
  return model;
}

/// Returns a source of batches of the set. `like`: a set with the shape of the training images.
std::unique_ptr<loader::BatchSource> batches_of(Worker& worker, data::ImageSet set,
                                                const data::ImageSet& like) {
  return loader::make_batch_source(
      std::move(set), settings::effective_normalize(worker.config.data, like.channels),
      worker.device(), at::kFloat, make_augmenter(worker, like, /*mixes_across_ranks=*/false));
}

/// Returns how pictures are converted to the network's input. Classes without names are numbered.
interchange::Pictures pictures_of(const Worker& worker, const data::ImageSet& images) {
  const settings::DataOptions& options = worker.config.data;
  std::vector<std::string> names = class_names_of(worker);
  for (std::size_t i = names.size(); i < static_cast<std::size_t>(images.classes); ++i) {
    names.push_back(std::to_string(i));
  }
  return {{images.height, images.width},
          options.fit,
          options.background,
          settings::list_for_images(options.augment, images.channels, options.background),
          settings::effective_normalize(options, images.channels),
          std::move(names)};
}

/// Exports the config's network, with the checkpoint's weights (ONNX) or without them (Python).
void export_network(Worker& worker) {
  const settings::RunConfig& config = worker.config;
  const data::ImageSet images = image_shape(worker);
  const auto model = make_model_with_weights(worker, images);
  const network::Network net = network::make_network(config.model, model_input(config, images));
  const interchange::Pictures pictures = pictures_of(worker, images);
  worker.enter(launch::Phase::kSaving);
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

/// Decodes the files into a set whose labels are all 0. `like`: a set with the shape of the
/// training images. `problems[i]` receives the reason if file i cannot be read as an image.
data::ImageSet decode(std::span<const std::string> files, const data::ImageGeometry& geometry,
                      const data::ImageSet& like, std::vector<std::string>& problems) {
  using Samples = std::pair<std::vector<std::uint8_t>, std::vector<std::uint16_t>>;
  const auto bytes = static_cast<std::size_t>(geometry.bytes());
  auto owner = std::make_shared<Samples>(files.size() * bytes, files.size());
  parallel_for(0, std::ssize(files), 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
      try {
        const MappedFile file = MappedFile::open(files[i], ExitCode::kData);
        data::decode_picture(file.bytes(), geometry, files[i], &owner->first[i * bytes]);
      } catch (const Error& error) {
        problems[i] = error.what();
      }
    }
  });
  data::ImageSet set = like;
  set.count = std::ssize(files);
  set.images = owner->first;
  set.labels = owner->second;
  set.owner = std::move(owner);
  return set;
}

/// Prints a line for each image of the range. `files`: their names; images named "" are skipped.
void print_predictions(const Worker& worker, models::Model& model, loader::BatchSource& source,
                       const data::Range& range, const std::vector<std::string>& files,
                       const std::vector<std::string>& class_names) {
  const auto batch = source.gather({range, loader::Order::kStored});
  const at::Tensor scores =
      model.forward(batch.images).to(at::kCPU, at::kDouble).softmax(1).to(at::kFloat).contiguous();
  std::string text;
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (files[i].empty()) continue;
    const at::Tensor row = scores[static_cast<std::int64_t>(i)];
    const auto* begin = row.const_data_ptr<float>();
    const std::vector<float> values(begin, begin + row.numel());
    text += worker.job.as_json ? json_text(report::to_json(files[i], values, class_names)) + "\n"
                               : report::to_text(files[i], values, class_names);
  }
  print_text(text);
}

/// Returns the end of an error about a path that is a folder: which files to pass instead.
std::string advice_on_folder(const std::filesystem::path& path) {
  if (!is_folder(path)) return "";
  std::string pattern = "*.png";
  for (const auto& file : paths_in(path)) {
    const std::string name = file.filename().string();
    if (imaging::has_picture_extension(name)) pattern = "*" + file.extension().string();
  }
  return "; use its pictures, such as " + (path / pattern).string();
}

/// Warns about the inverted images, if any. `count`: the total number of images; `mean`: the mean
/// brightness of the training images.
void warn_of_inverted(const std::vector<std::string>& inverted, std::int64_t count, double mean) {
  if (inverted.empty()) return;
  const bool dark = mean < 0.5;
  spdlog::warn(
      "{} of {} look{} inverted ({}): {} on a {} background, but the model was trained on "
      "images with a {} background; invert them first, for example with ImageMagick: convert {} "
      "-background white -alpha remove -negate inverted.png",
      inverted.size(), counted(count, "image"), inverted.size() == 1 ? "s" : "",
      first_names(inverted, /*max_names=*/5), dark ? "dark" : "light", dark ? "light" : "dark",
      dark ? "dark" : "light",
      shell_word((inverted.front().starts_with("-") ? "./" : "") + inverted.front()));
}

void predict_test_set(Worker& worker, models::Model& model, const data::ImageSet& like,
                      const std::vector<std::string>& class_names) {
  settings::DataOptions options = worker.config.data;
  options.decode = settings::Decode::kStream;
  data::DatasetReader reader(options, data::Splits::kTest, worker.job.dataset_record);
  std::int64_t batch = 0;
  std::vector<data::SampleFailure> failed;
  if (options.on_bad_sample == settings::OnBadSample::kSkip) {
    failed = reader.check(0, 1, at::get_num_threads(),
                          [&] { worker.enter(launch::Phase::kEvaluation, ++batch); });
  }
  const data::ImageSet test = reader.stream(failed).test;
  const auto source = batches_of(worker, test, like);
  const std::int64_t batch_size = worker.config.train.test_batch_size;
  for (std::int64_t begin = 0; begin < test.count; begin += batch_size) {
    worker.enter(launch::Phase::kEvaluation, ++batch);
    const data::Range range{begin, std::min(begin + batch_size, test.count)};
    std::vector<std::string> files;
    for (std::int64_t sample = range.begin; sample < range.end; ++sample) {
      files.push_back(test.encoded->samples.sample_name(sample));
    }
    print_predictions(worker, model, *source, range, files, class_names);
  }
}

[[noreturn]] void fail(const std::string& message) { throw Error(ExitCode::kRunFailed, message); }

/// Returns the median time of `work`. Collective if `work` is.
double seconds_of(Worker& worker, int repetitions, const std::function<void()>& work) {
  constexpr int kWarmUps = 2;
  std::vector<double> seconds;
  for (int i = -kWarmUps; i < repetitions; ++i) {
    launch::update(worker.status(), launch::Phase::kTraining, 1, i + kWarmUps);
    const double begin_s = monotonic_seconds();
    work();
    accelerator::synchronize(worker.device());
    if (i >= 0) seconds.push_back(monotonic_seconds() - begin_s);
  }
  std::ranges::sort(seconds);
  return seconds[seconds.size() / 2];
}

/// Measures latency and bandwidth of all-reduces over Gloo or NCCL. Collective.
OrderedJson measure_all_reduce(Worker& worker) {
  constexpr std::int64_t kElements = 4 << 20;  // fp32: 16 MiB
  const auto measure = [&](std::int64_t elements, int repetitions) {
    at::Tensor sum = at::ones({elements}, at::TensorOptions(at::kFloat).device(worker.device()));
    worker.communicator.all_reduce_sum(sum);
    const auto first = accelerator::to_host(sum.narrow(0, 0, 1)).item<float>();
    if (first != static_cast<float>(worker.identity.world_size)) {
      fail("all-reduce computed a wrong sum");
    }
    sum.zero_();
    return seconds_of(worker, repetitions, [&] { worker.communicator.all_reduce_sum(sum); });
  };
  const double latency_s = measure(1, 100);
  const double seconds = measure(kElements, 9);
  const auto bytes = static_cast<double>(kElements) * sizeof(float);
  return {{"name", worker.placement.backend},
          {"latency_s", latency_s},
          {"bytes_per_second", bytes / seconds}};
}

/// Throws if this device computes wrong matrix products or LibTorch has no kernels for it.
void require_kernels(const Worker& worker) {
  constexpr std::int64_t kSide = 64;
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor ones =
        at::ones({kSide, kSide}, at::TensorOptions(type).device(worker.device()));
    if (accelerator::to_host(at::matmul(ones, ones).sum()).item<float>() != kSide * kSide * kSide) {
      fail(worker.placement.device_name() + " computes wrong results");
    }
  }
}

std::string torch_folder() {
  Dl_info info{};
  const auto address = reinterpret_cast<const void*>(&at::get_cpu_capability);
  if (::dladdr(address, &info) == 0 || info.dli_fname == nullptr) return "";
  return std::filesystem::weakly_canonical(info.dli_fname).parent_path().parent_path().string();
}

OrderedJson cuda_facts() {
  const accelerator::CudaModule& module = accelerator::cuda_module();
  const int runtime = module.runtime_version();
  return {{"runtime", fmt::format("{}.{}", runtime / 1000, runtime % 1000 / 10)},
          {"nccl", module.nccl_version()}};
}

}  // namespace

void run_evaluation(Worker& worker) {
  const settings::RunConfig& config = worker.config;
  std::int64_t batch = 0;
  const auto update_status = [&] { worker.enter(launch::Phase::kEvaluation, batch++); };
  const data::Dataset dataset = open_dataset(worker, data::Splits::kTest);
  const auto model = make_model_with_weights(worker, dataset.test);
  model->to(worker.device());
  update_status();
  const auto images = batches_of(worker, dataset.test, dataset.test);
  const eval::Evaluation evaluation =
      eval::evaluate(*model, *images, config.train.test_batch_size, worker.communicator,
                     worker.device(), update_status, {.shards = config.train.shards.value_or(0)});
  if (!worker.is_rank0()) return;
  if (!worker.job.as_json) return print_text(report::to_text(evaluation));
  print_result(report::to_json(evaluation, dataset.class_names));
}

void run_export(Worker& worker) {
  if (!worker.is_rank0()) return;
  worker.enter(launch::Phase::kLoadingWeights);
  const std::string& format = worker.job.export_format;
  if (format == "onnx" || format == "python") return export_network(worker);
  const auto weights = checkpoint::read_weights(worker.job.checkpoint);
  worker.enter(launch::Phase::kSaving);
  checkpoint::write_weights(worker.job.export_path, weights, format == "safetensors");
}

void run_description(Worker& worker) {
  if (!worker.is_rank0()) return;
  const data::ImageSet images = image_shape(worker);
  const network::ImageShape input = model_input(worker.config, images);
  const auto model = make_model(worker.config, images);
  const std::vector<std::string> names = model->named_parameters().keys();
  const auto all_settings = settings::parameter_settings(worker.config.train.parameters, names,
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
    report::ModuleRow& row = table.rows.emplace_back();
    row.name = item.key();
    row.layer = is_root ? "(outside its modules)" : class_of(module);
    row.parameters = parameters;
    row.is_container = parameters == 0 && !module.children().empty();
    for (const std::string& name : module.named_parameters(/*recurse=*/false).keys()) {
      const auto found = std::ranges::find(names, is_root ? name : item.key() + "." + name);
      const auto& resolved = all_settings[static_cast<std::size_t>(found - names.begin())];
      row.tensors.push_back(report::parameter_row(name, resolved, worker.config.train));
    }
  }
  print_text(worker.job.as_json ? json_text(report::to_json(table), 2) + "\n"
                                : report::to_text(table));
}

void run_predictions(Worker& worker) {
  if (!worker.is_rank0()) return;
  const at::NoGradGuard no_grad;
  const data::ImageSet like = image_shape(worker);
  const auto model = make_model_with_weights(worker, like);
  model->to(worker.device());
  model->eval();
  const std::vector<std::string> class_names = class_names_of(worker);
  if (worker.job.predicts_test) return predict_test_set(worker, *model, like, class_names);
  const std::span<const std::string> files = worker.job.images;
  const auto batch_size = static_cast<std::size_t>(worker.config.train.test_batch_size);
  const auto trained = settings::trained_brightness(worker.config.data);
  data::ImageGeometry geometry{like.channels, like.height, like.width, true, true};
  data::set_decode_options(geometry, worker.config.data);
  std::vector<std::string> inverted;
  std::vector<std::string> unusable;  // one message per file that cannot be read
  for (std::size_t begin = 0; begin < files.size(); begin += batch_size) {
    worker.enter(launch::Phase::kEvaluation, static_cast<std::int64_t>(begin / batch_size + 1));
    const auto part = files.subspan(begin, std::min(batch_size, files.size() - begin));
    std::vector<std::string> problems(part.size());
    const data::ImageSet images = decode(part, geometry, like, problems);
    std::vector<std::string> shown_files(part.begin(), part.end());
    for (std::size_t i = 0; i < part.size(); ++i) {
      const auto bytes = static_cast<std::size_t>(geometry.bytes());
      const auto planes = images.images.subspan(i * bytes, bytes);
      if (!problems[i].empty()) {
        unusable.push_back(problems[i] + advice_on_folder(part[i]));
        shown_files[i].clear();
      } else if (trained &&
                 imaging::looks_inverted(
                     imaging::border_brightness(planes, like.height, like.width), *trained)) {
        inverted.push_back(part[i]);
      }
    }
    const auto source = batches_of(worker, images, like);
    print_predictions(worker, *model, *source, {0, source->count()}, shown_files, class_names);
  }
  warn_of_inverted(inverted, std::ssize(files) - std::ssize(unusable), trained.value_or(0));
  if (unusable.empty()) return;
  data::fail_data("cannot read {} of {}:\n  {}", unusable.size(),
                  counted(std::ssize(files), "image file"), fmt::join(unusable, "\n  "));
}

void run_diagnosis(Worker& worker) {
  launch::update(worker.status(), launch::Phase::kTraining, 1, 0);
  require_kernels(worker);
  OrderedJson result = {{"torch", TORCH_VERSION},
                        {"torch_folder", torch_folder()},
                        {"cpu_capability", at::get_cpu_capability()}};
  if (worker.placement.cuda) result["cuda"] = cuda_facts();
  if (!worker.communicator.alone()) result["all_reduce"] = measure_all_reduce(worker);
  if (worker.is_rank0()) print_result(result);
}

}  // namespace mnist_train::app
