#pragma once

#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "comm/gradient_averager.h"

namespace c10d {
class GradBucket;
class Reducer;
class Work;
}  // namespace c10d

namespace mnist_train::comm {

/// Sums gradients by c10d::Reducer, as PyTorch's DistributedDataParallel does: hooks on the
/// parameters fill buckets in the order in which backward makes gradients, and each bucket is
/// all-reduced as soon as it is full. The statistics have an all-reduce of their own, which starts
/// before backward.
///
/// Sums are fp32 as those of the other strategies, though gradients may be bf16, as are the buckets
/// that the Reducer fills then: each is converted before it is all-reduced, and the sums go to the
/// flat gradients without coming through the parameters' own.
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
  class Hook;

  /// The sums of a bucket, [n] as they are sent, and where they go.
  struct BucketSums {
    at::Tensor summed;
    std::vector<at::Tensor> views;
  };

  c10::intrusive_ptr<c10::ivalue::Future> all_reduce(c10d::GradBucket& bucket);
  void take_sums();

  const Communicator& communicator_;
  bool keep_bucket_order_;
  std::optional<at::ScalarType> sent_type_;                       // of compressed gradients
  std::unordered_map<const c10::TensorImpl*, at::Tensor> views_;  // by parameter
  bool adds_ = false;                    // whether earlier batches of the step have left gradients
  std::vector<BucketSums> bucket_sums_;  // of the step
  std::unique_ptr<c10d::Reducer> reducer_;
  c10::intrusive_ptr<c10d::Work> statistics_work_;
};

}  // namespace mnist_train::comm
