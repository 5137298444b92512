#include "settings/train_options.h"

#include <utility>

#include "settings/schemas.h"

namespace mnist_train::settings {

namespace {

using Options = TrainOptions;

/// Adds a key that only `schedule` has: it is refused for others, and not written for them.
template <class T>
void add_key_of(const std::pair<ScheduleName, std::string>& schedule,
                Schema<ScheduleOptions>& schema, const std::string& key, T ScheduleOptions::*member,
                const Type<T>& type, const std::string& doc,
                const std::vector<std::string>& other_names = {}) {
  schema.add(key, member, type, schedule.second + ": " + doc, other_names).write =
      [=, name = schedule.first](const ScheduleOptions& options) -> std::optional<Json> {
    if (options.name != name) return std::nullopt;
    return type.write(options.*member);
  };
  schema.forbid(key, all_of({given(key), none_of(equal("name", schedule.second))}),
                "is only for schedule " + schedule.second);
}

void add_one_cycle(Schema<ScheduleOptions>& schema) {
  const std::pair one_cycle{ScheduleName::kOneCycle, std::string("one_cycle")};
  const auto divisor = number({0, kMaxFloat, true});
  add_key_of(one_cycle, schema, "max_learning_rate", &ScheduleOptions::max_learning_rate,
             number({0, kMaxFloat, true}),
             "the highest rate. The cycle follows from it; learning_rate is not used.", {"max_lr"});
  add_key_of(one_cycle, schema, "pct_start", &ScheduleOptions::pct_start,
             number({0, 1, true, true}),
             "fraction of the run's steps in which the rate rises; 0.3 by default.");
  add_key_of(one_cycle, schema, "div_factor", &ScheduleOptions::div_factor, divisor,
             "the first rate is max_learning_rate divided by it; 25 by default.");
  add_key_of(one_cycle, schema, "final_div_factor", &ScheduleOptions::final_div_factor, divisor,
             "the last rate is the first one divided by it; 10000 by default.");
  schema.forbid("", all_of({equal("name", "one_cycle"), none_of(given("max_learning_rate"))}),
                "schedule one_cycle needs \"max_learning_rate\"");
  schema.forbid("warmup_epochs",
                all_of({equal("name", "one_cycle"), given("warmup_epochs"),
                        none_of(equal("warmup_epochs", 0))}),
                "has to be 0 with schedule one_cycle, which has a warm-up of its own: pct_start");
}

void add_plateau(Schema<ScheduleOptions>& schema) {
  const std::pair plateau{ScheduleName::kPlateau, std::string("plateau")};
  add_key_of(plateau, schema, "factor", &ScheduleOptions::factor, number({0, 1, false, true}),
             "the factor of the rate at each drop; 0.1 by default.");
  add_key_of(plateau, schema, "patience", &ScheduleOptions::patience, integer(0, kMaxCount),
             "epochs in a row without a better loss after which one more lowers the rate; 10 by "
             "default.");
  add_key_of(plateau, schema, "min_learning_rate", &ScheduleOptions::min_learning_rate,
             number({0, kMaxFloat}), "the rate does not fall below it; 0 by default.", {"min_lr"});
}

Type<ScheduleOptions> schedule() {
  using Name = ScheduleName;
  const auto name = one_of<Name>({{Name::kConstant, "constant"},
                                  {Name::kStep, "step"},
                                  {Name::kLinear, "linear"},
                                  {Name::kCosine, "cosine"},
                                  {Name::kOneCycle, "one_cycle"},
                                  {Name::kPlateau, "plateau"}});
  Schema<ScheduleOptions> schema;
  schema.add("name", &ScheduleOptions::name, name, "How the learning rate moves during the run.");
  schema.add("warmup_epochs", &ScheduleOptions::warmup_epochs, number({0, kMaxFloat}),
             "Epochs, or parts of one, over which the learning rate rises from 0.", {"warmup"});
  schema.add("step_epochs", &ScheduleOptions::step_epochs, integer(1, kMaxCount),
             "step: epochs between two drops, as StepLR's step_size.", {"step_size"});
  schema.add("gamma", &ScheduleOptions::gamma, number({0, kMaxFloat}),
             "step: the factor of the rate at each drop.", {"decay"});
  schema.add("final_factor", &ScheduleOptions::final_factor, number({0, 1}),
             "linear, cosine: fraction of the learning rate that is left at the end of the run.",
             {"end_factor"});
  add_one_cycle(schema);
  add_plateau(schema);
  return group(std::move(schema));
}

Type<AveragingOptions> averaging() {
  using Strategy = AveragingStrategy;
  const auto strategy = one_of<Strategy>({{Strategy::kAuto, "auto"},
                                          {Strategy::kBucketed, "bucketed"},
                                          {Strategy::kFlat, "flat"},
                                          {Strategy::kSharedMemory, "shared_memory"}});
  const auto compression = one_of<Compression>(
      {{Compression::kNone, "none"}, {Compression::kFp16, "fp16"}, {Compression::kBf16, "bf16"}});
  Schema<AveragingOptions> schema;
  schema.add("strategy", &AveragingOptions::strategy, strategy,
             "bucketed: in buckets, while the backward pass still runs; flat: one buffer after it; "
             "shared_memory: without messages, for processes on the CPUs of one host, which also "
             "share weights and optimizer state and update a part each.");
  schema.add("bucket_mb", &AveragingOptions::bucket_mb, number({0, 4096, true}),
             "MiB of gradients in a bucket.", {"bucket_cap_mb"});
  schema.add("compression", &AveragingOptions::compression, compression,
             "The type in which gradients are sent; none: fp32, in which they are summed before.");
  schema.forbid("compression",
                all_of({equal("strategy", "shared_memory"), given("compression"),
                        none_of(equal("compression", "none"))}),
                "has to be none with strategy shared_memory, which sends nothing");
  return group(std::move(schema));
}

/// `batch_size` is written as null where `batch_size_per_process` replaces it.
strict_json::Field<Options> batch_size_field() {
  const auto type = optional_of(integer(1, kMaxCount));
  return {"batch_size",
          "Samples per step, over all processes; remainders are split unevenly. Null where "
          "batch_size_per_process is set.",
          type.fragment,
          [type](Options& options, const JsonCursor& cursor) {
            const auto size = type.read(cursor);
            if (size && *size) options.batch_size = **size;
          },
          [](const Options& options) -> std::optional<Json> {
            if (options.batch_size_per_process) return Json(nullptr);
            return Json(options.batch_size);
          },
          {"global_batch_size", "train_batch_size", "bs"}};
}

void add_length(Schema<Options>& schema) {
  schema.add("epochs", &Options::epochs, integer(1, kMaxCount), "Passes over the training set.",
             {"num_epochs", "n_epochs", "max_epochs", "epoch_count"});
  schema.add("max_steps", &Options::max_steps, optional_of(integer(1, kMaxSteps)),
             "Ends the run after so many optimizer steps, even within an epoch.",
             {"num_steps", "steps", "max_iterations"});
  schema.add(batch_size_field());
  schema.add("batch_size_per_process", &Options::batch_size_per_process,
             optional_of(integer(1, kMaxCount)),
             "Samples per step in each process, instead of batch_size: what DDP scripts call their "
             "batch size.",
             {"batch_size_per_gpu", "local_batch_size", "per_device_batch_size"});
  schema.add("test_batch_size", &Options::test_batch_size, integer(1, kMaxCount),
             "Samples per step of the evaluation, in each process; CPUs take at most 128 a thread.",
             {"eval_batch_size", "val_batch_size"});
}

void add_optimizer(Schema<Options>& schema) {
  const auto optimizer = one_of<OptimizerName>({{OptimizerName::kSgd, "sgd"},
                                                {OptimizerName::kAdam, "adam"},
                                                {OptimizerName::kAdamW, "adamw"}});
  schema.add("optimizer", &Options::optimizer, optimizer, "The update rule.");
  schema.add("learning_rate", &Options::learning_rate, number({0, kMaxFloat}),
             "Step size of the optimizer.", {"lr", "base_lr", "initial_lr", "init_lr"});
  schema.add("sgd_momentum", &Options::sgd_momentum, number({0, 1, false, true}),
             "Momentum of SGD, as PyTorch defines it.", {"momentum"});
  schema.add("nesterov", &Options::nesterov, boolean(), "Nesterov's momentum.");
  schema.add("adam_beta1", &Options::adam_beta1, number({0, 1, false, true}),
             "Adam's and AdamW's first beta.", {"beta1"});
  schema.add("adam_beta2", &Options::adam_beta2, number({0, 1, false, true}),
             "Adam's and AdamW's second beta.", {"beta2"});
  schema.add("adam_epsilon", &Options::adam_epsilon, number({kMinFloat, kMaxFloat}),
             "Adam's and AdamW's eps.", {"eps", "epsilon"});
  schema.add("weight_decay", &Options::weight_decay, number({0, kMaxFloat}),
             "L2 penalty that is added to the gradients; for adamw the decoupled decay.",
             {"wd", "l2"});
  schema.add("schedule", &Options::schedule, schedule(), "The learning rate over time.",
             {"lr_schedule", "lr_scheduler", "scheduler"});
}

void add_refinements(Schema<Options>& schema) {
  schema.add("label_smoothing", &Options::label_smoothing, number({0, 1}),
             "Fraction of the target that is spread over all classes.");
  schema.add("max_gradient_norm", &Options::max_gradient_norm,
             optional_of(number({0, kMaxFloat, true})),
             "Gradients with a larger norm are scaled down to it.",
             {"max_grad_norm", "grad_clip", "clip_grad_norm", "gradient_clip"});
  schema.add("sync_batch_norm", &Options::sync_batch_norm, boolean(),
             "Computes batch statistics over the global batch instead of in each process.");
  schema.add("gradient_accumulation_steps", &Options::gradient_accumulation_steps,
             integer(1, kMaxCount),
             "Global batches whose gradients are added up for one optimizer step.",
             {"accumulation_steps", "grad_accumulation_steps"});
  schema.add("gradient_averaging", &Options::gradient_averaging, averaging(),
             "How processes average their gradients.", {"all_reduce"});
}

void add_machine(Schema<Options>& schema) {
  schema.add("seed", &Options::seed, integer(0, std::numeric_limits<std::int64_t>::max()),
             "Seeds the initial weights and the order of the samples.", {"random_seed"});
  schema.add(deterministic_field());
  schema.add(
      "device", &Options::device,
      one_of<DeviceName>(
          {{DeviceName::kAuto, "auto"}, {DeviceName::kCpu, "cpu"}, {DeviceName::kCuda, "cuda"}},
          {{"gpu", "cuda"}}),
      "Where processes compute; auto: on GPUs where there are any.", {"accelerator"});
  schema.add("backend", &Options::backend,
             one_of<BackendName>({{BackendName::kAuto, "auto"},
                                  {BackendName::kNccl, "nccl"},
                                  {BackendName::kGloo, "gloo"}}),
             "The library that processes communicate with; auto: NCCL on GPUs, Gloo on CPUs.",
             {"dist_backend", "distributed_backend"});
  const auto precision = one_of<PrecisionName>({{PrecisionName::kAuto, "auto"},
                                                {PrecisionName::kFp32, "fp32"},
                                                {PrecisionName::kBf16, "bf16"}},
                                               {{"float32", "fp32"}, {"bfloat16", "bf16"}});
  schema.add("precision", &Options::precision, precision,
             "The type that layers compute in during training; weights and optimizer are fp32. "
             "auto: bf16 where the processor or GPU computes it natively.",
             {"dtype"});
  schema.add("cuda_graphs", &Options::cuda_graphs,
             one_of<CudaGraphs>(
                 {{CudaGraphs::kAuto, "auto"}, {CudaGraphs::kOn, "on"}, {CudaGraphs::kOff, "off"}}),
             "Captures the training step on a GPU as a CUDA graph and replays it; auto: where "
             "nothing in the config prevents it.",
             {"cuda_graph", "use_cuda_graphs"});
  schema.add("gpu_kernels", &Options::gpu_kernels,
             one_of<GpuKernels>({{GpuKernels::kAuto, "auto"}, {GpuKernels::kOff, "off"}}),
             "Replaces several of LibTorch's operations on a GPU by one kernel each; auto: those "
             "kernels that compute a small known case as LibTorch does.");
}

void add_monitoring(Schema<Options>& schema) {
  schema.add("stop_at_accuracy", &Options::stop_at_accuracy, optional_of(number({0, 1})),
             "Ends the run at the first epoch whose test accuracy reaches it.",
             {"target_accuracy"});
  schema.add("log_interval", &Options::log_interval, integer(1, kMaxCount),
             "Steps between two step lines of metrics.jsonl.", {"log_every", "log_steps"});
  Schema<EarlyStoppingOptions> early_stopping;
  early_stopping
      .add("patience", &EarlyStoppingOptions::patience, integer(1, kMaxCount),
           "Epochs in a row without an improvement that end the run.")
      .required = true;
  early_stopping.add(
      "min_delta", &EarlyStoppingOptions::min_delta, number({0, 1, false, true}),
      "An accuracy is an improvement if it is above the best one by more than this.");
  schema.add("early_stopping", &Options::early_stopping,
             optional_of(group(std::move(early_stopping))),
             "Ends the run when the accuracy by which the best checkpoint is chosen no longer "
             "improves.",
             {"early_stop"});
  Schema<EmaOptions> ema;
  ema.add("decay", &EmaOptions::decay, number({0, 1, false, true}),
          "Fraction of the average that an optimizer step keeps; step number n keeps at most "
          "(1 + n) / (10 + n).");
  schema.add("ema", &Options::ema, optional_of(group(std::move(ema))),
             "Keeps an exponential moving average of the weights, which is evaluated and saved in "
             "their place; the best checkpoint and early_stopping go by it.",
             {"model_ema", "weight_averaging"});
}

/// A run that `max_steps` cuts shorter still is known to be so only where the data are.
void check_warmup(TrainOptions& options, const JsonCursor& cursor) {
  const double warmup_epochs = options.schedule.warmup_epochs;
  if (warmup_epochs <= static_cast<double>(options.epochs)) return;
  cursor.add_error_at("schedule/warmup_epochs",
                      "is longer than the run, whose epochs are " + std::to_string(options.epochs));
}

}  // namespace

std::int64_t global_batch_size(const TrainOptions& options, int processes) {
  return options.batch_size_per_process ? *options.batch_size_per_process * processes
                                        : options.batch_size;
}

Schema<TrainOptions> train_schema() {
  Schema<TrainOptions> schema;
  add_length(schema);
  add_optimizer(schema);
  add_refinements(schema);
  add_machine(schema);
  add_monitoring(schema);
  schema.conflict("batch_size_per_process", "batch_size");
  schema.check(check_warmup);
  schema.forbid("nesterov", all_of({equal("nesterov", true), equal("sgd_momentum", 0)}),
                "needs sgd_momentum above 0");
  return schema;
}

}  // namespace mnist_train::settings
