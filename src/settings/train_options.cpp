#include "settings/train_options.h"

#include <algorithm>
#include <utility>

#include "base/print.h"
#include "settings/schemas.h"

namespace mnist_train::settings {

namespace {

/// Returns the traits of keys that belong to one schedule; other schedules reject them.
KeyTraits schedule_only(const std::string& name) {
  return {.owner = {"name", name, /*is_any_other=*/false, "schedule"}};
}

void add_one_cycle(Schema<ScheduleOptions>& schema) {
  const KeyTraits traits = schedule_only("one_cycle");
  const auto positive = number({0, kMaxFloat, true});
  ADD_KEY(schema, max_learning_rate, positive,
          "one_cycle: peak learning rate, used instead of learning_rate.", traits);
  ADD_KEY(schema, pct_start, number({0, 1, true, true}),
          "one_cycle: fraction of the steps during which the rate rises; 0.3 by default.", traits);
  ADD_KEY(schema, div_factor, positive,
          "one_cycle: initial rate = max_learning_rate / div_factor; 25 by default.", traits);
  ADD_KEY(schema, final_div_factor, positive,
          "one_cycle: final rate = initial rate / final_div_factor; 10000 by default.", traits);
  schema.forbid("", {equal("name", "one_cycle"), none_of(given("max_learning_rate"))},
                "schedule one_cycle needs \"max_learning_rate\"");
  schema.forbid(
      "warmup_epochs",
      {equal("name", "one_cycle"), given("warmup_epochs"), none_of(equal("warmup_epochs", 0))},
      "must be 0 with schedule one_cycle; its warm-up is set by pct_start");
}

void add_plateau(Schema<ScheduleOptions>& schema) {
  const KeyTraits traits = schedule_only("plateau");
  ADD_KEY(schema, factor, number({0, 1, false, true}),
          "plateau: factor applied to the rate at each drop; 0.1 by default.", traits);
  ADD_KEY(schema, patience, integer(0, kMaxCount),
          "plateau: epochs without improvement of the loss before the rate drops; 10 by default.",
          traits);
  ADD_KEY(schema, min_learning_rate, number({0, kMaxFloat}),
          "plateau: lower bound of the rate; 0 by default.", traits);
}

Type<ScheduleOptions> schedule() {
  const auto names =
      one_of<ScheduleName>({"constant", "step", "linear", "cosine", "one_cycle", "plateau"});
  Schema<ScheduleOptions> schema;
  ADD_KEY(schema, name, names, "The shape of the learning rate over the run.");
  ADD_KEY(schema, warmup_epochs, number({0, kMaxFloat}),
          "Epochs, possibly fractional, over which the learning rate rises from 0.");
  ADD_KEY(schema, step_epochs, integer(1, kMaxCount),
          "step: epochs between two drops, like StepLR's step_size.");
  ADD_KEY(schema, gamma, number({0, kMaxFloat}), "step: factor applied to the rate at each drop.");
  ADD_KEY(schema, final_factor, number({0, 1}),
          "linear, cosine: final rate = learning_rate × final_factor.");
  add_one_cycle(schema);
  add_plateau(schema);
  return group(std::move(schema));
}

Type<AveragingOptions> averaging() {
  Schema<AveragingOptions> schema;
  ADD_KEY(schema, strategy, kNever,
          one_of<AveragingStrategy>({"auto", "bucketed", "flat", "shared_memory"}),
          "bucketed: in buckets during the backward pass; flat: in one buffer after it; "
          "shared_memory: without messages, for processes on the CPUs of one host, which then "
          "share weights and optimizer state and update one slice each.");
  ADD_KEY(schema, bucket_mb, kNever, number({0, 4096, true}), "MiB of gradients per bucket.");
  ADD_KEY(schema, compression, one_of<Compression>({"none", "fp16", "bf16"}),
          "Type in which gradients are sent; none: fp32.");
  schema.forbid("compression",
                {equal("strategy", "shared_memory"), given("compression"),
                 none_of(equal("compression", "none"))},
                "must be none with strategy shared_memory, which sends no data");
  return group(std::move(schema));
}

/// The object form of `deterministic`.
struct Sharding {
  std::int64_t shards = 1;
};

/// Returns the field of `deterministic`: true, false or {"shards": 4}.
Field<TrainOptions> deterministic_field() {
  const auto flag = boolean();
  const auto object = group(one_key(
      "shards", &Sharding::shards, integer(1, kMaxProcessesPerNode),
      "Splits each global batch into this number of shards. Results are bit-identical for 1 to "
      "`shards` processes.",
      kRequired));
  const auto read = [object, flag](TrainOptions& options, const JsonCursor& cursor) {
    if (cursor.value().is_object()) {
      if (const auto value = object.read(cursor)) options.shards = value->shards;
      options.deterministic = true;
    } else if (const auto value = flag.read(cursor.or_else("{\"shards\": 4}"))) {
      options.deterministic = *value;
    }
  };
  const auto write = [object](const TrainOptions& options) -> std::optional<Json> {
    if (options.shards) return object.write({*options.shards});
    return Json(options.deterministic);
  };
  KnownKey key{"", "deterministic", kSteps};
  key.fragment["anyOf"] = {flag.fragment, object.fragment};
  return {std::move(key),
          "true: bit-identical results for the same binary, hardware and number of processes and "
          "threads. With shards: for 1 to `shards` processes.",
          read, write, object.keys};
}

/// Returns the type of `class_weights`: "balanced", or an object with the weights of some classes.
Type<ClassWeightOptions> class_weights() {
  enum class Computed { kBalanced };
  const auto balanced = converted<ClassWeightOptions>(
      one_of<Computed>({"balanced"}), [](Computed) { return ClassWeightOptions{.balanced = true}; },
      [](const ClassWeightOptions&) { return Computed::kBalanced; });
  const auto weight = number({0, kMaxFloat});
  const Type<ClassWeightOptions> named{
      .read = [weight](const JsonCursor& cursor) -> std::optional<ClassWeightOptions> {
        ClassWeightOptions options;
        for (const auto& member : cursor.node().members) {
          const auto value = weight.read(cursor.member(member));
          if (value) options.weights.emplace(member.key, *value);
        }
        return options;
      },
      .write =
          [weight](const ClassWeightOptions& options) {
            Json::object_t object;
            for (const auto& [name, value] : options.weights) {
              object.emplace_back(name, weight.write(value));
            }
            return object;
          },
      .fragment = {{"type", "object"}, {"additionalProperties", weight.fragment}}};
  return brief_or_full(balanced, named, R"({"cat": 2})",
                       [](const ClassWeightOptions& options) { return options.balanced; });
}

void add_length(Schema<TrainOptions>& schema) {
  ADD_KEY(schema, epochs, kNever, integer(1, kMaxCount), "Passes over the training set.");
  ADD_KEY(schema, max_steps, kNever, optional_of(integer(1, kMaxSteps)),
          "Ends the run after this number of optimizer steps, even within an epoch.");
  ADD_KEY(schema, batch_size, optional_of(integer(1, kMaxCount)),
          "Samples per global batch, over all processes; null if batch_size_per_process is set.");
  ADD_KEY(schema, batch_size_per_process, optional_of(integer(1, kMaxCount)),
          "Samples per batch and process, instead of batch_size, like the batch size in DDP "
          "scripts.");
  ADD_KEY(schema, test_batch_size, kNever, integer(1, kMaxCount),
          "Samples per batch and process during evaluation; at most 128 per thread on CPUs.");
}

/// Returns the type of one or more globs.
Type<std::vector<std::string>> globs() {
  const auto glob = text(".", "a glob of parameter names");
  return one_or_list(glob, list_of(glob, "at least one glob", 1), R"(["conv1.*", "bn1.*"])");
}

Type<std::vector<ParameterOptions>> parameter_list() {
  Schema<ParameterOptions> schema;
  ADD_KEY(schema, match, globs(),
          "Parameter names, as `describe` prints them, or globs, in which `*` also matches dots; "
          "\"head\": the last layer.",
          kRequired);
  ADD_KEY(schema, learning_rate_factor, optional_of(number({0, kMaxFloat, true})),
          "Factor applied to the learning rate.");
  ADD_KEY(schema, weight_decay, optional_of(number({0, kMaxFloat})), "Replaces weight_decay.");
  ADD_KEY(schema, frozen, optional_of(boolean()),
          "true: keeps their values. A batch norm without trained parameters uses its running "
          "statistics and does not update them.");
  schema.forbid(
      "",
      {none_of(any_of({given("learning_rate_factor"), given("weight_decay"), given("frozen")}))},
      "needs \"learning_rate_factor\", \"weight_decay\" or \"frozen\"");
  return list_of(group(std::move(schema)));
}

void add_optimizer(Schema<TrainOptions>& schema) {
  ADD_KEY(schema, optimizer, one_of<OptimizerName>({"sgd", "adam", "adamw"}), "The update rule.");
  ADD_KEY(schema, learning_rate, number({0, kMaxFloat}), "Step size of the optimizer.");
  ADD_KEY(schema, sgd_momentum, number({0, 1, false, true}),
          "Momentum of SGD, as PyTorch defines it.");
  ADD_KEY(schema, nesterov, boolean(), "Uses Nesterov momentum; only for sgd.");
  ADD_KEY(schema, adam_beta1, number({0, 1, false, true}), "First beta of Adam and AdamW.");
  ADD_KEY(schema, adam_beta2, number({0, 1, false, true}), "Second beta of Adam and AdamW.");
  ADD_KEY(schema, adam_epsilon, number({kMinFloat, kMaxFloat}), "Epsilon of Adam and AdamW.");
  ADD_KEY(schema, weight_decay, number({0, kMaxFloat}),
          "L2 penalty, added to the gradients; for adamw the decoupled decay.");
  ADD_KEY(schema, schedule, schedule(), "The learning rate over time.");
  ADD_KEY(schema, parameters, parameter_list(),
          "Overrides the learning rate or weight decay of some parameters, or freezes them; later "
          "entries win key by key.");
}

void add_refinements(Schema<TrainOptions>& schema) {
  ADD_KEY(schema, label_smoothing, number({0, 1}),
          "Fraction of the target spread over all classes.");
  ADD_KEY(schema, class_weights, optional_of(class_weights()),
          "Weights of the classes in the training loss, as in CrossEntropyLoss(weight). balanced: "
          "training samples / (classes × samples of the class); an object: by class name, or "
          "number if the data has no names; other classes have weight 1.");
  ADD_KEY(schema, max_gradient_norm, optional_of(number({0, kMaxFloat, true})),
          "Clips gradients to this norm.");
  ADD_KEY(schema, sync_batch_norm, boolean(),
          "Computes batch statistics over the global batch instead of per process.");
  constexpr std::int64_t kMaxBatches = 1 << 20;  // the samples of a step fit into 64 bits
  ADD_KEY(schema, gradient_accumulation_steps, integer(1, kMaxBatches),
          "Global batches per optimizer step; gradients are averaged over all their samples.");
  ADD_KEY(schema, gradient_averaging, averaging(), "How processes average their gradients.");
}

void add_machine(Schema<TrainOptions>& schema) {
  ADD_KEY(schema, seed, integer(0, std::numeric_limits<std::int64_t>::max()),
          "Seed of the initial weights, the order of samples, augmentation and dropout.");
  schema.add(deterministic_field());
  ADD_KEY(schema, device, one_of<DeviceName>({"auto", "cpu", "cuda"}),
          "Device of the processes; auto: GPUs if there are any.");
  ADD_KEY(schema, backend, kNever, one_of<BackendName>({"auto", "nccl", "gloo"}),
          "Communication library; auto: NCCL if each process has its own GPU, else Gloo.");
  ADD_KEY(schema, precision, one_of<PrecisionName>({"auto", "fp32", "bf16"}),
          "Compute type of layers during training; master weights and optimizer state are "
          "fp32. auto: bf16 if the CPU or GPU supports it natively, but fp32 for TorchScript on "
          "CPUs.");
  ADD_KEY(schema, cuda_graphs, kNever, one_of<CudaGraphs>({"auto", "on", "off"}),
          "Captures the training step on a GPU as a CUDA graph and replays it; auto: on unless "
          "the config prevents it.");
  ADD_KEY(schema, gpu_kernels, one_of<GpuKernels>({"auto", "off"}),
          "Fused GPU kernels in place of several LibTorch operations.");
}

void add_monitoring(Schema<TrainOptions>& schema) {
  ADD_KEY(schema, stop_at_accuracy, kNever, optional_of(number({0, 1})),
          "Ends the run after the first epoch that reaches this accuracy, on the validation set if "
          "there is one, else on the test set.");
  ADD_KEY(
      schema, log_interval, kNever, optional_of(integer(1, kMaxCount), "auto"),
      "Steps between step records in metrics.jsonl; auto: 100, or if an epoch or `max_steps` is "
      "less than 200 steps, the larger of a tenth of that and a thousandth of the run, at most "
      "100.");
  Schema<EarlyStoppingOptions> early_stopping;
  ADD_KEY(early_stopping, patience, integer(1, kMaxCount),
          "Consecutive epochs without improvement after which the run ends.", kRequired);
  ADD_KEY(early_stopping, min_delta, number({0, 1, false, true}),
          "Minimum improvement over the best accuracy so far.");
  ADD_KEY(schema, early_stopping, kNever, optional_of(group(std::move(early_stopping))),
          "Ends the run when the accuracy stops improving, or the balanced accuracy if "
          "`checkpoint.best_by` is `balanced_accuracy`.");
  const auto ema = one_key("decay", &EmaOptions::decay, number({0, 1, false, true}),
                           "Weight of the previous average at each optimizer step; at step n "
                           "at most (1 + n) / (10 + n).");
  ADD_KEY(schema, ema, optional_of(group(ema)),
          "Keeps an exponential moving average of the weights, which replaces them for evaluation "
          "and in saved models; the best checkpoint and early_stopping use it.");
}

void choose_batch_size(TrainOptions& options, const JsonCursor& /*cursor*/) {
  if (options.batch_size_per_process) {
    options.batch_size.reset();
  } else if (!options.batch_size) {
    options.batch_size = TrainOptions{}.batch_size;
  }
}

/// Ignores `max_steps`, because its equivalent in epochs depends on the data.
void check_warmup(TrainOptions& options, const JsonCursor& cursor) {
  const double warmup_epochs = options.schedule.warmup_epochs;
  if (cursor.is_unclear("epochs") || warmup_epochs <= static_cast<double>(options.epochs)) return;
  cursor.add_error_at("schedule/warmup_epochs",
                      "is longer than the run of " + counted(options.epochs, "epoch"));
}

}  // namespace

std::int64_t global_batch_size(const TrainOptions& options, int processes) {
  return options.batch_size_per_process ? *options.batch_size_per_process * processes
                                        : options.batch_size.value();
}

std::int64_t log_interval(const TrainOptions& options, std::int64_t steps_per_epoch) {
  if (options.log_interval) return *options.log_interval;
  const std::int64_t all = std::min(options.epochs * steps_per_epoch,
                                    options.max_steps.value_or(options.epochs * steps_per_epoch));
  const std::int64_t epoch_steps = std::min(steps_per_epoch, all);
  if (epoch_steps >= 200) return 100;
  return std::clamp<std::int64_t>(std::max(epoch_steps / 10, all / 1000), 1, 100);
}

std::vector<ParameterSettings> parameter_settings(const std::vector<ParameterOptions>& entries,
                                                  const std::vector<std::string>& names,
                                                  const std::set<std::string>& frozen) {
  std::vector<ParameterSettings> resolved;
  for (const std::string& name : names) resolved.push_back({1, {}, frozen.contains(name)});
  std::string errors;
  for (std::size_t entry = 0; entry < entries.size(); ++entry) {
    const ParameterOptions& options = entries[entry];
    for (const std::string& glob : options.match) {
      const auto matches = [&](const std::string& name) {
        return glob == kHead ? module_of(name) == module_of(names.back())
                             : matches_glob(glob, name);
      };
      bool is_used = false;
      for (std::size_t i = 0; i < names.size(); ++i) {
        if (!matches(names[i])) continue;
        is_used = true;
        ParameterSettings& its = resolved[i];
        its.learning_rate_factor = options.learning_rate_factor.value_or(its.learning_rate_factor);
        if (options.weight_decay) its.weight_decay = options.weight_decay;
        its.frozen = options.frozen.value_or(its.frozen);
      }
      if (is_used) continue;
      errors += (errors.empty() ? "" : "\n") + ("/parameters/" + std::to_string(entry)) +
                "/match: " + unmatched_glob(glob, names);
    }
  }
  if (!errors.empty()) throw ConfigKeyError(errors);
  if (std::ranges::all_of(resolved, &ParameterSettings::frozen)) {
    throw ConfigKeyError(
        "/parameters: every parameter is frozen; unfreeze some with an entry that sets \"frozen\": "
        "false");
  }
  return resolved;
}

Schema<TrainOptions> train_schema() {
  Schema<TrainOptions> schema;
  add_length(schema);
  add_optimizer(schema);
  add_refinements(schema);
  add_machine(schema);
  add_monitoring(schema);
  schema.conflict("batch_size_per_process", "batch_size");
  schema.check(choose_batch_size);
  schema.check(check_warmup);
  schema.forbid("nesterov", {equal("nesterov", true), equal("sgd_momentum", 0)},
                "needs sgd_momentum above 0");
  schema.forbid(
      "nesterov",
      {equal("nesterov", true), any_of({equal("optimizer", "adam"), equal("optimizer", "adamw")})},
      "is only for optimizer sgd");
  return schema;
}

}  // namespace mnist_train::settings
