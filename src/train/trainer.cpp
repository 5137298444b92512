#include "train/trainer.h"

#include <algorithm>
#include <utility>

#include "data/sampler.h"

namespace mnist_train::train {

namespace {

std::shared_ptr<model::Model> on_device(std::shared_ptr<model::Model> model, at::Device device) {
  model->to(device);
  return model;
}

comm::GradientBuffer gradient_buffer(const FlatParameters& parameters) {
  return {parameters.parameters(), parameters.gradients_and_riders(), Step::kRiders};
}

}  // namespace

Trainer::Trainer(const options::TrainOptions& options, std::shared_ptr<model::Model> model,
                 batch::ResidentImages& images, const comm::Communicator& communicator,
                 at::Device device)
    : options_(options),
      communicator_(communicator),
      images_(images),
      global_batch_size_(options.batch_size_per_process
                             ? *options.batch_size_per_process * communicator.world_size()
                             : options.batch_size),
      model_(on_device(std::move(model), device)),
      parameters_(*model_, Step::kRiders),
      averager_(comm::make_gradient_averager(options, communicator, gradient_buffer(parameters_))),
      optimizer_(make_optimizer(options, parameters_)),
      step_(model_, parameters_, *averager_, *optimizer_) {}

void Trainer::begin_epoch() {
  model_->train();
  images_.set_order(data::epoch_permutation(images_.count(), options_.seed, progress_.epoch));
  step_.restart_totals(progress_.epoch_sums);
}

bool Trainer::epoch_done() const {
  return progress_.samples_into_epoch >= images_.count() || run_done();
}

bool Trainer::run_done() const {
  return progress_.epoch >= options_.epochs ||
         (options_.max_steps && progress_.step >= *options_.max_steps);
}

void Trainer::step(bool stop_requested) {
  const std::int64_t begin = progress_.samples_into_epoch;
  const data::Range global{begin, std::min(begin + global_batch_size_, images_.count())};
  const data::Range mine = data::share(global, communicator_.rank(), communicator_.world_size());
  step_.run(images_.gather(mine), global.size(), learning_rate(), stop_requested);
  progress_.samples_into_epoch = global.end;
  progress_.samples_seen += global.size();
  ++progress_.step;
}

const StepSums& Trainer::read_sums() {
  progress_.epoch_sums = step_.totals();
  require_finite(progress_.epoch_sums, progress_.step);
  return progress_.epoch_sums;
}

void Trainer::end_epoch(double test_accuracy, double test_seconds) {
  progress_.test_seconds += test_seconds;
  if (test_accuracy > progress_.best_accuracy) {
    progress_.best_accuracy = test_accuracy;
    progress_.best_step = progress_.step;
  }
  if (progress_.samples_into_epoch < images_.count()) return;
  ++progress_.epoch;
  progress_.samples_into_epoch = 0;
  progress_.epoch_sums = {};
  progress_.accuracies.push_back(test_accuracy);
  progress_.train_seconds += progress_.epoch_train_seconds;
  progress_.epoch_train_seconds = 0;
}

}  // namespace mnist_train::train
