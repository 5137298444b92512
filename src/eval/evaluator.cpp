#include "eval/evaluator.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <span>
#include <vector>

#include "eval/evaluation_sums.h"

namespace mnist_train::eval {

Evaluation evaluate(models::Model& model, loader::BatchSource& images, std::int64_t batch_size,
                    const comm::Communicator& communicator, at::Device device,
                    const std::function<void()>& after_batch, const EvaluationRequest& request) {
  const at::NoGradGuard no_grad;
  model.eval();
  const data::Range mine =
      data::shard({0, images.count()}, communicator.rank(), communicator.world_size());
  EvaluationSums sums(images.images().classes, request, device);
  std::vector<data::Range> ranges;
  for (std::int64_t begin = mine.begin; begin < mine.end; begin += batch_size) {
    ranges.push_back({begin, std::min(begin + batch_size, mine.end)});
  }
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const data::Range& range = ranges[i];
    images.prefetch_sequential(std::span(ranges).subspan(i));
    const loader::Batch batch = images.gather_sequential(range);
    sums.add(model.forward(batch.images), batch.labels, range);
    after_batch();
  }
  communicator.all_reduce_sum(sums.tensor());
  return sums.read(images.count());
}

}  // namespace mnist_train::eval
