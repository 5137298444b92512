#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/agreement.h"
#include "kernels/emulated_kernels.h"
#include "kernels/operations.h"
#include "support/catch.h"
#include "support/gpu.h"
#include "support/grid/order.h"

using namespace mnist_train;

namespace {

constexpr double kLearningRate = 0.125;

enum class Name { kSgd, kMomentum, kNesterov, kAdam, kAdamW, kMemoryless };
constexpr auto kNames = {Name::kSgd,  Name::kMomentum, Name::kNesterov,
                         Name::kAdam, Name::kAdamW,    Name::kMemoryless};

struct UpdateCase {
  Name name;
  std::int64_t count;
  std::int64_t offset;  // of the first element in each buffer
  double weight_decay;
  std::int64_t copy_count;  // number of elements copied to bf16
  double average_weight;
  at::Device device = at::kCPU;
};

/// Returns a view that begins at element `offset` of a buffer of NaNs on the device.
at::Tensor guarded_view(const at::Tensor& values, const UpdateCase& test,
                        at::ScalarType type = at::kFloat) {
  const at::Tensor buffer =
      at::full({values.numel() + test.offset + 8}, std::numeric_limits<double>::quiet_NaN(), type);
  buffer.narrow(0, test.offset, values.numel()).copy_(values);
  return copy_to(test.device, buffer).narrow(0, test.offset, values.numel());
}

/// Returns whether nothing was written outside the view, which `guarded_view` must have returned.
bool guards_intact(const at::Tensor& view) {
  if (!view.defined()) return true;
  const std::int64_t elements = static_cast<std::int64_t>(view.storage().nbytes()) /
                                static_cast<std::int64_t>(view.element_size());
  const at::Tensor all = accelerator::to_host(view.as_strided({elements}, {1}, 0));
  return all.isnan().sum().item<std::int64_t>() == elements - view.numel();
}

/// An optimizer's update rule, and LibTorch's implementation of it in fp64.
class Subject {
 public:
  explicit Subject(const UpdateCase& test) : test_(test) {
    if (test.name == Name::kSgd) rule_ = kernels::SgdRule{0, test.weight_decay, false, {}};
    if (test.name == Name::kMomentum || test.name == Name::kNesterov) {
      rule_ = kernels::SgdRule{0.9, test.weight_decay, test.name == Name::kNesterov, first()};
    }
    if (test.name >= Name::kAdam) {
      second_ = at::rand({test.count}, at::kDouble) + 0.1;
      const bool has_memory = test.name != Name::kMemoryless;
      rule_ = kernels::AdamRule{has_memory ? 0.9 : 0,
                                has_memory ? 0.999 : 0,
                                1e-8,
                                test.weight_decay,
                                test.name == Name::kAdamW,
                                first(),
                                guarded_view(second_, test),
                                copy_to(test.device, at::zeros({}))};
    }
  }

  const kernels::UpdateRule& rule() const { return rule_; }

  void step(const at::Tensor& values, const at::Tensor& gradients) {
    if (const auto* sgd = std::get_if<kernels::SgdRule>(&rule_)) {
      std::vector<at::Tensor> buffers;
      if (first_.defined()) buffers.push_back(first_);
      at::_fused_sgd_({values}, {gradients}, buffers, sgd->weight_decay, sgd->momentum,
                      kLearningRate, 0, sgd->nesterov, false, false);
      return;
    }
    const auto& adam = std::get<kernels::AdamRule>(rule_);
    const auto take = [&](const auto& kernel) {
      kernel(at::TensorList(values), at::TensorList(gradients), at::TensorList(first_),
             at::TensorList(second_), at::TensorList(), at::TensorList(steps_.add_(1)),
             kLearningRate, adam.beta1, adam.beta2, adam.weight_decay, adam.epsilon, false, false);
    };
    if (adam.decoupled) {
      take([](auto&&... arguments) { at::_fused_adamw_(arguments...); });
    } else {
      take([](auto&&... arguments) { at::_fused_adam_(arguments...); });
    }
  }

  void compare(Agreement& agreement) const {
    if (const auto* sgd = std::get_if<kernels::SgdRule>(&rule_)) {
      CHECK(guards_intact(sgd->momentum_buffer));
      if (first_.defined()) agreement.add("buffer", sgd->momentum_buffer, first_, at::kFloat);
      return;
    }
    const auto& adam = std::get<kernels::AdamRule>(rule_);
    CHECK((guards_intact(adam.average) && guards_intact(adam.square_average)));
    agreement.add("average", adam.average, first_, at::kFloat);
    agreement.add("square average", adam.square_average, second_, at::kFloat);
    CHECK(accelerator::to_host(adam.steps).item<float>() == steps_.item<float>());
  }

 private:
  at::Tensor first() {
    first_ = at::randn({test_.count}, at::kDouble) * 0.1;
    return guarded_view(first_, test_);
  }

  UpdateCase test_;
  kernels::UpdateRule rule_;
  at::Tensor first_;
  at::Tensor second_;
  at::Tensor steps_ = at::zeros({});
};

/// Compares the results of some steps of the kernels with those of LibTorch.
void check_update(const UpdateCase& test, int steps = 3) {
  CAPTURE(test.name, test.count, test.offset, test.weight_decay, test.copy_count,
          test.average_weight);
  Subject subject(test);
  at::Tensor values = at::randn({test.count}, at::kDouble);
  at::Tensor average = at::randn({test.count}, at::kDouble);
  kernels::WeightUpdate update;
  update.values = guarded_view(values, test);
  update.learning_rate = copy_to(test.device, at::scalar_tensor(kLearningRate));
  update.average_weight = copy_to(test.device, at::scalar_tensor(test.average_weight));
  if (test.average_weight > 0) update.average = guarded_view(average, test);
  if (test.copy_count > 0) {
    update.bf16_copy = guarded_view(at::zeros({test.copy_count}), test, at::kBFloat16);
  }
  Agreement agreement;
  for (int step = 0; step < steps; ++step) {
    const at::Tensor gradients = at::randn({test.count}, at::kDouble);
    update.gradients = guarded_view(gradients, test);
    kernels::update_weights(update, subject.rule());
    subject.step(values, gradients);
    average.lerp_(values, test.average_weight);
    agreement.add("values", update.values, values, at::kFloat);
    if (update.average.defined()) {
      agreement.add("average of values", update.average, average, at::kFloat);
    }
    if (update.bf16_copy.defined()) {
      const at::Tensor copied = accelerator::to_host(update.values).narrow(0, 0, test.copy_count);
      CHECK(accelerator::to_host(update.bf16_copy).equal(copied.to(at::kBFloat16)));
    }
    subject.compare(agreement);
  }
  CHECK(agreement.difference() == "");
  CHECK((guards_intact(update.values) && guards_intact(update.gradients) &&
         guards_intact(update.average) && guards_intact(update.bf16_copy)));
}

void check_updates(at::Device device) {
  torch::manual_seed(5);
  for (const Name name : kNames) {
    for (const std::int64_t count : {4, 8, 260, 1024, 3004}) {
      for (const std::int64_t offset : {0, 4}) {
        check_update({name, count, offset, /*weight_decay=*/0, /*copy_count=*/0, 0, device});
        check_update({name, count, offset, 0.01, count / 8 * 4, 0.001, device});
        check_update({name, count, offset, 0.01, count, 0.75, device});
      }
    }
  }
}

}  // namespace

TEST_CASE("weight update kernels match LibTorch") {
  const EmulatedKernels emulated;
  const grid::ScopedOrder order(GENERATE(grid::Order::kForwards, grid::Order::kBackwards));
  check_updates(at::kCPU);
}

TEST_CASE("weight update kernels match LibTorch on a GPU", "[gpu][kernels]") {
  if (!testing::have_gpu()) return;
  const GpuKernels gpu;
  check_updates(kFirstGpu);
}

TEST_CASE("if there are many weights, each thread updates several") {
  const EmulatedKernels emulated;
  torch::manual_seed(5);
  check_update({Name::kNesterov, 1'060'004, /*offset=*/0, 0.01, 600'004, 0.01}, /*steps=*/1);
  check_update({Name::kAdamW, 270'004, /*offset=*/4, 0.01, 150'004, 0.01}, /*steps=*/1);
}

TEST_CASE("weight update kernels detect an update that is not finite") {
  const EmulatedKernels emulated;
  const kernels::UpdateRule rule =
      GENERATE(kernels::UpdateRule(kernels::SgdRule{}),
               kernels::UpdateRule(kernels::AdamRule{0.9, 0.999, 1e-8, 0, false, at::zeros({1004}),
                                                     at::zeros({1004}), at::zeros({})}));
  kernels::WeightUpdate update;
  update.values = at::zeros({1004});
  update.gradients = at::ones({1004});
  update.learning_rate = at::scalar_tensor(0.5);
  update.check = at::scalar_tensor(2.0);
  kernels::update_weights(update, rule);
  CHECK(update.check.item<float>() == 2);
  const at::Tensor before = update.values.clone();
  for (const std::int64_t broken : {7, 1000}) {
    update.gradients[broken] = std::numeric_limits<float>::infinity();
    kernels::update_weights(update, rule);
    CHECK(std::isnan(update.check.item<float>()));
    update.check.fill_(2);
    update.gradients.fill_(1);
    update.values.copy_(before);
    if (const auto* adam = std::get_if<kernels::AdamRule>(&rule)) {
      adam->average.zero_();
      adam->square_average.zero_();
    }
  }
}

TEST_CASE("Adam's bias correction stays accurate after many steps") {
  const EmulatedKernels emulated;
  const at::Tensor value = at::zeros({4});
  const at::Tensor steps = at::scalar_tensor(4999.0);
  kernels::update_weights(
      {value, at::ones({4}), at::scalar_tensor(1.0), {}, {}, {}},
      kernels::AdamRule{0.9, 0.999, 0, 0, false, at::zeros({4}), at::zeros({4}), steps});
  CHECK(steps.item<float>() == 5000);
  const double expected = 0.1 / (std::sqrt(0.001) / std::sqrt(1 - std::pow(0.999, 5000)));
  CHECK(value[3].item<double>() == Approx(-expected).epsilon(1e-5));
}
