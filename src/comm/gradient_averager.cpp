#include "comm/gradient_averager.h"

#include "comm/bucketed_averager.h"
#include "comm/flat_averager.h"

namespace mnist_train::comm {

namespace {

constexpr std::int64_t kOverlapPaysFrom_bytes = 25 << 20;

/// One rank: its gradients are the average.
class NoAverager : public GradientAverager {
 public:
  double loss_scale(std::int64_t global_batch_size) const override {
    return 1.0 / static_cast<double>(global_batch_size);
  }
  void finish() override {}
  const char* name() const override { return "none"; }
};

bool choose_bucketed(const options::TrainOptions& options, const GradientBuffer& buffer) {
  switch (options.gradient_averaging.strategy) {
    case options::AveragingStrategy::kBucketed:
      return true;
    case options::AveragingStrategy::kAuto:
      return !options.deterministic &&
             buffer.flat.numel() * buffer.flat.element_size() >= kOverlapPaysFrom_bytes;
    default:
      return false;
  }
}

}  // namespace

std::unique_ptr<GradientAverager> make_gradient_averager(const options::TrainOptions& options,
                                                         const Communicator& communicator,
                                                         GradientBuffer buffer) {
  if (communicator.alone()) return std::make_unique<NoAverager>();
  if (choose_bucketed(options, buffer)) {
    return std::make_unique<BucketedAverager>(options, communicator, std::move(buffer));
  }
  return std::make_unique<FlatAverager>(options, communicator, std::move(buffer));
}

}  // namespace mnist_train::comm
