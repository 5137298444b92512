#pragma once

#include <memory>

#include "comm/gradient_averager.h"

namespace c10d {
class Reducer;
class Work;
}  // namespace c10d

namespace mnist_train::comm {

/// c10d::Reducer, as in PyTorch's DistributedDataParallel: hooks on the parameters fill buckets in
/// the order in which backward makes gradients, and each bucket is all-reduced as soon as it is
/// full. It divides by the number of ranks. The riders travel in an all-reduce of their own that
/// starts before backward.
class BucketedAverager : public GradientAverager {
 public:
  BucketedAverager(const settings::TrainOptions& options, const Communicator& communicator,
                   GradientBuffer buffer);
  ~BucketedAverager() override;

  double loss_scale(std::int64_t global_batch_size) const override;
  void before_forward() override;
  void backward(const at::Tensor& loss) override;
  bool averages_in_backward() const override { return true; }
  void finish() override;
  const char* name() const override { return "bucketed"; }

 private:
  const Communicator& communicator_;
  bool keep_bucket_order_;
  std::unique_ptr<c10d::Reducer> reducer_;
  c10::intrusive_ptr<c10d::Work> riders_work_;
};

}  // namespace mnist_train::comm
