#include "settings/run_config.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "base/print.h"
#include "settings/schemas.h"

namespace mnist_train::settings {

namespace {

Schema<CheckpointOptions> checkpoint_schema() {
  Schema<CheckpointOptions> schema;
  ADD_KEY(schema, every_epochs, integer(0, kMaxCount),
          "Epochs between checkpoints; 0: no checkpoints after epochs.");
  ADD_KEY(schema, every_steps, optional_of(integer(1, kMaxSteps)), "Steps between checkpoints.");
  ADD_KEY(
      schema, keep, integer(1, kMaxCount),
      "Number of newest checkpoints that are kept. If the newest is damaged, a run resumes from "
      "the one before it.");
  ADD_KEY(schema, keep_best, boolean(),
          "Also keeps the best checkpoint, which does not count towards `keep`.");
  ADD_KEY(
      schema, best_by, one_of<BestBy>({"accuracy", "balanced_accuracy", "loss"}),
      "Metric that selects the best checkpoint, on the validation set if there is one, else on the "
      "test set; `balanced_accuracy` is the mean of the classes' accuracies.");
  return schema;
}

void check_launch(LaunchOptions& options, const JsonCursor& cursor) {
  const auto size = static_cast<std::int64_t>(options.devices.size());
  if (size > 0 && options.processes_per_node && *options.processes_per_node != size) {
    cursor.add_error_at("processes_per_node",
                        "is " + std::to_string(*options.processes_per_node) +
                            ", but devices lists " + std::to_string(size) +
                            " (one process each); omit it or set it to \"auto\"");
  }
}

Schema<LaunchOptions> launch_schema() {
  Schema<LaunchOptions> schema;
  ADD_KEY(schema, processes_per_node, optional_of(integer(1, kMaxProcessesPerNode), "auto"),
          "Processes on this machine; auto: one per GPU; on CPUs one per core, at most 2, but on "
          "two cores only one if the batch has at most 32 samples (with AVX-512) or the network is "
          "large and consists only of linear layers.");
  ADD_KEY(schema, max_restarts, integer(0, 1000),
          "Maximum number of restarts after lost processes, from memory or the newest checkpoint.");
  ADD_KEY(schema, rendezvous_timeout_s, number({0, kMaxSeconds, true}),
          "Seconds that processes wait for each other at startup.");
  ADD_KEY(schema, hang_timeout_s, number({0, kMaxSeconds, true}),
          "Seconds without progress after which a run is aborted.");
  ADD_KEY(schema, threads_per_process, optional_of(integer(1, kMaxProcessesPerNode), "auto"),
          "Compute threads per process; auto: 1 with `deterministic`, else `OMP_NUM_THREADS`, "
          "else the cores divided by the processes.");
  const auto device =
      text("^(cpu|cuda|cuda:(0|[1-9][0-9]{0,2}))$", "\"cpu\", \"cuda\" or \"cuda:N\"");
  const std::string list = "a list of at most " + std::to_string(kMaxProcessesPerNode) + " devices";
  ADD_KEY(schema, devices, list_of(device, list, 0, kMaxProcessesPerNode),
          "One process per device, such as [\"cuda:0\", \"cuda:0\", \"cpu\"]; empty: chosen by "
          "rank.");
  schema.check(check_launch);
  return schema;
}

Schema<ReportOptions> report_schema() {
  Schema<PredictionsOptions> predictions;
  ADD_KEY(predictions, batches, integer(0, kMaxCount), "Test batches to show; 0: none.");
  ADD_KEY(predictions, images_per_batch, integer(1, kMaxCount), "Images to show per batch.");
  Schema<ReportOptions> schema;
  ADD_KEY(schema, html, boolean(), "Writes report.html, one self-contained page.");
  ADD_KEY(schema, tensorboard, boolean(), "Writes event files for TensorBoard.");
  ADD_KEY(schema, histograms, boolean(),
          "Adds histograms of weights and gradients to the event files every epoch.");
  ADD_KEY(schema, predictions, group(std::move(predictions)),
          "Predictions of the last evaluation for single images.");
  schema.forbid("histograms", {equal("histograms", true), equal("tensorboard", false)},
                "are written to TensorBoard's event files, but tensorboard is false");
  return schema;
}

/// Returns the type of run folder file names with one of these endings, except the program's own.
Type<std::string> free_name(const std::string& endings = "", const std::string& extra = "") {
  std::string names;
  for (const char* name :
       {run_files::kConfig, run_files::kMetrics, run_files::kSummary, run_files::kPredictions,
        run_files::kMistakes, run_files::kLineage, run_files::kDataset, run_files::kPage,
        run_files::kCheckpoints, run_files::kLogs, run_files::kLock, run_files::kEvents}) {
    names += (names.empty() ? "" : "|") + std::string(name);
  }
  // The last one, kEvents, is a prefix.
  return file_name("(?!(" + replaced(names, ".", "\\.") + "[^/]*)(/|$)).+" + endings,
                   " that the run does not write itself" + extra);
}

/// Rejects equal file names, and a file name that is a parent folder of the other.
void check_files(RunConfig& config, const JsonCursor& cursor) {
  const std::filesystem::path model = config.model_file;
  const std::filesystem::path accuracies = config.accuracies_file;
  const auto [model_rest, accuracies_rest] =
      std::mismatch(model.begin(), model.end(), accuracies.begin(), accuracies.end());
  if (model_rest != model.end() && accuracies_rest != accuracies.end()) return;
  if (cursor.is_unclear("model_file") || cursor.is_unclear("accuracies_file")) return;
  cursor.add_error_at(cursor.has("accuracies_file") ? "accuracies_file" : "model_file",
                      "model_file and accuracies_file are equal, or one contains the other");
}

/// The condition that `deterministic` sets a number of shards.
Json is_sharded() { return holds("deterministic", given("shards")); }

/// The condition that launch.devices contains a device that meets `condition`.
Json lists_device(const Json& condition) { return holds("launch", has_item("devices", condition)); }

void add_device_rules(Schema<RunConfig>& schema) {
  const Json cpu = {{"const", "cpu"}};
  const Json gpu = none_of(cpu);
  schema.forbid("device",
                {any_of({all_of({equal("device", "cpu"), lists_device(gpu)}),
                         all_of({equal("device", "cuda"), lists_device(cpu)})})},
                "/launch/devices lists other devices");
  for (const auto& [key, value] : {std::pair{"backend", "nccl"}, {"cuda_graphs", "on"}}) {
    const std::string needs =
        '"' + std::string(value) + "\" requires every process to use a GPU, but ";
    schema.forbid(key, {equal(key, value), lists_device(cpu)},
                  needs + "/launch/devices lists \"cpu\"");
    schema.forbid(key, {equal(key, value), equal("device", "cpu")}, needs + "device is \"cpu\"");
  }
  const Json in_shared_memory = holds("gradient_averaging", equal("strategy", "shared_memory"));
  const std::string is_for_cpus = "strategy \"shared_memory\" is for processes on CPUs, but ";
  schema.forbid("gradient_averaging", {in_shared_memory, lists_device(gpu)},
                is_for_cpus + "/launch/devices lists GPUs");
  for (const auto& [key, value] : {std::pair{"device", "cuda"}, {"backend", "nccl"}}) {
    schema.forbid("gradient_averaging", {in_shared_memory, equal(key, value)},
                  is_for_cpus + key + " is \"" + value + '"');
  }
}

/// Rejects keys that do not work in a captured step. Checks of the process count are elsewhere.
void add_graph_rules(Schema<RunConfig>& schema) {
  const Json on = equal("cuda_graphs", "on");
  schema.forbid(
      "cuda_graphs",
      {on, given("gradient_accumulation_steps"), none_of(equal("gradient_accumulation_steps", 1))},
      "\"on\" does not work with gradient_accumulation_steps above 1");
  schema.forbid("cuda_graphs", {on, holds("data", equal("split", "throughput"))},
                "\"on\" does not work with /data/split \"throughput\"");
}

/// Rejects keys that do not work if the split of a batch depends on measured speed.
void add_split_rules(Schema<RunConfig>& schema) {
  const auto forbid = [&schema](const Json& condition, const std::string& reason) {
    schema.forbid("data/split", {holds("data", equal("split", "throughput")), condition},
                  "\"throughput\" " + reason);
  };
  forbid(any_of({equal("deterministic", true), is_sharded()}),
         "depends on measured speed, which varies between runs: conflicts with deterministic");
  forbid(holds("gradient_averaging", equal("strategy", "bucketed")),
         "measures how long each process computes; with gradient_averaging.strategy \"bucketed\", "
         "this includes waiting for the others; use \"flat\" or \"auto\"");
  forbid(equal("sync_batch_norm", true),
         "measures how long each process computes; with sync_batch_norm, this includes waiting for "
         "the others");
  const Json mixes = any_of({equal("name", "mixup"), equal("name", "cutmix")});
  forbid(
      holds("data", has_item("augment", all_of({mixes, equal("scope", "global")}))),
      "would make the pairs of a mixup or cutmix with scope \"global\" depend on measured speed");
}

void check_process_count(RunConfig& config, const JsonCursor& cursor) {
  const auto& shards = config.train.shards;
  const auto listed = static_cast<std::int64_t>(config.launch.devices.size());
  const std::int64_t processes = std::max(listed, config.launch.processes_per_node.value_or(0));
  if (!shards || processes <= *shards) return;
  cursor.add_error_at(listed > 0 ? "launch/devices" : "launch/processes_per_node",
                      "asks for " + std::to_string(processes) +
                          " processes, but deterministic.shards is only " +
                          std::to_string(*shards));
}

/// Rejects keys that make the results of a run with shards depend on the number of processes.
void add_shard_rules(Schema<RunConfig>& schema) {
  const auto forbid = [&schema](const std::string& key, const Json& condition,
                                const std::string& reason) {
    schema.forbid(key, {is_sharded(), condition}, reason);
  };
  forbid("batch_size_per_process", given("batch_size_per_process"),
         "makes the global batch depend on the number of processes: conflicts with "
         "deterministic.shards; set batch_size");
  forbid("sync_batch_norm", equal("sync_batch_norm", true),
         "conflicts with deterministic.shards, which computes batch statistics per shard");
  forbid("gradient_averaging/strategy", holds("gradient_averaging", equal("strategy", "bucketed")),
         "\"bucketed\" sums gradients in its own order: conflicts with deterministic.shards; use "
         "\"auto\"");
  forbid("gradient_averaging/compression",
         holds("gradient_averaging",
               all_of({given("compression"), none_of(equal("compression", "none"))})),
         "rounds the sum of each process: conflicts with deterministic.shards");
  forbid("data/train_per_process", holds("data", given("train_per_process")),
         "gives each process its own samples: conflicts with deterministic.shards");
  schema.check(check_process_count);
}

/// Networks with published weights use those weights' normalisation, unless the config sets one.
void use_published_normalize(RunConfig& config, const JsonCursor& /*cursor*/) {
  if (config.data.normalize || find<NormalizeOptions>(config.data.augment) != nullptr) return;
  std::optional<NormalizeOptions> published = published_normalize(config.model);
  if (!published) return;
  const bool is_gray =
      config.data.channels == 1 || (!config.data.channels && config.data.dataset &&
                                    named_dataset(*config.data.dataset).channels == 1);
  config.data.normalize = is_gray ? gray_of(*published) : *published;
}

Schema<RunConfig> make_schema() {
  Schema<RunConfig> schema;
  const auto read_link = [](RunConfig&, const JsonCursor& cursor) {
    if (!cursor.value().is_string()) cursor.add_mismatch("a string");
  };
  schema.add({{"", "$schema", kSteps, {}, {{"type", "string"}}},
              "Location of this schema for editors; the program ignores it.",
              read_link,
              [](const RunConfig&) { return std::nullopt; }});
  schema.include(&RunConfig::train, train_schema());
  ADD_KEY(schema, model, group(model_schema()), "The network that is trained.");
  ADD_KEY(schema, data, group(data_schema()),
          "The data: a data set by name, or a format with train and test.");
  ADD_KEY(schema, checkpoint, kNever, group(checkpoint_schema()),
          "The files from which a run resumes.");
  ADD_KEY(schema, launch, kNever, group(launch_schema()),
          "The processes, and handling of lost ones.");
  ADD_KEY(schema, report, kNever, group(report_schema()), "The reports of a run.");
  ADD_KEY(schema, output, kNever, optional_of(path()),
          "The run folder; null: runs/<config name>/<start time>.");
  const auto weights_name =
      free_name(R"(\.(pt|pth|safetensors))", " and that ends with .pt, .pth or .safetensors");
  ADD_KEY(schema, model_file, kNever, weights_name,
          "File name of the final weights in the run folder: .pt, .pth or .safetensors.");
  ADD_KEY(schema, accuracies_file, kNever, free_name(),
          "File name of the list of test accuracies in the run folder.");
  schema.check(check_files);
  schema.check(use_published_normalize);
  add_device_rules(schema);
  add_graph_rules(schema);
  add_split_rules(schema);
  add_shard_rules(schema);
  return schema;
}

/// Returns all keys of a config file.
const Schema<RunConfig>& run_config_schema() {
  static const Schema<RunConfig> kSchema = make_schema();
  return kSchema;
}

KeyUse use_of(const std::string& pointer) {
  for (const KnownKey& key : config_keys()) {
    const std::string key_pointer = key.group + "/" + key.name;
    const bool is_inside = pointer == key_pointer || pointer.starts_with(key_pointer + "/");
    if (is_inside && key.use != kSteps) return key.use;  // groups come before their keys
  }
  return kSteps;
}

using Values = std::map<std::string, std::string>;  // by pointer; a list is one value

Values values_of(const nlohmann::json& json, const std::string& pointer = "") {
  if (!json.is_object()) return {{pointer, json.dump()}};
  Values values;
  for (const auto& [key, member] : json.items())
    values.merge(values_of(member, std::string(pointer).append("/").append(key)));
  return values;
}

constexpr const char* kNotSet = "not set";

/// Calls `visit(pointer, before, now)` for each value that differs, as JSON or kNotSet.
template <class Visit>
void for_each_difference(const RunConfig& before, const RunConfig& now, const Visit& visit) {
  using nlohmann::json;
  const Values old_values = values_of(json::parse(write_run_config(before, /*has_output=*/false)));
  const Values new_values = values_of(json::parse(write_run_config(now, /*has_output=*/false)));
  const auto text_in = [](const Values& values, const std::string& pointer) {
    return values.contains(pointer) ? values.at(pointer) : kNotSet;
  };
  const auto is_unset = [](const std::string& value) {
    return value == "null" || value == kNotSet;
  };
  Values all = old_values;
  all.insert(new_values.begin(), new_values.end());
  for (const auto& [pointer, unused] : all) {
    const std::string was = text_in(old_values, pointer);
    const std::string is = text_in(new_values, pointer);
    if (is_unset(was) && is_unset(is)) continue;  // the keys of a group are listed instead
    if (was != is) visit(pointer, was, is);
  }
}

/// Returns a pointer as a key with dots.
std::string key_of(const std::string& pointer) { return replaced(pointer.substr(1), "/", "."); }

/// Returns a value or, if it is a long list, the part from the first entry that differs in `other`.
std::string excerpt(const std::string& value, const std::string& other) {
  constexpr std::size_t kMaxBytes = 120;
  if (!value.starts_with('[') || value.size() <= kMaxBytes) return value;
  const auto same = std::ranges::mismatch(value, other).in1 - value.begin();
  const std::size_t begin = value.find_last_of("[{", static_cast<std::size_t>(same));
  return shortened((begin > 0 ? "…" : "") + value.substr(begin), kMaxBytes);
}

using Layers = std::vector<Node>;

/// Returns the object at a pointer with at most one key, or null.
Node* group_of(Node& layer, const std::string& pointer) {
  return pointer.empty() ? &layer : layer.find(pointer.substr(1));
}

/// Returns the value of a key if the layer sets it to a value other than null.
Node* value_in(Node& layer, const std::string& group, std::string_view key) {
  Node* object = group_of(layer, group);
  Node* value = object == nullptr ? nullptr : object->find(key);
  return value == nullptr || value->value.is_null() ? nullptr : value;
}

void drop(Node& layer, const std::string& group, std::string_view key) {
  if (Node* object = group_of(layer, group)) {
    std::erase_if(object->members, [&](const Node::Member& member) { return member.key == key; });
  }
}

/// Returns the number of layers below the last one that sets the key; 0 if none does.
std::size_t count_below(Layers& layers, const std::string& group, std::string_view key) {
  for (std::size_t i = layers.size(); i > 0; --i) {
    if (value_in(layers[i - 1], group, key) != nullptr) return i - 1;
  }
  return 0;
}

/// Drops a key from each layer that precedes a change of the key's owner to its final value, if the
/// layer sets the owner itself or the key does not belong to the final value. Otherwise, the key is
/// kept: a layer that sets it without the owner may intend it for the final value.
void drop_disowned(Layers& layers, const KnownKey& key) {
  const std::size_t below = count_below(layers, key.group, key.traits.owner.key);
  std::optional<Json> value;  // of the owner, up to layer i
  for (std::size_t i = 0; i < below; ++i) {
    const Json& last = value_in(layers[below], key.group, key.traits.owner.key)->value;
    const Node* owner = value_in(layers[i], key.group, key.traits.owner.key);
    if (owner != nullptr) value = owner->value;
    if (!value || *value == last) continue;
    const bool belongs = (last == key.traits.owner.value) != key.traits.owner.is_any_other;
    const Node* own = value_in(layers[i], key.group, key.name);
    const bool suits_all =  // a fraction as `data.test`, not a file of a certain format
        key.traits.owner.is_any_other && own != nullptr && own->value.is_number();
    if ((owner != nullptr && !suits_all) || !belongs) drop(layers[i], key.group, key.name);
  }
}

}  // namespace

const std::vector<KnownKey>& config_keys() {
  static const std::vector<KnownKey> kKeys = run_config_schema().keys();
  return kKeys;
}

nlohmann::json config_changes(const RunConfig& before, const RunConfig& now) {
  const auto value = [](const std::string& text) {
    return text == kNotSet ? Json() : Json::parse(text);
  };
  nlohmann::json changes = nlohmann::json::object();
  for_each_difference(before, now, [&](const auto& pointer, const auto& was, const auto& is) {
    changes[key_of(pointer)] = nlohmann::json::array({value(was), value(is)});
  });
  return changes;
}

std::vector<std::string> config_differences(const RunConfig& before, const RunConfig& now,
                                            bool of_data) {
  std::vector<std::string> differences;
  for_each_difference(before, now, [&](const auto& pointer, const auto& was, const auto& is) {
    const KeyUse use = use_of(pointer);
    if (use != (of_data ? kSamples : kSteps) && use != kStepsAndSamples) return;
    differences.push_back(key_of(pointer) + " was " + excerpt(was, is) + " and is now " +
                          excerpt(is, was));
  });
  return differences;
}

Node merge_layers(std::vector<Node> layers) {
  for (const KnownKey& key : config_keys()) {
    const std::size_t below = count_below(layers, key.group, key.name);
    for (std::size_t i = 0; i < below; ++i) {
      for (const std::string& other : key.traits.drops) drop(layers[i], key.group, other);
    }
  }
  for (const KnownKey& key : config_keys()) {
    if (!key.traits.owner.key.empty()) drop_disowned(layers, key);
  }
  Node merged = std::move(layers.front());
  for (std::size_t i = 1; i < layers.size(); ++i) {
    merged = merge(std::move(merged), std::move(layers[i]));
  }
  return merged;
}

void check_layer(const Node& layer, Problems& problems) {
  ReadContext context{problems, config_keys(), /*is_layer=*/true};
  (void)run_config_schema().read(JsonCursor(layer, "", context));
}

RunConfig read_run_config(const Node& root, Problems& problems) {
  ReadContext context{problems, config_keys()};
  return run_config_schema().read(JsonCursor(root, "", context)).value_or(RunConfig{});
}

RunConfig parse_run_config(Source source) {
  Problems problems;
  const auto root = parse_document(std::make_shared<const Source>(std::move(source)), problems);
  throw_if_any(problems);
  RunConfig config = read_run_config(*root, problems);
  throw_if_any(problems);
  return config;
}

std::string write_run_config(const RunConfig& config, bool has_output) {
  Json document = run_config_schema().write(config);
  if (!has_output) document.erase("output");
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
