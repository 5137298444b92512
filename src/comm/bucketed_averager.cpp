#include "comm/bucketed_averager.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>

#include <algorithm>
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

/// Returns a bucket's tensors, which lie there one behind the other, each laid out like its view.
std::vector<at::Tensor> tensors_in(const at::Tensor& bucket, const std::vector<at::Tensor>& views) {
  std::vector<at::Tensor> tensors;
  std::int64_t begin = bucket.storage_offset();
  for (const at::Tensor& view : views) {
    tensors.push_back(bucket.as_strided(view.sizes(), view.strides(), begin));
    begin += view.numel();
  }
  return tensors;
}

}  // namespace

/// Hands buckets to the averager. The Reducer's own hooks divide by the number of ranks, by which
/// losses would have to be multiplied first.
class BucketedAverager::Hook : public c10d::CommHookInterface {
 public:
  explicit Hook(BucketedAverager& averager) : averager_(averager) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    return averager_.all_reduce(bucket);
  }
  at::Tensor parseHookResult(const c10::IValue& result) override {
    return c10d::detail::parseCppCommHookResult(result);
  }

 private:
  BucketedAverager& averager_;
};

BucketedAverager::BucketedAverager(const settings::TrainOptions& options,
                                   const Communicator& communicator, GradientBuffer buffer)
    : GradientAverager(std::move(buffer)),
      communicator_(communicator),
      keep_bucket_order_(options.deterministic),
      sent_type_(compressed_type(options.gradient_averaging.compression)) {
  for (std::size_t i = 0; i < buffer_.views.size(); ++i) {
    views_[buffer_.parameters[i].unsafeGetTensorImpl()] = buffer_.views[i];
  }
  const auto bucket_bytes =
      static_cast<std::int64_t>(options.gradient_averaging.bucket_mb * 1024 * 1024);
  // Buckets that are rebuilt after the first step add in another order than before it, and a
  // resumed run has its first step elsewhere. Looking for unused parameters is what keeps the
  // Reducer from rebuilding.
  translate_failures("making the reducer", [&] {
    reducer_ = make_reducer(buffer_, communicator_, bucket_bytes, keep_bucket_order_);
    reducer_->register_comm_hook(std::make_unique<Hook>(*this));
  });
}

BucketedAverager::~BucketedAverager() = default;

void BucketedAverager::begin() {
  GradientAverager::begin();
  adds_ = false;
  translate_failures("rebuilding buckets", [&] {
    if (!keep_bucket_order_) reducer_->rebuild_buckets();
    reducer_->prepare_for_forward();
  });
}

void BucketedAverager::backward(const at::Tensor& root, const at::Tensor& gradient, bool last) {
  if (!last) {
    GradientAverager::backward(root, gradient, last);
    adds_ = true;
    return;
  }
  const launch::WaitScope waiting(communicator_.status(), launch::Wait::kBackward);
  translate_failures("gradient averaging", [&] {
    std::vector<at::Tensor> of_step{statistics()};
    statistics_work_ = communicator_.process_group()->allreduce(of_step);
    reducer_->prepare_for_backward({root});
    root.backward(gradient);  // returns when all buckets are summed
  });
  take_sums();
}

/// Sums the gradients of a bucket over all batches of the step and all ranks. The Reducer then
/// copies them, rounded, to the gradients that backward made, which are dropped.
c10::intrusive_ptr<c10::ivalue::Future> BucketedAverager::all_reduce(c10d::GradBucket& bucket) {
  std::vector<at::Tensor> views;
  for (const at::Tensor& parameter : bucket.getParameters()) {
    views.push_back(views_.at(parameter.unsafeGetTensorImpl()));
  }
  const at::Tensor sums = bucket.getBufferRef().to(at::kFloat);
  if (adds_) at::_foreach_add_(tensors_in(sums, views), views);
  std::vector<at::Tensor> sent{sent_type_ ? sums.to(*sent_type_) : sums};
  bucket_sums_.push_back({sent.front(), std::move(views)});
  return communicator_.process_group()->allreduce(sent)->getFuture();
}

/// Moves the sums to the flat gradients. Only a parameter that backward did not come to is left
/// without a gradient, which collecting them finds out.
void BucketedAverager::take_sums() {
  const at::NoGradGuard no_grad;
  for (const auto& [summed, views] : bucket_sums_) {
    at::_foreach_copy_(views, tensors_in(summed, views));
  }
  bucket_sums_.clear();
  for (std::size_t i = 0; i < buffer_.parameters.size(); ++i) {
    at::Tensor& gradient = buffer_.parameters[i].mutable_grad();
    if (gradient.defined()) gradient = buffer_.views[i];
  }
  buffer_.collect();
}

void BucketedAverager::average() {
  const launch::WaitScope waiting(communicator_.status(), launch::Wait::kAveraging);
  translate_failures("gradient averaging", [&] { statistics_work_->wait(); });
}

}  // namespace mnist_train::comm
