#include "train/optimizer.h"

#include "base/error.h"
#include "train/adam.h"
#include "train/sgd.h"

namespace mnist_train::train {

std::unique_ptr<Optimizer> make_optimizer(const settings::TrainOptions& options,
                                          const FlatParameters& parameters,
                                          std::optional<comm::Shard> part) {
  const comm::Shard updated = part.value_or(comm::Shard{0, parameters.values().numel()});
  switch (options.optimizer) {
    case settings::OptimizerName::kSgd:
      return std::make_unique<Sgd>(options, parameters, updated);
    case settings::OptimizerName::kAdam:
    case settings::OptimizerName::kAdamW:
      return std::make_unique<Adam>(options, parameters, updated);
  }
  throw Error(ExitCode::kConfig, "an optimizer without a case in make_optimizer");
}

}  // namespace mnist_train::train
