#include "eval/evaluator.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "model/loss.h"

namespace mnist_train::eval {

Evaluation evaluate(model::Model& model, batch::ResidentImages& images, std::int64_t batch_size,
                    const comm::Communicator& communicator, at::Device device,
                    const std::function<void()>& after_batch) {
  const at::NoGradGuard no_grad;
  model.eval();
  const data::Range mine =
      data::share({0, images.count()}, communicator.rank(), communicator.world_size());
  at::Tensor sums = at::zeros({2}, at::TensorOptions(at::kDouble).device(device));
  for (std::int64_t begin = mine.begin; begin < mine.end; begin += batch_size) {
    const batch::Batch batch = images.slice({begin, std::min(begin + batch_size, mine.end)});
    const model::BatchLoss loss = model::batch_loss(model.forward(batch.images), batch.labels);
    sums[0].add_(loss.loss_sum);
    sums[1].add_(loss.correct);
    after_batch();
  }
  communicator.all_reduce_sum(sums);
  const at::Tensor host = sums.cpu();
  const auto count = static_cast<double>(images.count());
  return {host[0].item<double>() / count, host[1].item<double>() / count, images.count()};
}

}  // namespace mnist_train::eval
