#include "app/evaluations.h"

namespace mnist_train::app {

EvaluatedImages::EvaluatedImages(const data::Dataset& dataset,
                                 const options::NormalizeOptions& normalize, at::Device device,
                                 const std::shared_ptr<augment::Augmenter>& augmenter)
    : test(dataset.test, normalize, device, at::kFloat, augmenter) {
  if (dataset.validation.count > 0) {
    validation.emplace(dataset.validation, normalize, device, at::kFloat, augmenter);
  }
}

Evaluations evaluate(Worker& worker, train::Trainer& trainer, EvaluatedImages& images) {
  const train::Progress& progress = trainer.progress();
  std::int64_t batch = 0;
  const auto still_here = [&] {
    launch::update(worker.status(), launch::Phase::kEvaluation, progress.epoch + 1, progress.step,
                   ++batch);
  };
  still_here();
  trainer.share_buffers();
  const auto over = [&](batch::ResidentImages& some) {
    return eval::evaluate(trainer.model(), some, worker.config.train.test_batch_size,
                          worker.communicator, worker.device(), still_here);
  };
  Evaluations result;
  if (images.validation) result.validation = over(*images.validation);
  result.test = over(images.test);
  return result;
}

}  // namespace mnist_train::app
