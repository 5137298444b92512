// Batches that the kernels make, beside those that the loader makes by LibTorch's operations.

#include <ATen/ops/arange.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randperm.h>
#include <torch/utils.h>

#include <optional>
#include <vector>

#include "kernels/agreement.h"
#include "kernels/emulated_kernels.h"
#include "kernels/operations.h"
#include "loader/augmenter.h"
#include "loader/batch_source.h"
#include "support/catch.h"
#include "support/gpu.h"
#include "support/grid/order.h"
#include "support/small_images.h"

namespace mnist_train {
namespace {

using settings::AugmentList;
using settings::CutoutOptions;
using settings::HorizontalFlipOptions;
using settings::ImageSize;
using settings::MixupOptions;
using settings::NormalizeOptions;
using settings::RandomCropOptions;

constexpr std::int64_t kSamples = 23;

kernels::BatchSamples samples_of(const at::Tensor& rows, std::int64_t count, bool at_positions) {
  kernels::BatchSamples samples{count, rows, at::randint(100, {kSamples}, at::kLong)};
  samples.order = at::randperm(kSamples, at::kLong);
  samples.seeds = at::randint(1 << 30, {kSamples}, at::kLong);
  samples.first = 3;
  if (!at_positions) return samples;
  samples.positions = at::arange(4, 4 + count, at::kLong);
  samples.advance = 5;
  return samples;
}

at::Tensor positions_of(const kernels::BatchSamples& samples) {
  if (samples.positions.defined()) return samples.positions.narrow(0, 0, samples.count).clone();
  return at::arange(samples.first, samples.first + samples.count, at::kLong);
}

void check_rows(const at::Tensor& rows, std::int64_t count, bool at_positions,
                at::Device device = at::kCPU) {
  const kernels::BatchSamples samples = samples_of(rows, count, at_positions);
  const at::Tensor positions = positions_of(samples);
  const at::Tensor chosen = samples.order.index_select(0, positions);
  kernels::BatchSamples here = samples;
  for (at::Tensor* tensor : {&here.rows, &here.labels, &here.order, &here.seeds, &here.positions}) {
    *tensor = on(device, *tensor);
  }
  kernels::MadeBatch made = kernels::gather_rows(here);
  for (at::Tensor* tensor : {&made.images, &made.labels, &made.seeds}) {
    *tensor = accelerator::to_host(*tensor);
  }
  CAPTURE(rows.scalar_type(), rows.size(1), count, at_positions);
  CHECK(made.images.equal(rows.index_select(0, chosen)));
  CHECK(made.labels.equal(samples.labels.index_select(0, chosen)));
  CHECK(made.seeds.equal(samples.seeds.index_select(0, positions)));
  CHECK_FALSE(made.weights.defined());
  if (at_positions) CHECK(accelerator::to_host(here.positions).equal(positions + 5));
}

TEST_CASE("rows of all types, sizes and alignments are copied") {
  const EmulatedKernels emulated;
  const grid::ScopedOrder order(GENERATE(grid::Order::kForwards, grid::Order::kBackwards));
  torch::manual_seed(3);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kByte}) {
    for (const std::int64_t size : {1, 2, 6, 7, 105, 784, 4200}) {
      const at::Tensor rows = at::randint(256, {kSamples, size}, at::kFloat).to(type);
      for (const std::int64_t count : {0, 1, 17}) {
        check_rows(rows, count, /*at_positions=*/false);
        if (count > 0) check_rows(rows, count, /*at_positions=*/true);
      }
      const at::Tensor memory = at::randint(256, {kSamples * size + 1}, at::kFloat).to(type);
      check_rows(memory.narrow(0, 1, kSamples * size).view({kSamples, size}), 5, false);
    }
  }
}

TEST_CASE("rows are copied on a GPU", "[gpu][kernels]") {
  if (!testing::have_gpu()) return;
  const GpuKernels gpu;
  for (const std::int64_t size : {7, 784}) {
    check_rows(at::randint(256, {kSamples, size}, at::kByte), 17, /*at_positions=*/true, kFirstGpu);
  }
}

TEST_CASE("samples as they are stored need no order, and no seeds") {
  const EmulatedKernels emulated;
  const at::Tensor rows = at::randn({kSamples, 12});
  kernels::BatchSamples samples{6, rows, at::arange(kSamples, at::kLong)};
  samples.first = 17;
  const kernels::MadeBatch made = kernels::gather_rows(samples);
  CHECK(made.images.equal(rows.narrow(0, 17, 6)));
  CHECK(made.labels.equal(at::arange(17, 23, at::kLong)));
  CHECK_FALSE(made.seeds.defined());
}

const NormalizeOptions kOne{0.1307, 0.3081};
const NormalizeOptions kThree{std::vector<double>{0.4914, 0.4822, 0.4465},
                              std::vector<double>{0.2470, 0.2435, 0.2616}};

/// Lists of which the kernel makes batches, for images of 9 times 7 pixels.
std::vector<AugmentList> lists() {
  const RandomCropOptions pad{std::nullopt, 3};
  const RandomCropOptions cut{ImageSize{5, 6}, 1};
  const RandomCropOptions grow{ImageSize{12, 9}, 4};
  const HorizontalFlipOptions flip;
  const CutoutOptions small{4};
  const CutoutOptions large{25};
  const MixupOptions mixup{0.4, std::nullopt, {}};
  const MixupOptions uneven{std::nullopt, 0.3, {}};
  return {{flip},
          {pad, flip},
          {cut},
          {grow, flip, small},
          {flip, cut, HorizontalFlipOptions{1}, small, pad},
          {large},
          {kOne},
          {pad, kOne, small, pad},
          {small, kOne, grow},
          {mixup},
          {pad, flip, mixup},
          {pad, flip, uneven, kOne},
          {pad, kOne, flip, mixup},
          {kOne, small, mixup},
          {mixup, pad, flip, small},
          {cut, uneven, flip, grow, kOne, small},
          {cut, kOne, pad, mixup, flip, small}};
}

struct Case {
  AugmentList list;
  NormalizeOptions normalize;
  at::ScalarType type;
};

std::shared_ptr<loader::Augmenter> augmenter_of(const data::ImageSet& set, const Case& tried) {
  if (tried.list.empty()) return nullptr;
  return std::make_shared<loader::Augmenter>(tried.list, ImageSize{set.height, set.width}, 1,
                                             at::kCPU);
}

std::unique_ptr<loader::BatchSource> source_of(const data::ImageSet& set, const Case& tried) {
  auto source = loader::make_batch_source(set, tried.normalize, at::kCPU, tried.type,
                                          augmenter_of(set, tried));
  source->draw_seeds(4);
  return source;
}

/// What CPUs make without kernels; nothing in the range: of the last samples, as they are stored.
loader::Batch expected_of(const data::ImageSet& set, const std::vector<std::int64_t>& order,
                          const Case& tried, data::Range range) {
  const auto source = source_of(set, tried);
  source->set_order(order, 2);
  loader::Batch batch = range.size() > 0
                            ? source->gather({range})
                            : source->gather({{15, set.count}, loader::Order::kStored});
  batch.images = batch.images.clone();
  return batch;
}

void check_equal(const loader::Batch& batch, const loader::Batch& expected) {
  CHECK(batch.images.scalar_type() == expected.images.scalar_type());
  CHECK(batch.images.strides() == expected.images.strides());
  CHECK(batch.images.equal(expected.images));
  CHECK(batch.labels.equal(expected.labels));
  REQUIRE(batch.seeds.defined() == expected.seeds.defined());
  if (batch.seeds.defined()) CHECK(batch.seeds.equal(expected.seeds));
  REQUIRE(batch.is_mixed() == expected.is_mixed());
  if (!batch.is_mixed()) return;
  CHECK(batch.other_labels.equal(expected.other_labels));
  CHECK(batch.weights.equal(expected.weights));
}

/// Compares sources that take their batches from kernels with those of CPUs, to the bit.
void check_source(const data::ImageSet& set, const Case& tried) {
  const std::vector<std::int64_t> order = data::epoch_permutation(set.count, 1, 2);
  const loader::Batch first = expected_of(set, order, tried, {4, 13});
  const loader::Batch second = expected_of(set, order, tried, {13, 22});
  const loader::Batch last = expected_of(set, order, tried, {22, 23});
  const loader::Batch stored = expected_of(set, order, tried, {0, 0});
  const EmulatedKernels emulated;
  REQUIRE(kernels::are_used(at::kCPU));
  const auto source = source_of(set, tried);
  for (const std::int64_t epoch : {0, 2}) source->set_order(order, epoch);
  check_equal(source->gather({{4, 13}}), first);
  check_equal(source->gather({{22, 23}}), last);
  CHECK(source->gather({{7, 7}}).size() == 0);
  check_equal(source->gather({{15, set.count}, loader::Order::kStored}), stored);
  const at::Tensor positions = at::arange(4, 13 + source->samples_beyond(), at::kLong);
  check_equal(source->gather({.positions = positions, .advance = 9}), first);
  check_equal(source->gather({.positions = positions}), second);
  CHECK(positions.equal(at::arange(13, 22 + source->samples_beyond(), at::kLong)));
}

TEST_CASE(
    "batches that kernels augment, mix and normalise have the bits of LibTorch's operations") {
  const grid::ScopedOrder order(GENERATE(grid::Order::kForwards, grid::Order::kBackwards));
  for (const std::int64_t channels : {1, 3}) {
    const data::ImageSet set =
        testing::small_images({.count = kSamples, .channels = channels, .height = 9, .width = 7});
    for (const AugmentList& list : lists()) {
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        CAPTURE(channels, type);
        const Case tried{list, channels == 3 ? kThree : kOne, type};
        for (const auto& entry : list) UNSCOPED_INFO(settings::name_of(entry));
        REQUIRE(augmenter_of(set, tried)->pixel_map(tried.normalize));
        check_source(set, tried);
      }
    }
  }
}

TEST_CASE("images that the kernels do not augment have the same bits, too") {
  const data::ImageSet set = testing::small_images({.count = kSamples, .height = 9, .width = 7});
  const settings::MixupOptions global{0.4, std::nullopt, settings::MixupScope::kGlobal};
  for (const AugmentList& list :
       {AugmentList{}, AugmentList{settings::RotateOptions{20}, MixupOptions{}},
        AugmentList{HorizontalFlipOptions{}, settings::ResizeOptions{{5, 12}}},
        AugmentList{kOne, global}}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const Case tried{list, kOne, type};
      if (!list.empty()) CHECK_FALSE(augmenter_of(set, tried)->pixel_map(kOne));
      check_source(set, tried);
    }
  }
}

TEST_CASE("a large image is made by several blocks") {
  const data::ImageSet set =
      testing::small_images({.count = kSamples, .channels = 3, .height = 33, .width = 40});
  check_source(set, {lists()[3], kThree, at::kBFloat16});
  check_source(set, {lists()[10], kOne, at::kFloat});
}

}  // namespace
}  // namespace mnist_train
