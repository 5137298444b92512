#pragma once

#include <memory>

#include "comm/gradient_averager.h"

namespace c10d {
class Reducer;
class Work;
}  // namespace c10d

namespace mnist_train::comm {

/// Sums gradients by c10d::Reducer, as PyTorch's DistributedDataParallel does: hooks on the
/// parameters fill buckets in the order in which backward makes gradients, and each bucket is
/// all-reduced as soon as it is full. The statistics have an all-reduce of their own, which starts
/// before backward.
class BucketedAverager : public GradientAverager {
 public:
  BucketedAverager(const settings::TrainOptions& options, const Communicator& communicator,
                   GradientBuffer buffer);
  ~BucketedAverager() override;

  void begin() override;
  void backward(const at::Tensor& root, const at::Tensor& gradient, bool last) override;
  void average() override;
  const char* name() const override { return "bucketed"; }

 private:
  const Communicator& communicator_;
  bool keep_bucket_order_;
  std::unique_ptr<c10d::Reducer> reducer_;
  c10::intrusive_ptr<c10d::Work> statistics_work_;
};

}  // namespace mnist_train::comm
