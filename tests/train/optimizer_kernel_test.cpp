#include "kernels/emulated_kernels.h"
#include "kernels/launch.h"
#include "support/catch.h"
#include "support/tiny_model.h"
#include "train/step.h"

namespace mnist_train::train {
namespace {

using settings::OptimizerName;

/// Leaves the gradients as they are, and updates a part of the weights.
class PartialAverager : public comm::GradientAverager {
 public:
  PartialAverager(comm::GradientBuffer buffer, comm::Slice slice)
      : GradientAverager(std::move(buffer)), slice_(slice) {}

  void average() override {}
  comm::Slice owned_slice() const override { return slice_; }
  const char* name() const override { return "partial"; }

 private:
  comm::Slice slice_;
};

struct KernelCase {
  OptimizerName optimizer;
  bool bf16;
  std::optional<double> max_norm;
  bool averages;
  comm::Slice slice;
};

/// All tensors that an optimizer's step changes.
struct Outcome {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  at::Tensor bf16_values;
};

std::shared_ptr<testing::TinyModel> model_in(bool bf16) {
  const at::NoGradGuard no_grad;
  auto model = testing::tiny_model(1, /*with_batch_norm=*/true);
  if (bf16) model->compute_in_bfloat16();
  return model;
}

at::Tensor pattern(const at::Tensor& like) {
  return at::arange(like.numel(), at::kFloat).mul(0.7).sin().abs().mul(0.01);
}

/// Takes a step, with state that earlier steps could have left.
Outcome outcome_of(const KernelCase& tried, const loader::Batch& batch) {
  settings::TrainOptions options;
  options.optimizer = tried.optimizer;
  options.sgd_momentum = 0.9;
  options.weight_decay = 0.01;
  options.max_gradient_norm = tried.max_norm;
  const auto master = model_in(false);
  const auto bf16_copy = tried.bf16 ? model_in(true) : nullptr;
  FlatParameters parameters(*master, StepLog::kScalars, bf16_copy.get());
  EmaModel average(*master, parameters, model_in(false));
  const comm::Communicator alone;
  const auto partition = make_batch_partition({}, alone, at::kCPU);
  PartialAverager averager(parameters.gradient_buffer(), tried.slice);
  Optimizer optimizer(options, parameters, tried.slice, tried.averages ? &average : nullptr);
  for (const OptimizerTensor& state : optimizer.state()) state.flat.copy_(pattern(state.flat));
  optimizer.restored(4);
  StepLog log(parameters.statistics(), parameters.shard_statistics(), alone, /*runs_ahead=*/false);
  Step step(options, tried.bf16 ? *bf16_copy : *master, parameters, *partition, averager, optimizer,
            log);
  step.begin(batch.size(), 1);
  step.add(batch);
  step.finish(at::tensor({0.1, 0.25}, at::kDouble));
  Outcome outcome{{{"weights", parameters.values()},
                   {"gradients", parameters.gradients()},
                   {"average", average.values()},
                   {"statistics", parameters.statistics()}},
                  parameters.bf16_values()};
  for (const OptimizerTensor& state : optimizer.state()) {
    outcome.tensors.emplace_back(state.name, state.flat);
  }
  for (const auto& item : average.model().named_buffers()) {
    outcome.tensors.emplace_back(item.key(), item.value());
  }
  return outcome;
}

void check(const KernelCase& tried) {
  CAPTURE(tried.optimizer, tried.bf16, tried.averages, tried.slice.begin);
  const loader::Batch batch{at::randn({6, 1, 16, 16}).to(tried.bf16 ? at::kBFloat16 : at::kFloat),
                            at::randint(0, 10, {6}, at::kLong)};
  const Outcome expected = outcome_of(tried, batch);
  Outcome own;
  {
    const EmulatedKernels emulated;
    own = outcome_of(tried, batch);
  }
  kernels::Agreement agreement;
  for (std::size_t i = 0; i < own.tensors.size(); ++i) {
    agreement.add(own.tensors[i].first.c_str(), own.tensors[i].second, expected.tensors[i].second,
                  at::kFloat);
  }
  CHECK(agreement.difference() == "");
  if (!tried.bf16) return;
  const std::int64_t copied = own.bf16_values.numel();
  CHECK(own.bf16_values.equal(own.tensors.front().second.narrow(0, 0, copied).to(at::kBFloat16)));
}

TEST_CASE("a step takes the kernel of the update as it takes LibTorch's operations") {
  const std::int64_t all = FlatParameters(*model_in(false), 0).values().numel();
  const auto optimizer = GENERATE(OptimizerName::kSgd, OptimizerName::kAdam, OptimizerName::kAdamW);
  for (const comm::Slice slice :
       {comm::Slice{0, all}, comm::Slice{7, 1000}, comm::Slice{all - 30, 30}}) {
    for (const bool bf16 : {false, true}) {
      check({optimizer, bf16, {}, /*averages=*/false, slice});
      check({optimizer, bf16, 0.5, /*averages=*/true, slice});
      check({optimizer, bf16, 1e6, /*averages=*/true, slice});
    }
  }
}

}  // namespace
}  // namespace mnist_train::train
