#include "app/augmentation.h"

#include <spdlog/spdlog.h>

#include <utility>

namespace mnist_train::app {

std::shared_ptr<loader::Augmenter> make_augmenter(const Worker& worker,
                                                  const data::ImageSet& images) {
  const settings::AugmentList& list = worker.config.data.augment;
  if (list.empty()) return nullptr;
  const auto* mixup = settings::find<settings::MixupOptions>(list);
  const bool across = mixup != nullptr && mixup->scope == settings::MixupScope::kGlobal;
  loader::FromNext from_next;
  if (across && worker.communicator.alone()) {
    spdlog::warn(
        "mixup with scope global mixes with another process's samples; there is one, so "
        "samples stay what they are");
  } else if (across) {
    from_next = [&communicator = worker.communicator](const at::Tensor& mine, std::int64_t count) {
      return communicator.receive_from_next(mine, count);
    };
  }
  return std::make_shared<loader::Augmenter>(list, settings::ImageSize{images.height, images.width},
                                             worker.config.train.seed, worker.device(),
                                             std::move(from_next));
}

}  // namespace mnist_train::app
