#include "settings/train_options.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/print.h"
#include "settings/schemas.h"

namespace mnist_train::settings {

namespace {

/// Adds a key of one schedule, which the others refuse.
template <class T>
void add_schedule_key(const std::string& schedule, Schema<ScheduleOptions>& schema,
                      const std::string& key, T ScheduleOptions::*member, const Type<T>& type,
                      const std::string& doc, const std::vector<std::string>& other_names = {}) {
  schema.add(key, member, type, schedule + ": " + doc, other_names).key.owner = {"name", schedule};
  schema.forbid(key, all_of({given(key), none_of(equal("name", schedule))}),
                "is only for schedule " + schedule);
}

void add_one_cycle(Schema<ScheduleOptions>& schema) {
  const std::string one_cycle = "one_cycle";
  const auto divisor = number({0, kMaxFloat, true});
  add_schedule_key(one_cycle, schema, "max_learning_rate", &ScheduleOptions::max_learning_rate,
                   number({0, kMaxFloat, true}),
                   "highest rate. The cycle follows from it; learning_rate is ignored.",
                   {"max_lr"});
  add_schedule_key(one_cycle, schema, "pct_start", &ScheduleOptions::pct_start,
                   number({0, 1, true, true}),
                   "fraction of the steps in which the rate rises; 0.3 by default.");
  add_schedule_key(one_cycle, schema, "div_factor", &ScheduleOptions::div_factor, divisor,
                   "max_learning_rate divided by the first rate; 25 by default.");
  add_schedule_key(one_cycle, schema, "final_div_factor", &ScheduleOptions::final_div_factor,
                   divisor, "first rate divided by the last one; 10000 by default.");
  schema.forbid("", all_of({equal("name", "one_cycle"), none_of(given("max_learning_rate"))}),
                "schedule one_cycle needs \"max_learning_rate\"");
  schema.forbid("warmup_epochs",
                all_of({equal("name", "one_cycle"), given("warmup_epochs"),
                        none_of(equal("warmup_epochs", 0))}),
                "must be 0 with schedule one_cycle, which has its own warm-up: pct_start");
}

void add_plateau(Schema<ScheduleOptions>& schema) {
  const std::string plateau = "plateau";
  add_schedule_key(plateau, schema, "factor", &ScheduleOptions::factor, number({0, 1, false, true}),
                   "factor applied to the rate at each drop; 0.1 by default.");
  add_schedule_key(plateau, schema, "patience", &ScheduleOptions::patience, integer(0, kMaxCount),
                   "epochs without improvement of the loss before the rate drops; 10 by default.");
  add_schedule_key(plateau, schema, "min_learning_rate", &ScheduleOptions::min_learning_rate,
                   number({0, kMaxFloat}), "lower bound of the rate; 0 by default.", {"min_lr"});
}

Type<ScheduleOptions> schedule() {
  using Name = ScheduleName;
  const auto name = one_of<Name>({"constant", "step", "linear", "cosine", "one_cycle", "plateau"});
  Schema<ScheduleOptions> schema;
  schema.add("name", &ScheduleOptions::name, name, "The shape of the learning rate over the run.");
  schema.add("warmup_epochs", &ScheduleOptions::warmup_epochs, number({0, kMaxFloat}),
             "Epochs, possibly fractional, over which the learning rate rises from 0.");
  schema.add("step_epochs", &ScheduleOptions::step_epochs, integer(1, kMaxCount),
             "step: epochs between two drops, like StepLR's step_size.", {"step_size"});
  schema.add("gamma", &ScheduleOptions::gamma, number({0, kMaxFloat}),
             "step: factor applied to the rate at each drop.", {"decay"});
  schema.add("final_factor", &ScheduleOptions::final_factor, number({0, 1}),
             "linear, cosine: fraction of the learning rate at the end of the run.",
             {"end_factor"});
  add_one_cycle(schema);
  add_plateau(schema);
  return group(std::move(schema));
}

Type<AveragingOptions> averaging() {
  using Strategy = AveragingStrategy;
  const auto strategy = one_of<Strategy>({"auto", "bucketed", "flat", "shared_memory"});
  const auto compression = one_of<Compression>({"none", "fp16", "bf16"});
  Schema<AveragingOptions> schema;
  schema.add("strategy", &AveragingOptions::strategy, strategy,
             "bucketed: in buckets during the backward pass; flat: in one buffer after it; "
             "shared_memory: without messages, for processes on the CPUs of one host, which then "
             "share weights and optimizer state and update one slice each.",
             {}, kNever);
  schema.add("bucket_mb", &AveragingOptions::bucket_mb, number({0, 4096, true}),
             "MiB of gradients per bucket.", {"bucket_cap_mb"}, kNever);
  schema.add("compression", &AveragingOptions::compression, compression,
             "Type in which gradients are sent; none: fp32.");
  schema.forbid("compression",
                all_of({equal("strategy", "shared_memory"), given("compression"),
                        none_of(equal("compression", "none"))}),
                "must be none with strategy shared_memory, which sends nothing");
  return group(std::move(schema));
}

/// The object form of `deterministic`.
struct Sharding {
  std::int64_t shards = 1;
};

Type<Sharding> sharding() {
  Schema<Sharding> schema;
  schema
      .add(
          "shards", &Sharding::shards, integer(1, kMaxProcessesPerNode),
          "Splits each global batch into this number of shards. Results are bit-identical for 1 to "
          "`shards` processes.")
      .required = true;
  return group(std::move(schema));
}

/// Returns the field of `deterministic`: true, false or {"shards": 4}.
strict_json::Field<TrainOptions> deterministic_field() {
  const auto flag = boolean();
  const auto object = sharding();
  KnownKey key{"", "deterministic"};
  key.shorthand_for = "";
  return {key,
          "true: bit-identical results for the same binary, hardware and number of processes and "
          "threads. With shards: for any number of processes.",
          {{"anyOf", {flag.fragment, object.fragment}}},
          [object, flag](TrainOptions& options, const JsonCursor& cursor) {
            if (cursor.node().value.is_object()) {
              if (const auto value = object.read(cursor)) options.shards = value->shards;
              options.deterministic = true;
            } else if (const auto value = flag.read(cursor.or_else("{\"shards\": 4}"))) {
              options.deterministic = *value;
            }
          },
          [object](const TrainOptions& options) -> std::optional<Json> {
            if (options.shards) return object.write({*options.shards});
            return Json(options.deterministic);
          },
          object.keys};
}

/// Returns the type of `class_weights`: "balanced", or an object with the weights of some classes.
Type<ClassWeightOptions> class_weights() {
  enum class Computed { kBalanced };
  const auto balanced = converted<ClassWeightOptions>(
      one_of<Computed>({"balanced"}), [](Computed) { return ClassWeightOptions{.balanced = true}; },
      [](const ClassWeightOptions&) { return Computed::kBalanced; });
  const auto weight = number({0, kMaxFloat});
  const Type<ClassWeightOptions> by_class{
      .read = [weight](const JsonCursor& cursor) -> std::optional<ClassWeightOptions> {
        ClassWeightOptions options;
        for (const auto& member : cursor.node().members) {
          const auto value = weight.read(cursor.member(member.key));
          if (value) options.by_class.emplace(member.key, *value);
        }
        return options;
      },
      .write =
          [weight](const ClassWeightOptions& options) {
            Json object = Json::object();
            for (const auto& [name, value] : options.by_class) object[name] = weight.write(value);
            return object;
          },
      .fragment = {{"type", "object"}, {"additionalProperties", weight.fragment}}};
  return brief_or_full(balanced, by_class, R"({"cat": 2})",
                       [](const ClassWeightOptions& options) { return options.balanced; });
}

void add_length(Schema<TrainOptions>& schema) {
  schema.add("epochs", &TrainOptions::epochs, integer(1, kMaxCount),
             "Passes over the training set.",
             {"num_epochs", "n_epochs", "max_epochs", "epoch_count"}, kNever);
  schema.add("max_steps", &TrainOptions::max_steps, optional_of(integer(1, kMaxSteps)),
             "Ends the run after this number of optimizer steps, even within an epoch.",
             {"num_steps", "steps", "max_iterations"}, kNever);
  schema.add("batch_size", &TrainOptions::batch_size, optional_of(integer(1, kMaxCount)),
             "Samples per step, over all processes; shares may differ by one. Null if "
             "batch_size_per_process is set.",
             {"global_batch_size", "train_batch_size", "bs"});
  schema.add("batch_size_per_process", &TrainOptions::batch_size_per_process,
             optional_of(integer(1, kMaxCount)),
             "Samples per step and process, instead of batch_size, like the batch size in DDP "
             "scripts.",
             {"batch_size_per_gpu", "local_batch_size", "per_device_batch_size"});
  schema.add("test_batch_size", &TrainOptions::test_batch_size, integer(1, kMaxCount),
             "Samples per step and process during evaluation; CPUs use at most 128 per thread.",
             {"eval_batch_size", "val_batch_size"}, kNever);
}

using Globs = std::vector<std::string>;

Type<double> factor() {
  Type<double> type = number({0, kMaxFloat, true});
  type.read = [read = type.read](const JsonCursor& cursor) -> std::optional<double> {
    const Json& value = cursor.node().value;
    if (!value.is_number() || value.get<double>() > 0) return read(cursor);
    cursor.add_mismatch("a number above 0", "; to freeze parameters set \"frozen\" to true");
    return std::nullopt;
  };
  return type;
}

/// Returns the type of one glob or several.
Type<Globs> globs() {
  const auto glob = strict_json::text(".", "a glob of parameter names");
  return one_or_list(glob, list_of(glob, "at least one glob", 1), R"(["conv1.*", "bn1.*"])");
}

Type<std::vector<ParameterOptions>> parameter_list() {
  using Options = ParameterOptions;
  Schema<Options> schema;
  schema
      .add("match", &Options::match, globs(),
           "Names of parameters, as `describe` prints them, or globs of them, of which `*` matches "
           "dots, too.",
           {"name", "names", "params", "pattern"})
      .required = true;
  schema.add("learning_rate_factor", &Options::learning_rate_factor, optional_of(factor()),
             "Factor applied to the learning rate.",
             {"lr_factor", "lr_mult", "lr_multiplier", "lr_scale"});
  schema.add("weight_decay", &Options::weight_decay, optional_of(number({0, kMaxFloat})),
             "Replaces weight_decay.", {"wd", "l2"});
  schema.add("frozen", &Options::frozen, optional_of(boolean()),
             "true: they keep their values. Batch norm without a trained parameter uses and keeps "
             "its running statistics.",
             {"freeze", "fixed"});
  schema.forbid(
      "", none_of(any_of({given("learning_rate_factor"), given("weight_decay"), given("frozen")})),
      "needs \"learning_rate_factor\", \"weight_decay\" or \"frozen\"");
  return list_of(group(std::move(schema)));
}

void add_optimizer(Schema<TrainOptions>& schema) {
  const auto optimizer = one_of<OptimizerName>({"sgd", "adam", "adamw"});
  schema.add("optimizer", &TrainOptions::optimizer, optimizer, "The update rule.");
  schema.add("learning_rate", &TrainOptions::learning_rate, number({0, kMaxFloat}),
             "Step size of the optimizer.", {"lr", "base_lr", "initial_lr", "init_lr"});
  schema.add("sgd_momentum", &TrainOptions::sgd_momentum, number({0, 1, false, true}),
             "Momentum of SGD, as PyTorch defines it.", {"momentum"});
  schema.add("nesterov", &TrainOptions::nesterov, boolean(), "Uses Nesterov momentum.");
  schema.add("adam_beta1", &TrainOptions::adam_beta1, number({0, 1, false, true}),
             "First beta of Adam and AdamW.", {"beta1"});
  schema.add("adam_beta2", &TrainOptions::adam_beta2, number({0, 1, false, true}),
             "Second beta of Adam and AdamW.", {"beta2"});
  schema.add("adam_epsilon", &TrainOptions::adam_epsilon, number({kMinFloat, kMaxFloat}),
             "Epsilon of Adam and AdamW.", {"eps", "epsilon"});
  schema.add("weight_decay", &TrainOptions::weight_decay, number({0, kMaxFloat}),
             "L2 penalty, added to the gradients; for adamw the decoupled decay.", {"wd", "l2"});
  schema.add("schedule", &TrainOptions::schedule, schedule(), "The learning rate over time.",
             {"lr_schedule", "lr_scheduler", "scheduler"});
  schema.add("parameters", &TrainOptions::parameters, parameter_list(),
             "Learning rate and weight decay of some parameters, or that they are frozen; later "
             "entries win key by key.",
             {"parameter_groups", "param_groups"});
}

void add_refinements(Schema<TrainOptions>& schema) {
  schema.add("label_smoothing", &TrainOptions::label_smoothing, number({0, 1}),
             "Fraction of the target spread over all classes.");
  schema.add(
      "class_weights", &TrainOptions::class_weights, optional_of(class_weights()),
      "Weights of the classes in the training loss, as in CrossEntropyLoss(weight). balanced: "
      "training samples / (classes × samples of the class); an object: by class name, or "
      "number if the data have no names; other classes have weight 1.",
      {"class_weight", "loss_weights", "weight"});
  schema.add("max_gradient_norm", &TrainOptions::max_gradient_norm,
             optional_of(number({0, kMaxFloat, true})), "Clips gradients to this norm.",
             {"max_grad_norm", "grad_clip", "clip_grad_norm", "gradient_clip"});
  schema.add("sync_batch_norm", &TrainOptions::sync_batch_norm, boolean(),
             "Computes batch statistics over the global batch instead of per process.");
  schema.add("gradient_accumulation_steps", &TrainOptions::gradient_accumulation_steps,
             integer(1, kMaxCount),
             "Global batches whose gradients are summed for one optimizer step.",
             {"accumulation_steps", "grad_accumulation_steps"});
  schema.add("gradient_averaging", &TrainOptions::gradient_averaging, averaging(),
             "How processes average their gradients.", {"all_reduce"});
}

void add_machine(Schema<TrainOptions>& schema) {
  schema.add("seed", &TrainOptions::seed, integer(0, std::numeric_limits<std::int64_t>::max()),
             "Seed of the initial weights and the order of samples.", {"random_seed"});
  schema.add(deterministic_field());
  schema.add("device", &TrainOptions::device,
             one_of<DeviceName>({"auto", "cpu", "cuda"}, {{"gpu", "cuda"}}),
             "Device of the processes; auto: GPUs if there are any.", {"accelerator"});
  schema.add("backend", &TrainOptions::backend, one_of<BackendName>({"auto", "nccl", "gloo"}),
             "Communication library; auto: NCCL on GPUs, Gloo on CPUs.",
             {"dist_backend", "distributed_backend"}, kNever);
  const auto precision =
      one_of<PrecisionName>({"auto", "fp32", "bf16"}, {{"float32", "fp32"}, {"bfloat16", "bf16"}});
  schema.add("precision", &TrainOptions::precision, precision,
             "Type in which layers compute during training; master weights and optimizer state are "
             "fp32. auto: bf16 if the CPU or GPU supports it natively, but fp32 for TorchScript on "
             "CPUs.",
             {"dtype"});
  schema.add("cuda_graphs", &TrainOptions::cuda_graphs, one_of<CudaGraphs>({"auto", "on", "off"}),
             "Captures the training step on a GPU as a CUDA graph and replays it; auto: unless the "
             "config prevents it.",
             {"use_cuda_graphs"}, kNever);
  schema.add(
      "gpu_kernels", &TrainOptions::gpu_kernels, one_of<GpuKernels>({"auto", "off"}),
      "Fused GPU kernels in place of several LibTorch operations; auto: those that agree with "
      "LibTorch on a small test case.");
}

void add_monitoring(Schema<TrainOptions>& schema) {
  schema.add("stop_at_accuracy", &TrainOptions::stop_at_accuracy, optional_of(number({0, 1})),
             "Ends the run after the first epoch that reaches this test accuracy.",
             {"target_accuracy"}, kNever);
  schema.add("log_interval", &TrainOptions::log_interval,
             optional_of(integer(1, kMaxCount), "auto"),
             "Steps between two step records of metrics.jsonl; auto: a tenth of an epoch or a "
             "thousandth of the run, whichever is more, up to 100.",
             {"log_every", "log_steps"}, kNever);
  Schema<EarlyStoppingOptions> early_stopping;
  early_stopping
      .add("patience", &EarlyStoppingOptions::patience, integer(1, kMaxCount),
           "Consecutive epochs without improvement after which the run ends.")
      .required = true;
  early_stopping.add("min_delta", &EarlyStoppingOptions::min_delta, number({0, 1, false, true}),
                     "Minimum improvement over the best accuracy so far.");
  schema.add("early_stopping", &TrainOptions::early_stopping,
             optional_of(group(std::move(early_stopping))),
             "Ends the run when the accuracy stops improving, or the balanced accuracy if "
             "`checkpoint.best_by` is `balanced_accuracy`.",
             {"early_stop"}, kNever);
  Schema<EmaOptions> ema;
  ema.add("decay", &EmaOptions::decay, number({0, 1, false, true}),
          "Fraction of the average kept by an optimizer step; step n keeps at most "
          "(1 + n) / (10 + n).");
  schema.add("ema", &TrainOptions::ema, optional_of(group(std::move(ema))),
             "Keeps an exponential moving average of the weights, which is evaluated and saved "
             "instead of them; the best checkpoint and early_stopping use it.",
             {"model_ema", "weight_averaging"});
}

void choose_batch_size(TrainOptions& options, const JsonCursor& /*cursor*/) {
  if (options.batch_size_per_process) {
    options.batch_size.reset();
  } else if (!options.batch_size) {
    options.batch_size = TrainOptions{}.batch_size;
  }
}

/// Does not consider `max_steps`, which ends epochs that only the data tell.
void check_warmup(TrainOptions& options, const JsonCursor& cursor) {
  const double warmup_epochs = options.schedule.warmup_epochs;
  if (warmup_epochs <= static_cast<double>(options.epochs)) return;
  cursor.add_error_at("schedule/warmup_epochs",
                      "is longer than the run of " + std::to_string(options.epochs) + " epochs");
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
  const std::int64_t in_epoch = std::min(steps_per_epoch, all);
  return std::clamp<std::int64_t>(std::max(in_epoch / 10, all / 1000), 1, 100);
}

std::int64_t shard_count(const TrainOptions& options, int processes) {
  return options.shards.value_or(processes);
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
      bool is_used = false;
      for (std::size_t i = 0; i < names.size(); ++i) {
        if (!matches_glob(glob, names[i])) continue;
        is_used = true;
        ParameterSettings& own = resolved[i];
        own.learning_rate_factor = options.learning_rate_factor.value_or(own.learning_rate_factor);
        if (options.weight_decay) own.weight_decay = options.weight_decay;
        own.frozen = options.frozen.value_or(own.frozen);
      }
      if (is_used) continue;
      errors += (errors.empty() ? "" : "\n") + ("/parameters/" + std::to_string(entry)) +
                "/match: " + unmatched_glob(glob, names);
    }
  }
  if (!errors.empty()) throw ConfigKeyError(errors);
  if (std::ranges::all_of(resolved, &ParameterSettings::frozen)) {
    throw ConfigKeyError(
        "/parameters: every parameter is frozen, so there is nothing to train; an entry with "
        "\"frozen\": false trains some");
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
  schema.forbid("nesterov", all_of({equal("nesterov", true), equal("sgd_momentum", 0)}),
                "needs sgd_momentum above 0");
  return schema;
}

}  // namespace mnist_train::settings
