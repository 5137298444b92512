#include "app/models.h"

#include "checkpoint/weights.h"

namespace mnist_train::app {

std::shared_ptr<models::Model> fresh_model(const settings::RunConfig& config,
                                           const data::ImageSet& images) {
  const settings::ImageSize size =
      settings::augmented_size(config.data.augment, {images.height, images.width});
  return models::make_model(
      config.model, {images.channels, size.height, size.width, images.classes}, config.train.seed);
}

std::shared_ptr<models::Model> model_with_weights(Worker& worker, const data::ImageSet& images,
                                                  const std::filesystem::path& file) {
  launch::update(worker.status(), launch::Phase::kLoadingWeights, 0, 0);
  auto model = fresh_model(worker.config, images);
  checkpoint::load_state_dict(*model, checkpoint::read_weights(file), file.string());
  return model;
}

}  // namespace mnist_train::app
