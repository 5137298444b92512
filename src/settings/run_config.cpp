#include "settings/run_config.h"

#include <algorithm>
#include <array>
#include <utility>

#include "settings/limits.h"
#include "settings/run_file_names.h"
#include "strict_json/schema.h"
#include "strict_json/schema_rule.h"

namespace mnist_train::settings {

namespace {

using std::filesystem::path;
using strict_json::boolean;
using strict_json::integer;
using strict_json::JsonCursor;
using strict_json::optional_of;
using strict_json::Schema;

Schema<CheckpointOptions> checkpoint_schema() {
  using Options = CheckpointOptions;
  Schema<Options> schema;
  schema.add("every_epochs", &Options::every_epochs, integer(0, kMaxCount),
             "Epochs between two checkpoints; 0: none by epoch.", {"save_every", "interval"});
  schema.add("every_steps", &Options::every_steps, optional_of(integer(1, kMaxSteps)),
             "Steps between two checkpoints.", {"save_steps"});
  schema.add("keep", &Options::keep, integer(1, kMaxCount),
             "How many of the newest are kept. Where the newest is damaged, a run resumes from the "
             "one before it, if there is one.",
             {"keep_last", "max_to_keep", "save_total_limit"});
  schema.add("keep_best", &Options::keep_best, boolean(), "Keeps the best one, too.",
             {"save_best"});
  return schema;
}

Schema<ReportOptions> report_schema() {
  Schema<PredictionsOptions> predictions;
  predictions.add("batches", &PredictionsOptions::batches, integer(0, kMaxCount),
                  "Batches of the test set that are shown; 0: none.");
  predictions.add("images_per_batch", &PredictionsOptions::images_per_batch, integer(1, kMaxCount),
                  "Images shown of each.");
  Schema<ReportOptions> schema;
  schema.add("html", &ReportOptions::html, boolean(),
             "Writes report.html, one self-contained page.");
  schema.add("tensorboard", &ReportOptions::tensorboard, boolean(),
             "Writes event files for TensorBoard.");
  schema.add("histograms", &ReportOptions::histograms, boolean(),
             "Adds histograms of weights and gradients to them, every epoch.");
  schema.add("predictions", &ReportOptions::predictions, strict_json::group(std::move(predictions)),
             "Guesses of the last evaluation, image by image.");
  schema.check([](ReportOptions& options, const JsonCursor& cursor) {
    if (options.histograms && !options.tensorboard) {
      cursor.complain_about("histograms", "go into TensorBoard's file, but tensorboard is false");
    }
  });
  return schema;
}

/// Editors find the schema by this key; it says nothing about the run.
strict_json::Field<RunConfig> schema_link() {
  const auto type =
      strict_json::text([](const std::string&) { return true; }, "a string", {{"type", "string"}});
  return {"$schema",
          "Where an editor finds this schema; ignored by the program.",
          type.fragment,
          [type](RunConfig&, const JsonCursor& cursor) { (void)type.read(cursor); },
          [](const RunConfig&) -> std::optional<strict_json::Json> { return std::nullopt; },
          {},
          {}};
}

constexpr std::array<std::string_view, 9> kTaken{
    run_files::kConfig,      run_files::kMetrics, run_files::kSummary,
    run_files::kPredictions, run_files::kLineage, run_files::kPage,
    run_files::kCheckpoints, run_files::kLogs,    run_files::kLock};

bool is_taken(const path& name) {
  const std::string first = name.begin()->string();
  return std::find(kTaken.begin(), kTaken.end(), first) != kTaken.end() ||
         first.starts_with(run_files::kEvents);
}

strict_json::Type<std::string> free_name() {
  const auto escaped = [](std::string_view name) {
    std::string text;
    for (const char character : name) text += (character == '.' ? "\\." : std::string{character});
    return text;
  };
  std::string pattern = "^(";
  for (const std::string_view name : kTaken) pattern += escaped(name) + '|';
  strict_json::Type<std::string> type = strict_json::file_name();
  type.fragment["not"] = {{"pattern", pattern + escaped(run_files::kEvents) + "[^/]*)(/|$)"}};
  return type;
}

/// The same path, or one is a folder on the other's way.
bool collide(const path& left, const path& right) {
  const auto [left_rest, right_rest] =
      std::mismatch(left.begin(), left.end(), right.begin(), right.end());
  return left_rest == left.end() || right_rest == right.end();
}

void check_files(RunConfig& config, const JsonCursor& cursor) {
  if (is_taken(config.model_file)) {
    cursor.complain_about("model_file", "is the name of another file of the run folder");
  }
  if (is_taken(config.accuracies_file)) {
    cursor.complain_about("accuracies_file", "is the name of another file of the run folder");
  }
  if (collide(config.model_file, config.accuracies_file)) {
    const bool both = cursor.has("model_file") && cursor.has("accuracies_file");
    cursor.complain_about(both || cursor.has("accuracies_file") ? "accuracies_file" : "model_file",
                          "model_file and accuracies_file are the same place");
  }
}

void check_devices(RunConfig& config, const JsonCursor& cursor) {
  const auto& devices = config.launch.devices;
  const bool any_cpu = std::find(devices.begin(), devices.end(), "cpu") != devices.end();
  const bool any_gpu = std::any_of(devices.begin(), devices.end(),
                                   [](const std::string& name) { return name != "cpu"; });
  const DeviceName device = config.train.device;
  if ((device == DeviceName::kCpu && any_gpu) || (device == DeviceName::kCuda && any_cpu)) {
    cursor.complain_about("device", "/launch/devices lists other devices than this one");
  }
  const char* const cpu = any_cpu                      ? "/launch/devices lists \"cpu\""
                          : device == DeviceName::kCpu ? "device is \"cpu\""
                                                       : nullptr;
  const std::string needs_gpus = " needs every process on a GPU, but ";
  if (config.train.backend == BackendName::kNccl && cpu != nullptr) {
    cursor.complain_about("backend", "\"nccl\"" + needs_gpus + cpu);
  }
  if (config.train.cuda_graphs == CudaGraphs::kOn && cpu != nullptr) {
    cursor.complain_about("cuda_graphs", "\"on\"" + needs_gpus + cpu);
  }
  const char* const gpu = any_gpu                       ? "/launch/devices lists GPUs"
                          : device == DeviceName::kCuda ? "device is \"cuda\""
                          : config.train.backend == BackendName::kNccl ? "backend is \"nccl\""
                                                                       : nullptr;
  if (config.train.gradient_averaging.strategy == AveragingStrategy::kSharedMemory &&
      gpu != nullptr) {
    cursor.complain_about(
        "gradient_averaging",
        std::string("strategy \"shared_memory\" is for processes on CPUs, but ") + gpu);
  }
}

/// What cannot go into a recorded step; the rest depends on the number of processes.
void check_recording(RunConfig& config, const JsonCursor& cursor) {
  if (config.train.cuda_graphs != CudaGraphs::kOn) return;
  const auto refuse = [&](const char* obstacle) {
    cursor.complain_about("cuda_graphs", std::string("\"on\" cannot go with ") + obstacle);
  };
  if (config.train.gradient_accumulation_steps > 1) refuse("gradient_accumulation_steps above 1");
  if (config.data.split == Split::kThroughput) refuse("/data/split \"throughput\"");
}

/// What cannot go with shares that follow measured speed.
void check_split(RunConfig& config, const JsonCursor& cursor) {
  if (config.data.split != Split::kThroughput || !cursor.member("data").has("split")) return;
  const JsonCursor split = cursor.member("data").member("split");
  if (config.train.deterministic) {
    split.add_error("\"throughput\" follows what is measured, and deterministic cannot");
  }
  if (config.train.gradient_averaging.strategy == AveragingStrategy::kBucketed) {
    split.add_error(
        "\"throughput\" measures each process's own work, into which gradient_averaging.strategy "
        "\"bucketed\" mixes waiting for others; take \"flat\" or \"auto\"");
  }
  if (config.train.sync_batch_norm) {
    split.add_error(
        "\"throughput\" measures each process's own work, into which sync_batch_norm mixes waiting "
        "for others");
  }
  const auto* mixup = find<MixupOptions>(config.data.augment);
  if (mixup != nullptr && mixup->scope == MixupScope::kGlobal) {
    split.add_error(
        "\"throughput\" would let measured speed decide which samples a mixup with scope "
        "\"global\" pairs");
  }
}

/// check_devices and check_recording, for editors.
void describe_devices(Schema<RunConfig>& schema) {
  using strict_json::equal;
  const auto devices = [](strict_json::Json items) {
    return strict_json::has("launch", strict_json::has("devices", {{"items", std::move(items)}}));
  };
  const strict_json::Json cpu = {{"const", "cpu"}};
  const strict_json::Json gpu = strict_json::none_of(cpu);
  schema.describe_rule(strict_json::when(equal("device", "cpu"), devices(cpu)));
  schema.describe_rule(strict_json::when(equal("device", "cuda"), devices(gpu)));
  const strict_json::Json on_gpus =
      strict_json::all_of({devices(gpu), strict_json::has("device", gpu)});
  schema.describe_rule(strict_json::when(equal("backend", "nccl"), on_gpus));
  schema.describe_rule(strict_json::when(
      equal("cuda_graphs", "on"),
      strict_json::all_of(
          {on_gpus, strict_json::has("gradient_accumulation_steps", {{"maximum", 1}}),
           strict_json::has("data", strict_json::has("split", {{"const", "even"}}))})));
  const strict_json::Json in_shared_memory =
      strict_json::has("gradient_averaging", equal("strategy", "shared_memory"));
  schema.describe_rule(strict_json::when(
      strict_json::all_of({strict_json::given("gradient_averaging"), in_shared_memory}),
      strict_json::all_of({devices(cpu), strict_json::none_of(equal("device", "cuda")),
                           strict_json::none_of(equal("backend", "nccl"))})));
}

Schema<RunConfig> make_schema() {
  Schema<RunConfig> schema;
  schema.add(schema_link());
  schema.include(&RunConfig::train, train_schema());
  schema.add("model", &RunConfig::model, strict_json::group(model_schema()), "What is trained.");
  schema.add("data", &RunConfig::data, strict_json::group(data_schema()),
             "What it is trained on: a dataset by name, or a format with train and test.");
  schema.add("checkpoint", &RunConfig::checkpoint, strict_json::group(checkpoint_schema()),
             "What a run is resumed from.");
  schema.add("launch", &RunConfig::launch, strict_json::group(launch_schema()),
             "Processes and what happens when one is lost.", {"distributed"});
  schema.add("report", &RunConfig::report, strict_json::group(report_schema()),
             "What a run shows of itself.");
  schema.add("output", &RunConfig::output, optional_of(strict_json::path()),
             "The run folder; null: runs/<config name>/<start time>.",
             {"output_dir", "out", "out_dir", "run_dir", "save_dir"});
  schema.add("model_file", &RunConfig::model_file, free_name(),
             "Name of the final weights in the run folder.", {"save_model", "model_path"});
  schema.add("accuracies_file", &RunConfig::accuracies_file, free_name(),
             "Name of the list of test accuracies in the run folder.", {"accuracy_file"});
  schema.check(check_files);
  schema.check(check_devices);
  schema.check(check_recording);
  schema.check(check_split);
  describe_devices(schema);
  return schema;
}

}  // namespace

const strict_json::Schema<RunConfig>& run_config_schema() {
  static const Schema<RunConfig> kSchema = make_schema();
  return kSchema;
}

void check_layer(const strict_json::Node& layer, strict_json::Problems& problems) {
  strict_json::Reading reading{problems, run_config_schema().keys(), /*values_alone=*/true};
  (void)run_config_schema().read(JsonCursor(layer, "", reading));
}

RunConfig read_run_config(const strict_json::Node& root, strict_json::Problems problems) {
  strict_json::Reading reading{problems, run_config_schema().keys()};
  std::optional<RunConfig> config = run_config_schema().read(JsonCursor(root, "", reading));
  strict_json::throw_if_any(problems);
  return std::move(*config);
}

RunConfig parse_run_config(strict_json::Source source) {
  strict_json::Problems problems;
  const auto root = strict_json::parse_document(
      std::make_shared<const strict_json::Source>(std::move(source)), problems);
  strict_json::throw_if_any(problems);
  return read_run_config(*root);
}

std::string write_run_config(const RunConfig& config, bool with_output) {
  strict_json::Json document = run_config_schema().write(config);
  if (!with_output) document.erase("output");
  return document.dump(2) + "\n";
}

std::string write_run_config_schema() {
  strict_json::Json document = {
      {"$schema", "https://json-schema.org/draft/2020-12/schema"},
      {"title", "mnist-train config"},
      {"description", "Hyperparameters stand at the top level, the rest in groups."}};
  document.update(run_config_schema().describe());
  return document.dump(2) + "\n";
}

}  // namespace mnist_train::settings
