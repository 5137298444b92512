#include "train/optimizer.h"

#include "base/error.h"
#include "train/sgd.h"

namespace mnist_train::train {

std::unique_ptr<Optimizer> make_optimizer(const options::TrainOptions& options,
                                          const FlatParameters& parameters) {
  switch (options.optimizer) {
    case options::OptimizerName::kSgd:
      return std::make_unique<Sgd>(options, parameters);
    default:
      throw Error(ExitCode::kConfig, "this optimizer is not built yet");
  }
}

}  // namespace mnist_train::train
