#include <spdlog/spdlog.h>

#include <algorithm>

#include "accelerator/device.h"
#include "app/commands.h"
#include "app/run_recorder.h"
#include "base/system.h"
#include "comm/gradient_averager.h"
#include "loader/batch_source.h"

namespace mnist_train::app {

namespace {

/// The images of a run, on its device.
struct RunImages {
  std::unique_ptr<loader::BatchSource> training;
  std::unique_ptr<loader::BatchSource> validation;  // null if none are held out
  std::unique_ptr<loader::BatchSource> test;
  bool bf16 = false;  // training computes in bf16
};

/// Returns whether to train in bf16. The result is the same on all ranks, because their gradients
/// must have the same precision. Collective.
bool trains_in_bfloat16(const Worker& worker) {
  const settings::PrecisionName precision = worker.config.train.precision;
  if (precision == settings::PrecisionName::kFp32) return false;
  const bool native = accelerator::computes_bfloat16(worker.device());
  const bool is_slow = worker.config.model.torchscript && !worker.placement.cuda;
  if (precision == settings::PrecisionName::kAuto) {
    return worker.communicator.sum_over_ranks(native && !is_slow ? 0 : 1) == 0;
  }
  if (!native) {
    spdlog::warn("precision is bf16, but {} does not support it natively: fp32 is faster here",
                 worker.placement.cuda ? "this GPU" : "this CPU");
  }
  return true;
}

/// Loads the images for this rank's device; only training images may be bf16. Collective.
RunImages load_images(Worker& worker, const data::Dataset& dataset) {
  const auto normalize = settings::effective_normalize(worker.config.data, dataset.train.channels);
  const auto augmenter = make_augmenter(worker, dataset.train, /*mixes_across_ranks=*/true);
  const auto load = [&](const data::ImageSet& images, at::ScalarType type) {
    return loader::make_batch_source(images, normalize, worker.device(), type, augmenter);
  };
  RunImages images;
  images.bf16 = trains_in_bfloat16(worker);
  images.training = load(dataset.train, images.bf16 ? at::kBFloat16 : at::kFloat);
  if (dataset.validation.count > 0) images.validation = load(dataset.validation, at::kFloat);
  images.test = load(dataset.test, at::kFloat);
  return images;
}

/// Returns the config's class weights, by class; empty if none. Throws like data::class_weights.
std::vector<float> class_weights(const Worker& worker, const data::Dataset& dataset) {
  const auto& options = worker.config.train.class_weights;
  if (!options) return {};
  std::vector<float> weights = data::class_weights(*options, dataset);
  const auto [min, max] = std::ranges::minmax(weights);
  if (worker.is_rank0()) spdlog::info("class weights in the loss: {:.4g} to {:.4g}", min, max);
  return weights;
}

/// Logs how much of the model is frozen, and the model's own remark.
void log_model_notes(const models::Model& model) {
  std::int64_t frozen = 0;
  std::int64_t all = 0;
  for (const at::Tensor& tensor : model.parameters()) {
    all += tensor.numel();
    if (!tensor.requires_grad()) frozen += tensor.numel();
  }
  if (frozen > 0) {
    spdlog::info("frozen: {} of {} tensors, {} of {} parameters (mnist-train describe lists them)",
                 model.frozen_parameters().size(), model.parameters().size(),
                 report::with_thousands(frozen), report::with_thousands(all));
  }
  if (const std::string remark = model.remark(); !remark.empty()) spdlog::warn("{}", remark);
}

/// Builds the config's trainer. Ranks that cannot share memory send messages, unless the config
/// requires shared memory: then all ranks throw the same error. Collective. Throws Error(kConfig).
std::unique_ptr<train::Trainer> build_trainer(const Worker& worker, const data::Dataset& dataset,
                                              RunImages& images) {
  using Strategy = settings::AveragingStrategy;
  settings::TrainOptions options = worker.config.train;
  train::TrainerSetup setup;
  setup.make_model = [&] { return make_model(worker.config, dataset.train); };
  setup.bf16 = images.bf16;
  setup.device = worker.device();
  setup.partition = {worker.config.data.split, dataset.train_parts, options.shards};
  setup.class_weights = class_weights(worker, dataset);
  if (options.cuda_graphs != settings::CudaGraphs::kOff && worker.placement.cuda) {
    setup.make_graph = accelerator::cuda_module().make_graph;
  }
  const auto build = [&] {
    return std::make_unique<train::Trainer>(options, setup, *images.training, worker.communicator);
  };
  std::unique_ptr<train::Trainer> trainer;
  try {
    trainer = build();
  } catch (const comm::SharedMemoryError& error) {
    if (options.gradient_averaging.strategy == Strategy::kSharedMemory) throw;
    if (worker.is_rank0()) spdlog::warn("averaging gradients with strategy flat: {}", error.what());
    options.gradient_averaging.strategy = Strategy::kFlat;
    trainer = build();
  }
  if (worker.is_rank0()) log_model_notes(trainer->model());
  return trainer;
}

/// Logs that the run was already finished before this command, and how to continue training.
void log_already_finished(const Worker& worker, const train::Trainer& trainer) {
  const std::string ended_by = trainer.ended_by();
  std::string longer = ended_by + "=null";
  if (ended_by == "epochs") longer = fmt::format("epochs={}", 2 * trainer.progress().epoch);
  if (ended_by == "max_steps") longer = fmt::format("max_steps={}", 2 * trainer.progress().step);
  spdlog::info(
      "the run in {} has already finished (ended by {}); to continue training: {} --set {}",
      worker.run_folder.string(), ended_by,
      launch::resume_command(worker.run_folder, worker.job.program), longer);
}

/// Returns whether the run must stop now: never after the last step, as only evaluation remains.
bool must_stop(const train::Trainer& trainer) {
  return trainer.stop_requested() && !trainer.run_done();
}

/// Trains from the current position to the end of the epoch or of the run. Returns false if a rank
/// was asked to stop before that; all ranks then stop after the same step.
bool train_epoch(Worker& worker, train::Trainer& trainer, StateSaver& saver,
                 RunRecorder& recorder) {
  const auto synchronize = [&] {
    trainer.synchronize();
    recorder.record_steps();
  };
  trainer.begin_epoch();
  while (!trainer.epoch_done()) {
    const train::Progress& progress = trainer.progress();
    launch::update(worker.status(), launch::Phase::kTraining, progress.epoch + 1,
                   progress.step + 1);
    recorder.before_step();
    worker.communicator.require_store();
    saver.plan_snapshot();
    worker.status().stepped_s +=
        duration_s([&] { trainer.step(stop_signal() != 0, saver.steps_to_checkpoint()); });
    recorder.after_step();
    if (must_stop(trainer)) return false;
    const bool is_checkpoint = saver.is_checkpoint_due_after_step() && !trainer.epoch_done();
    if (is_checkpoint || saver.is_snapshot_due()) {
      synchronize();
      saver.save(recorder.log_positions(), is_checkpoint);
    }
  }
  synchronize();
  // On CPUs, each rank may have summed only its own slice of the gradients during the update.
  if (worker.config.report.histograms) trainer.all_gather_gradients();
  return !must_stop(trainer);
}

/// Returns the first `images_per_batch` samples of each of the first `batches` batches, as a single
/// process would form them from `count` samples.
std::vector<data::Range> predicted_samples(const settings::PredictionsOptions& options,
                                           std::int64_t batch_size, std::int64_t count) {
  std::vector<data::Range> ranges;
  const std::int64_t batches = std::min(options.batches, (count + batch_size - 1) / batch_size);
  const std::int64_t images_per_batch = std::min(options.images_per_batch, batch_size);
  for (std::int64_t batch = 0; batch < batches; ++batch) {
    const std::int64_t begin = batch * batch_size;
    ranges.push_back({begin, std::min(begin + images_per_batch, count)});
  }
  return ranges;
}

/// Evaluates the model on the validation set, if any, and on the test set. The result for the test
/// set includes the predictions that the config requests. Updates the rank's status. Collective.
Evaluations evaluate(Worker& worker, train::Trainer& trainer, RunImages& images) {
  const double begin_s = monotonic_seconds();
  const train::Progress& progress = trainer.progress();
  std::int64_t batch = 0;
  const auto update_status = [&] {
    launch::update(worker.status(), launch::Phase::kEvaluation, progress.epoch + 1, progress.step,
                   batch++);
  };
  update_status();
  trainer.broadcast_buffers();
  const std::int64_t batch_size = worker.config.train.test_batch_size;
  const auto evaluate_on = [&](loader::BatchSource& source, eval::EvaluationRequest request) {
    request.shards = worker.config.train.shards.value_or(0);
    request.bf16_copy = trainer.bf16_copy();
    return eval::evaluate(trainer.evaluated_model(), source, batch_size, worker.communicator,
                          worker.device(), update_status, request);
  };
  const settings::PredictionsOptions& predictions = worker.config.report.predictions;
  Evaluations result;
  if (images.validation) result.validation = evaluate_on(*images.validation, {});
  result.test = evaluate_on(*images.test, {.predictions = predicted_samples(predictions, batch_size,
                                                                            images.test->count())});
  result.seconds = monotonic_seconds() - begin_s;
  const auto require_number = [&](const eval::Evaluation& evaluation, const char* set) {
    if (!std::isnan(evaluation.loss)) return;
    throw Error(
        ExitCode::kRunFailed,
        fmt::format("the {} loss is NaN after step {}: lower learning_rate", set, progress.step));
  };
  if (result.validation) require_number(*result.validation, "validation");
  require_number(result.test, "test");
  return result;
}

}  // namespace

report::EpochRecord Evaluations::record() const {
  report::EpochRecord record;
  record.test_loss = test.loss;
  record.test_accuracy = test.accuracy;
  record.test_balanced_accuracy = test.balanced_accuracy;
  record.test_top5_accuracy = test.top5_accuracy;
  record.test_seconds = seconds;
  if (validation) {
    record.validation_loss = validation->loss;
    record.validation_accuracy = validation->accuracy;
    record.validation_balanced_accuracy = validation->balanced_accuracy;
    record.validation_top5_accuracy = validation->top5_accuracy;
  }
  return record;
}

train::EpochScores Evaluations::scores(settings::BestBy best_by) const {
  const eval::Evaluation& selection = validation ? *validation : test;
  const bool is_balanced = best_by == settings::BestBy::kBalancedAccuracy;
  return {.test_accuracy = test.accuracy,
          .selection_accuracy = selection.accuracy,
          .selection_loss = selection.loss,
          .seconds = seconds,
          .best_score = report::selection_score(record(), best_by),
          .stopping_accuracy = is_balanced ? selection.balanced_accuracy : selection.accuracy};
}

ExitCode run_training(Worker& worker) {
  prepare_kernels(worker);
  auto initial = initial_model(worker);
  const data::Dataset dataset = open_dataset(worker);
  RunImages images = load_images(worker, dataset);
  const auto trainer = build_trainer(worker, dataset, images);
  StateSaver saver(worker, dataset, *trainer);
  if (worker.job.saves_snapshot) {
    saver.save_snapshot();
    return ExitCode::kDone;
  }
  const ResumedRun resumed = resume_run(worker, dataset, *trainer, saver, std::move(initial));
  if (resumed.is_finished) {
    log_already_finished(worker, *trainer);
    return ExitCode::kDone;
  }
  RunRecorder recorder(worker, dataset, *trainer, saver, resumed);
  record_stop_signals();  // until now, most of them ended the process: there was nothing to save

  if (trainer->run_done() && worker.is_rank0()) {
    spdlog::info("no training steps are left, because of {}: evaluating the weights of step {}",
                 trainer->ended_by(), trainer->progress().step);
  }

  do {  // evaluates even if no steps are left
    if (!train_epoch(worker, *trainer, saver, recorder)) {
      saver.save_checkpoint(recorder.log_positions());
      saver.wait();
      recorder.finish_stopped();
      requeue_if_asked(worker);
      return stopped_exit_code();
    }
    saver.plan_snapshot();
    const Evaluations evaluations = evaluate(worker, *trainer, images);
    recorder.epoch_finished(evaluations);
    trainer->end_epoch(evaluations.scores(worker.config.checkpoint.best_by));
    const bool is_checkpoint = saver.is_checkpoint_due_after_epoch();
    if (is_checkpoint || saver.is_snapshot_due()) {
      saver.save(recorder.log_positions(), is_checkpoint);
    }
    if (!trainer->run_done()) recorder.refresh_report();
  } while (!trainer->run_done());
  saver.wait();
  recorder.finish();
  return ExitCode::kDone;
}

}  // namespace mnist_train::app
