#include "train/step.h"

#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>

#include "base/system.h"
#include "kernels/selection.h"
#include "models/loss.h"
#include "train/host_update.h"

namespace mnist_train::train {

Step::Step(const settings::TrainOptions& options, models::Model& model, FlatParameters& parameters,
           BatchPartition& partition, comm::GradientAverager& averager, Optimizer& optimizer,
           WeightAverage* average)
    : options_(options),
      model_(model),
      parameters_(parameters),
      partition_(partition),
      averager_(averager),
      optimizer_(optimizer),
      average_(average),
      stats_(parameters.statistics(), parameters.shard_statistics()) {
  if (options.shards) buffers_.emplace(model);
  const at::Tensor& values = parameters.values();
  rates_ = at::zeros({2}, values.options().dtype(values.is_cpu() ? at::kDouble : at::kFloat));
}

void Step::set_rates(const StepRates& rates) {
  rates_.select(0, 0).fill_(rates.learning_rate);
  if (average_ != nullptr) rates_.select(0, 1).fill_(rates.average_weight);
}

void Step::run(const StepBatches& batches, const at::Tensor& rates) {
  averager_.begin();
  partition_.begin_work();
  if (buffers_) buffers_->begin_step();
  for (std::size_t number = 0; number < parameters_.shards(); ++number) {
    compute_shard(batches, number);
  }
  partition_.end_work(stats_.of_partition());
  averaging_seconds_ = 0;
  timed([&] { averager_.average(); });
  if (buffers_) buffers_->end_step(stats_.of_buffers());
  // A NaN does not reach the weights if looking first costs nothing. A GPU would have to be waited
  // for, and gradients that are added up late be read twice; the next synchronisation then ends
  // the run before anything is saved.
  bool finite = true;
  if (!parameters_.values().is_cpu() || std::isfinite(stats_.last().loss)) {
    finite = update(rates);
  }
  timed([&] { finite = averager_.end_update(finite); });
  if (!finite) stats_.update_check().fill_(std::numeric_limits<float>::quiet_NaN());
}

/// Computes the gradients and statistics of one of this rank's shards.
void Step::compute_shard(const StepBatches& batches, std::size_t number) {
  parameters_.begin_shard(number);
  parameters_.place_gradients(model_.gradient_places());
  stats_.begin_shard(number == 0);
  if (buffers_) buffers_->begin_shard();
  std::int64_t samples = 0;
  for (std::int64_t i = 0; i < batches.count; ++i) {
    const loader::Batch batch = batches.shard(i, number);
    samples += batch.size();
    const models::BackwardRoot root = forward(batch, 1.0 / static_cast<double>(batches.samples));
    const bool is_last = number + 1 == parameters_.shards() && i + 1 == batches.count;
    averager_.backward(root.tensor, root.gradient, is_last);
  }
  if (buffers_) {
    buffers_->end_shard(stats_.shard_of_buffers(),
                        static_cast<double>(samples) / static_cast<double>(batches.samples),
                        partition_.own_shards().begin == 0 && number == 0);
  }
  parameters_.end_shard(number);
}

/// Returns where the backward pass of the samples' losses, multiplied by `scale`, begins; their sum
/// is added to the statistics.
models::BackwardRoot Step::forward(const loader::Batch& batch, double scale) {
  // Synchronised batch norm exchanges statistics in the forward pass: a rank without samples must
  // run it, too.
  if (batch.size() == 0 && !model_.synchronizes_batch_norm()) return {loss_of_no_samples(), {}};
  model_.set_sample_seeds(batch.seeds);
  return models::training_loss(model_.forward(batch.images),
                               {batch.labels, batch.other_labels, batch.weights},
                               options_.label_smoothing, scale, stats_.of_samples());
}

/// Returns a zero of which every parameter is a part: a rank without samples still takes part in
/// the averaging.
at::Tensor Step::loss_of_no_samples() const {
  at::Tensor sum = at::zeros({}, parameters_.values().options());
  for (const at::Tensor& parameter : parameters_.parameters()) sum = sum + parameter.sum() * 0;
  return sum;
}

/// Returns whether the update is finite; a GPU writes that to the statistics, where nothing waits
/// for it.
bool Step::update(const at::Tensor& rates) {
  const comm::Slice slice = averager_.owned_slice();
  const at::Device device = parameters_.values().device();
  const bool by_kernel = kernels::is_used(kernels::Operation::kOptimizerUpdate, device);
  const bool on_host = device.is_cpu() && !by_kernel;
  const bool clips = options_.max_gradient_norm.has_value();
  if (clips || !on_host) timed([&] { averager_.add_up(); });
  if (clips) timed([&] { averager_.all_gather(); });
  if (by_kernel) {
    update_by_kernel(weight_update(slice, rates.to(at::kFloat)), slice);
    return true;
  }
  if (clips && !clip_gradients(slice)) return false;
  if (on_host) {
    const comm::GradientSum sum = averager_.sum();
    // Beside messages, another pass over the gradients costs nothing.
    if (!averager_.adds_up_late() && !sum.is_finite()) return false;
    const kernels::WeightUpdate update = weight_update(slice, rates);
    const bool finite = update_on_host(update, optimizer_.rule(), sum);
    if (average_ != nullptr) average_->update_buffers(update.average_weight);
    return finite;
  }
  optimizer_.step(rates.select(0, 0));
  const at::Tensor largest = at::linalg_vector_norm(slice.of(parameters_.values()),
                                                    std::numeric_limits<double>::infinity());
  stats_.update_check().add_(largest * 0);
  parameters_.refresh_bf16_copy(slice);
  if (average_ != nullptr) average_->update(slice, rates.select(0, 1));
  return true;
}

/// Returns what is updated in the slice, and what follows it, without the gradients.
kernels::WeightUpdate Step::weight_update(comm::Slice slice, const at::Tensor& rates) const {
  kernels::WeightUpdate update;
  update.values = slice.of(parameters_.values());
  update.learning_rate = rates.select(0, 0);
  update.bf16_copy = parameters_.bf16_values_of(slice);
  if (average_ != nullptr) {
    update.average = slice.of(average_->values());
    update.average_weight = rates.select(0, 1);
  }
  return update;
}

void Step::update_by_kernel(kernels::WeightUpdate update, comm::Slice slice) {
  update.gradients = slice.of(parameters_.gradients());
  update.check = stats_.update_check();
  if (options_.max_gradient_norm) {
    update.gradient_scale =
        kernels::clipping_scale(parameters_.gradients(), *options_.max_gradient_norm);
  }
  kernels::update_weights(update, optimizer_.rule());
  if (average_ != nullptr) average_->update_buffers(update.average_weight);
}

/// Scales as torch.nn.utils.clip_grad_norm_ does, without reading the norm back from a GPU. Returns
/// whether the norm is finite, as `update` does.
bool Step::clip_gradients(comm::Slice slice) {
  const at::Tensor& gradients = parameters_.gradients();
  const at::Tensor norm = at::linalg_vector_norm(gradients, 2);
  if (!norm.is_cpu()) {
    stats_.update_check().add_(norm * 0);
  } else if (!std::isfinite(norm.item<float>())) {
    return false;
  }
  slice.of(gradients).mul_((*options_.max_gradient_norm / (norm + 1e-6)).clamp_max(1.0));
  return true;
}

template <class Work>
void Step::timed(const Work& averaging) {
  const double begin_s = monotonic_seconds();
  averaging();
  averaging_seconds_ += monotonic_seconds() - begin_s;
}

}  // namespace mnist_train::train
