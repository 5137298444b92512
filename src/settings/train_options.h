#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace mnist_train::settings {

enum class OptimizerName { kSgd, kAdam, kAdamW };
enum class ScheduleName { kConstant, kStep, kLinear, kCosine, kOneCycle, kPlateau };
enum class AveragingStrategy { kAuto, kBucketed, kFlat, kSharedMemory };
enum class Compression { kNone, kFp16, kBf16 };
enum class DeviceName { kAuto, kCpu, kCuda };
enum class BackendName { kAuto, kNccl, kGloo };
enum class PrecisionName { kAuto, kFp32, kBf16 };
enum class CudaGraphs { kAuto, kOn, kOff };
enum class GpuKernels { kAuto, kOff };

/// Learning-rate schedule.
struct ScheduleOptions {
  ScheduleName name = ScheduleName::kConstant;
  double warmup_epochs = 0;
  std::int64_t step_epochs = 30;  // step: epochs between drops
  double gamma = 0.1;             // step: factor applied to the rate at each drop
  double final_factor = 0;        // linear, cosine: last rate / learning_rate
  double max_learning_rate = 0;   // one_cycle: required
  double pct_start = 0.3;         // one_cycle: fraction of the steps in which the rate rises
  double div_factor = 25;         // one_cycle: max_learning_rate / first rate
  double final_div_factor = 1e4;  // one_cycle: first rate / last rate
  double factor = 0.1;            // plateau: factor applied to the rate at each drop
  std::int64_t patience = 10;     // plateau: epochs without improvement before the rate drops
  double min_learning_rate = 0;   // plateau
};

/// How processes average their gradients.
struct AveragingOptions {
  AveragingStrategy strategy = AveragingStrategy::kAuto;
  double bucket_mb = 25;
  Compression compression = Compression::kNone;
};

/// Ends a run when accuracy no longer improves.
struct EarlyStoppingOptions {
  std::int64_t patience = 1;  // consecutive epochs without improvement
  double min_delta = 0;       // improvements must exceed this
};

/// The EMA model: an exponential moving average of the weights.
struct EmaOptions {
  double decay = 0.999;  // fraction of the average that each optimizer step keeps
};

/// Class weights in the training loss.
struct ClassWeightOptions {
  bool balanced = false;                    // samples / (classes * samples of the class)
  std::map<std::string, double> weights{};  // by name, or number if there are no names; others: 1
};

/// Instead of a glob, selects the last layer, that is, the module that owns the last parameter.
inline constexpr const char* kHead = "head";

/// An entry of `parameters`: how the parameters that match a glob are trained.
struct ParameterOptions {
  std::vector<std::string> match;  // "head", or globs of parameter names; at least one
  std::optional<double> learning_rate_factor;
  std::optional<double> weight_decay;
  std::optional<bool> frozen;
  bool operator==(const ParameterOptions&) const = default;
};

/// Hyperparameters, at the top level of the config.
struct TrainOptions {
  std::int64_t epochs = 10;
  std::optional<std::int64_t> max_steps;         // optimizer steps in the whole run
  std::optional<std::int64_t> batch_size = 128;  // samples per global batch
  std::optional<std::int64_t> batch_size_per_process;
  std::int64_t test_batch_size = 1000;  // per process
  OptimizerName optimizer = OptimizerName::kSgd;
  double learning_rate = 0.01;
  double sgd_momentum = 0.5;
  bool nesterov = false;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_epsilon = 1e-8;
  double weight_decay = 0;
  ScheduleOptions schedule;
  std::vector<ParameterOptions> parameters;  // later entries override earlier ones key by key
  double label_smoothing = 0;
  std::optional<ClassWeightOptions> class_weights;
  std::optional<double> max_gradient_norm;
  bool sync_batch_norm = false;
  std::int64_t gradient_accumulation_steps = 1;
  AveragingOptions gradient_averaging;
  std::int64_t seed = 1;
  bool deterministic = false;
  std::optional<std::int64_t> shards;  // per global batch, for results that are independent of the
                                       // number of processes; none: one per process
  DeviceName device = DeviceName::kAuto;
  BackendName backend = BackendName::kAuto;
  PrecisionName precision = PrecisionName::kAuto;
  CudaGraphs cuda_graphs = CudaGraphs::kAuto;
  GpuKernels gpu_kernels = GpuKernels::kAuto;
  std::optional<double> stop_at_accuracy;
  std::optional<std::int64_t> log_interval;  // steps; none: chosen from the length of the run
  std::optional<EarlyStoppingOptions> early_stopping;
  std::optional<EmaOptions> ema;
};

/// Returns the batch size over all processes.
std::int64_t global_batch_size(const TrainOptions& options, int processes);

/// Returns the number of steps between two step records.
std::int64_t log_interval(const TrainOptions& options, std::int64_t steps_per_epoch);

/// How a parameter is trained.
struct ParameterSettings {
  double learning_rate_factor = 1;
  std::optional<double> weight_decay;  // none: the global weight decay
  bool frozen = false;

  bool operator==(const ParameterSettings&) const = default;
};

/// Returns the settings of each named parameter. `frozen` contains the names of parameters that a
/// custom network freezes itself; entries override it. Throws ConfigKeyError listing all globs that
/// match no name, or if every parameter is frozen.
std::vector<ParameterSettings> parameter_settings(const std::vector<ParameterOptions>& entries,
                                                  const std::vector<std::string>& names,
                                                  const std::set<std::string>& frozen = {});

}  // namespace mnist_train::settings
