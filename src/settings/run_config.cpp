#include "settings/run_config.h"

#include <algorithm>
#include <regex>
#include <utility>

#include "base/print.h"
#include "settings/schemas.h"

namespace mnist_train::settings {

namespace {

Schema<CheckpointOptions> checkpoint_schema() {
  using Options = CheckpointOptions;
  Schema<Options> schema;
  schema.add("every_epochs", &Options::every_epochs, integer(0, kMaxCount),
             "Epochs between two checkpoints; 0: none after epochs.", {"save_every", "interval"});
  schema.add("every_steps", &Options::every_steps, optional_of(integer(1, kMaxSteps)),
             "Steps between two checkpoints.", {"save_steps"});
  schema.add(
      "keep", &Options::keep, integer(1, kMaxCount),
      "How many of the newest checkpoints are kept. Where the newest is damaged, a run resumes "
      "from the one before it, if there is one.",
      {"keep_last", "max_to_keep", "save_total_limit"});
  schema.add("keep_best", &Options::keep_best, boolean(), "Also keeps the best checkpoint.",
             {"save_best"});
  return schema;
}

void check_launch(LaunchOptions& options, const JsonCursor& cursor) {
  const auto size = static_cast<std::int64_t>(options.devices.size());
  if (size > kMaxProcessesPerNode) {
    cursor.add_error_at("devices", "lists more than " + std::to_string(kMaxProcessesPerNode));
  }
  if (size > 0 && options.processes_per_node && *options.processes_per_node != size) {
    cursor.add_error_at("processes_per_node",
                        "is " + std::to_string(*options.processes_per_node) +
                            ", but devices lists " + std::to_string(size) +
                            " (one process each); leave it out or set it to \"auto\"");
  }
}

Schema<LaunchOptions> launch_schema() {
  using Options = LaunchOptions;
  Schema<Options> schema;
  schema.add(
      "processes_per_node", &Options::processes_per_node,
      optional_of(integer(1, kMaxProcessesPerNode), "auto"),
      "Processes on this machine; auto: one per GPU, or one per core up to 2, but one on two "
      "cores for a large network of linear layers alone.",
      {"nproc_per_node", "nproc", "num_processes", "world_size", "num_gpus", "gpus"});
  schema.add(
      "max_restarts", &Options::max_restarts, integer(0, 1000),
      "How often a run that lost a process is restarted, from memory or its newest checkpoint.");
  schema.add("rendezvous_timeout_s", &Options::rendezvous_timeout_s, number({0, kMaxSeconds, true}),
             "Seconds that processes wait for each other at the start.", {"rdzv_timeout"});
  schema.add("hang_timeout_s", &Options::hang_timeout_s, number({0, kMaxSeconds, true}),
             "Seconds without progress after which a run is ended.", {"timeout", "timeout_s"});
  schema.add("threads_per_process", &Options::threads_per_process,
             optional_of(integer(1, kMaxProcessesPerNode), "auto"),
             "Threads that each process computes with; auto: 1 with `deterministic`, else "
             "`OMP_NUM_THREADS`, else the cores divided by the processes.",
             {"num_threads", "omp_num_threads", "threads"});
  const auto device =
      strict_json::text("^(cpu|cuda|cuda:(0|[1-9][0-9]{0,2}))$", "\"cpu\", \"cuda\" or \"cuda:N\"");
  schema.add("devices", &Options::devices, list_of(device),
             "One process on each of these devices, such as [\"cuda:0\", \"cuda:0\", \"cpu\"]; "
             "empty: chosen by rank.");
  schema.check(check_launch);
  return schema;
}

Schema<ReportOptions> report_schema() {
  Schema<PredictionsOptions> predictions;
  predictions.add("batches", &PredictionsOptions::batches, integer(0, kMaxCount),
                  "Batches of the test set that are shown; 0: none.");
  predictions.add("images_per_batch", &PredictionsOptions::images_per_batch, integer(1, kMaxCount),
                  "Images of each batch that are shown.");
  Schema<ReportOptions> schema;
  schema.add("html", &ReportOptions::html, boolean(),
             "Writes report.html, one self-contained page.");
  schema.add("tensorboard", &ReportOptions::tensorboard, boolean(),
             "Writes event files for TensorBoard.");
  schema.add("histograms", &ReportOptions::histograms, boolean(),
             "Adds histograms of weights and gradients to them, every epoch.");
  schema.add("predictions", &ReportOptions::predictions, group(std::move(predictions)),
             "Predictions of the last evaluation, image by image.");
  schema.forbid("histograms", all_of({equal("histograms", true), equal("tensorboard", false)}),
                "are written into TensorBoard's file, but tensorboard is false");
  return schema;
}

/// Returns the key by which editors find the schema; it says nothing about the run.
strict_json::Field<RunConfig> schema_link() {
  const auto read = [](RunConfig&, const JsonCursor& cursor) {
    if (!strict_json::text_of(cursor.node())) cursor.add_mismatch("a string");
  };
  return {"$schema",
          "Where an editor finds this schema; ignored by the program.",
          {{"type", "string"}},
          read,
          [](const RunConfig&) -> std::optional<Json> { return std::nullopt; }};
}

/// Returns the type of names of files in the run folder that are not names of the program's own.
Type<std::string> free_name() {
  std::string names;
  for (const char* name :
       {run_files::kConfig, run_files::kMetrics, run_files::kSummary, run_files::kPredictions,
        run_files::kMistakes, run_files::kLineage, run_files::kPage, run_files::kCheckpoints,
        run_files::kLogs, run_files::kLock, run_files::kEvents}) {
    names += (names.empty() ? "" : "|") + std::string(name);
  }
  // Behind the last one, kEvents, comes a time.
  const std::string taken = "^(" + replaced(names, ".", "\\.") + "[^/]*)(/|$)";
  Type<std::string> type = strict_json::file_name();
  type.fragment["not"] = {{"pattern", taken}};
  type.read = [read = type.read, taken](const JsonCursor& cursor) -> std::optional<std::string> {
    std::optional<std::string> name = read(cursor);
    if (!name || !std::regex_search(*name, std::regex(taken))) return name;
    cursor.add_error("is the name of another file of the run folder");
    return std::nullopt;
  };
  return type;
}

/// Returns the type of the name of the file of weights, whose extension says what is written.
Type<std::string> weights_name() {
  constexpr const char* kPattern = R"(\.(pt|pth|safetensors)$)";
  Type<std::string> type = free_name();
  type.fragment["allOf"] = Json::array({{{"pattern", kPattern}}});
  type.read = [read = type.read](const JsonCursor& cursor) -> std::optional<std::string> {
    std::optional<std::string> name = read(cursor);
    if (!name || std::regex_search(*name, std::regex(kPattern))) return name;
    cursor.add_error("expected a name that ends with .pt, .pth or .safetensors");
    return std::nullopt;
  };
  return type;
}

/// Refuses two names of files where one is the other, or a folder on its way.
void check_files(RunConfig& config, const JsonCursor& cursor) {
  const std::filesystem::path model = config.model_file;
  const std::filesystem::path accuracies = config.accuracies_file;
  const auto [model_rest, accuracies_rest] =
      std::mismatch(model.begin(), model.end(), accuracies.begin(), accuracies.end());
  if (model_rest != model.end() && accuracies_rest != accuracies.end()) return;
  cursor.add_error_at(cursor.has("accuracies_file") ? "accuracies_file" : "model_file",
                      "model_file and accuracies_file are the same place");
}

/// The condition that launch.devices lists a device that meets `condition`.
Json lists_device(const Json& condition) { return holds("launch", lists("devices", condition)); }

void add_device_rules(Schema<RunConfig>& schema) {
  const Json cpu = {{"const", "cpu"}};
  const Json gpu = none_of(cpu);
  schema.forbid("device",
                any_of({all_of({equal("device", "cpu"), lists_device(gpu)}),
                        all_of({equal("device", "cuda"), lists_device(cpu)})}),
                "/launch/devices lists other devices than this one");
  for (const auto& [key, value] : {std::pair{"backend", "nccl"}, {"cuda_graphs", "on"}}) {
    const std::string needs = '"' + std::string(value) + "\" needs every process on a GPU, but ";
    schema.forbid(key, all_of({equal(key, value), lists_device(cpu)}),
                  needs + "/launch/devices lists \"cpu\"");
    schema.forbid(key, all_of({equal(key, value), equal("device", "cpu")}),
                  needs + "device is \"cpu\"");
  }
  const Json in_shared_memory = holds("gradient_averaging", equal("strategy", "shared_memory"));
  const std::string is_for_cpus = "strategy \"shared_memory\" is for processes on CPUs, but ";
  schema.forbid("gradient_averaging", all_of({in_shared_memory, lists_device(gpu)}),
                is_for_cpus + "/launch/devices lists GPUs");
  for (const auto& [key, value] : {std::pair{"device", "cuda"}, {"backend", "nccl"}}) {
    schema.forbid("gradient_averaging", all_of({in_shared_memory, equal(key, value)}),
                  is_for_cpus + key + " is \"" + value + '"');
  }
}

/// Refuses what cannot be in a captured step. The rest depends on the number of processes.
void add_graph_rules(Schema<RunConfig>& schema) {
  const Json on = equal("cuda_graphs", "on");
  schema.forbid("cuda_graphs",
                all_of({on, given("gradient_accumulation_steps"),
                        none_of(equal("gradient_accumulation_steps", 1))}),
                "\"on\" does not work with gradient_accumulation_steps above 1");
  schema.forbid("cuda_graphs", all_of({on, holds("data", equal("split", "throughput"))}),
                "\"on\" does not work with /data/split \"throughput\"");
}

/// Refuses what does not work when the split of a batch follows measured speed.
void add_split_rules(Schema<RunConfig>& schema) {
  const auto forbid = [&schema](const Json& condition, const std::string& reason) {
    schema.forbid("data/split", all_of({holds("data", equal("split", "throughput")), condition}),
                  "\"throughput\" " + reason);
  };
  forbid(any_of({equal("deterministic", true), is_sharded()}),
         "follows measured speed, which differs between runs: conflicts with deterministic");
  forbid(holds("gradient_averaging", equal("strategy", "bucketed")),
         "measures the work of each process, but gradient_averaging.strategy \"bucketed\" mixes it "
         "with waiting for others; use \"flat\" or \"auto\"");
  forbid(equal("sync_batch_norm", true),
         "measures the work of each process, but sync_batch_norm mixes it with waiting for others");
  const Json global_mixup = all_of({equal("name", "mixup"), equal("scope", "global")});
  forbid(holds("data", lists("augment", global_mixup)),
         "would let measured speed decide which samples a mixup with scope \"global\" pairs");
}

Schema<RunConfig> make_schema() {
  Schema<RunConfig> schema;
  schema.add(schema_link());
  schema.include(&RunConfig::train, train_schema());
  schema.add("model", &RunConfig::model, group(model_schema()), "The network that is trained.");
  schema.add("data", &RunConfig::data, group(data_schema()),
             "What it is trained on: a data set by name, or a format with train and test.");
  schema.add("checkpoint", &RunConfig::checkpoint, group(checkpoint_schema()),
             "The files that a run is resumed from.");
  schema.add("launch", &RunConfig::launch, group(launch_schema()),
             "How many processes there are, and what happens when one is lost.", {"distributed"});
  schema.add("report", &RunConfig::report, group(report_schema()),
             "What a run shows about itself.");
  schema.add("output", &RunConfig::output, optional_of(path()),
             "The run folder; null: runs/<config name>/<start time>.",
             {"output_dir", "out", "out_dir", "run_dir", "save_dir"});
  schema.add("model_file", &RunConfig::model_file, weights_name(),
             "Name of the final weights in the run folder: .pt, .pth or .safetensors.",
             {"save_model", "model_path"});
  schema.add("accuracies_file", &RunConfig::accuracies_file, free_name(),
             "Name of the list of test accuracies in the run folder.", {"accuracy_file"});
  schema.check(check_files);
  add_device_rules(schema);
  add_graph_rules(schema);
  add_split_rules(schema);
  add_shard_rules(schema);
  return schema;
}

/// Returns every key of a config file.
const Schema<RunConfig>& run_config_schema() {
  static const Schema<RunConfig> kSchema = make_schema();
  return kSchema;
}

}  // namespace

void check_layer(const strict_json::Node& layer, strict_json::Problems& problems) {
  strict_json::ReadContext context{problems, run_config_schema().keys(), /*is_layer=*/true};
  (void)run_config_schema().read(JsonCursor(layer, "", context));
}

RunConfig read_run_config(const strict_json::Node& root, strict_json::Problems problems) {
  strict_json::ReadContext context{problems, run_config_schema().keys()};
  std::optional<RunConfig> config = run_config_schema().read(JsonCursor(root, "", context));
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
  Json document = run_config_schema().write(config);
  if (!with_output) document.erase("output");
  return document.dump(2) + "\n";
}

std::string write_run_config_schema() {
  Json document = {
      {"$schema", "https://json-schema.org/draft/2020-12/schema"},
      {"title", "mnist-train config"},
      {"description", "Hyperparameters are at the top level, everything else is in groups."}};
  document.update(run_config_schema().describe());
  document["$defs"][kLayersDefinition] = layer_list_schema();
  return document.dump(2) + "\n";
}

}  // namespace mnist_train::settings
