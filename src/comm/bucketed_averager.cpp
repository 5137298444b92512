#include "comm/bucketed_averager.h"

#include <algorithm>
#include <optional>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "comm/failures.h"

namespace mnist_train::comm {

namespace {

std::unique_ptr<c10d::Reducer> make_reducer(const GradientBuffer& buffer,
                                            const Communicator& communicator,
                                            std::int64_t bucket_bytes, bool find_unused) {
  const std::size_t count = buffer.parameters.size();
  const std::vector<bool> expect_sparse(count, false);
  // As in DDP: the first bucket to be ready is small, so that sending starts early.
  const auto first_bytes = std::min<std::int64_t>(bucket_bytes, c10d::kDefaultFirstBucketBytes);
  auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(
      buffer.parameters,
      {static_cast<std::size_t>(first_bytes), static_cast<std::size_t>(bucket_bytes)},
      expect_sparse);
  std::reverse(buckets.begin(), buckets.end());
  return std::make_unique<c10d::Reducer>(
      buffer.parameters, std::move(buckets), communicator.process_group(), expect_sparse,
      bucket_bytes, find_unused, /*gradient_as_bucket_view=*/false,
      std::unordered_map<std::size_t, std::string>(), first_bytes,
      /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
      std::vector<std::int64_t>());
}

/// Sums a bucket over the ranks, in another type where gradients are compressed. The Reducer's own
/// hooks divide by the number of ranks, by which losses would have to be multiplied first.
class SummingHook : public c10d::CommHookInterface {
 public:
  SummingHook(c10::intrusive_ptr<c10d::ProcessGroup> group, std::optional<at::ScalarType> type)
      : group_(std::move(group)), type_(type) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    const at::Tensor gradients = bucket.getBufferRef();
    std::vector<at::Tensor> sent{type_ ? gradients.to(*type_) : gradients};
    auto summed = group_->allreduce(sent)->getFuture();
    if (!type_) return summed;
    const auto decompress = [gradients](c10::ivalue::Future& future) {
      gradients.copy_(future.value().toTensorVector().front());
      return c10::IValue(gradients);
    };
    return summed->then(decompress, c10::TensorType::get());
  }

  at::Tensor parseHookResult(const c10::IValue& result) override {
    return c10d::detail::parseCppCommHookResult(result);
  }

 private:
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  std::optional<at::ScalarType> type_;
};

}  // namespace

BucketedAverager::BucketedAverager(const settings::TrainOptions& options,
                                   const Communicator& communicator, GradientBuffer buffer)
    : GradientAverager(std::move(buffer)),
      communicator_(communicator),
      keep_bucket_order_(options.deterministic) {
  const auto bucket_bytes =
      static_cast<std::int64_t>(options.gradient_averaging.bucket_mb * 1024 * 1024);
  // Buckets that are rebuilt after the first step add in another order than before it, and a
  // resumed run has its first step elsewhere. Looking for unused parameters is what keeps the
  // Reducer from rebuilding.
  translate_failures("making the reducer", [&] {
    reducer_ = make_reducer(buffer_, communicator_, bucket_bytes, keep_bucket_order_);
    reducer_->register_comm_hook(std::make_unique<SummingHook>(
        communicator.process_group(), compressed_type(options.gradient_averaging.compression)));
  });
}

BucketedAverager::~BucketedAverager() = default;

void BucketedAverager::begin() {
  translate_failures("rebuilding buckets", [&] {
    if (!keep_bucket_order_) reducer_->rebuild_buckets();
    reducer_->prepare_for_forward();
  });
}

void BucketedAverager::backward(const at::Tensor& root, const at::Tensor& gradient, bool last) {
  // The Reducer sums what all batches have left in the parameters, so it is collected once.
  if (!last) return root.backward(gradient);
  const launch::WaitScope waiting(communicator_.status(), launch::Wait::kBackward);
  translate_failures("gradient averaging", [&] {
    std::vector<at::Tensor> of_step{statistics()};
    statistics_work_ = communicator_.process_group()->allreduce(of_step);
    reducer_->prepare_for_backward({root});
    root.backward(gradient);  // returns when all buckets are summed
  });
  buffer_.collect();
}

void BucketedAverager::average() {
  const launch::WaitScope waiting(communicator_.status(), launch::Wait::kAveraging);
  translate_failures("gradient averaging", [&] { statistics_work_->wait(); });
}

}  // namespace mnist_train::comm
