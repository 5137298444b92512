#include "comm/gradient_averager.h"

#include "comm/bucketed_averager.h"
#include "comm/flat_averager.h"
#include "comm/shared_memory_averager.h"

namespace mnist_train::comm {

namespace {

constexpr std::int64_t kOverlapPaysFrom_bytes = 25 << 20;

/// The averager of a single rank, whose gradients are the sums already.
class NoAverager : public GradientAverager {
 public:
  using GradientAverager::GradientAverager;
  void average() override {}
  bool capturable() const override { return true; }
  const char* name() const override { return "none"; }
};

settings::AveragingStrategy choose_strategy(const settings::TrainOptions& options,
                                            const Communicator& communicator,
                                            const GradientBuffer& buffer, bool may_overlap) {
  using Strategy = settings::AveragingStrategy;
  const auto& averaging = options.gradient_averaging;
  if (averaging.strategy != Strategy::kAuto) return averaging.strategy;
  const bool compressed = averaging.compression != settings::Compression::kNone;
  if (!compressed && SharedMemoryAverager::fits(communicator, buffer)) {
    return Strategy::kSharedMemory;
  }
  const auto bytes = buffer.flat.numel() * buffer.flat.element_size();
  const bool overlap = may_overlap && !options.deterministic && bytes >= kOverlapPaysFrom_bytes;
  return overlap ? Strategy::kBucketed : Strategy::kFlat;
}

}  // namespace

void GradientAverager::backward(const at::Tensor& loss, bool /*last*/) {
  loss.backward();
  buffer_.collect();
}

std::unique_ptr<GradientAverager> make_gradient_averager(const settings::TrainOptions& options,
                                                         const Communicator& communicator,
                                                         GradientBuffer buffer, bool may_overlap) {
  if (communicator.alone()) return std::make_unique<NoAverager>(std::move(buffer));
  switch (choose_strategy(options, communicator, buffer, may_overlap)) {
    case settings::AveragingStrategy::kBucketed:
      return std::make_unique<BucketedAverager>(options, communicator, std::move(buffer));
    case settings::AveragingStrategy::kSharedMemory:
      return std::make_unique<SharedMemoryAverager>(communicator, std::move(buffer));
    default:
      return std::make_unique<FlatAverager>(options, communicator, std::move(buffer));
  }
}

}  // namespace mnist_train::comm
