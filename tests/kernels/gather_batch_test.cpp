#include <ATen/ops/arange.h>
#include <ATen/ops/randint.h>
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

kernels::BatchSamples make_samples(const at::Tensor& rows, std::int64_t count, bool has_positions) {
  kernels::BatchSamples samples{count, rows, at::randint(100, {kSamples}, at::kLong),
                                at::randperm(kSamples, at::kLong)};
  samples.seeds = at::randint(1 << 30, {kSamples}, at::kLong);
  samples.first = 3;
  if (!has_positions) return samples;
  samples.positions = at::arange(4, 4 + count, at::kLong);
  samples.advance = 5;
  return samples;
}

at::Tensor sample_positions(const kernels::BatchSamples& samples) {
  if (samples.positions.defined()) return samples.positions.clone();
  return at::arange(samples.first, samples.first + samples.count, at::kLong);
}

void check_rows(const at::Tensor& rows, std::int64_t count, bool has_positions,
                at::Device device = at::kCPU) {
  const kernels::BatchSamples samples = make_samples(rows, count, has_positions);
  const at::Tensor positions = sample_positions(samples);
  const at::Tensor indices = samples.order.index_select(0, positions);
  kernels::BatchSamples device_samples = samples;
  for (at::Tensor* tensor : {&device_samples.rows, &device_samples.labels, &device_samples.order,
                             &device_samples.seeds, &device_samples.positions}) {
    *tensor = copy_to(device, *tensor);
  }
  kernels::GatheredRows gathered = kernels::gather_rows(device_samples);
  for (at::Tensor* tensor : {&gathered.images, &gathered.labels, &gathered.seeds}) {
    *tensor = accelerator::to_host(*tensor);
  }
  CAPTURE(rows.scalar_type(), rows.size(1), count, has_positions);
  CHECK(gathered.images.equal(rows.index_select(0, indices)));
  CHECK(gathered.labels.equal(samples.labels.index_select(0, indices)));
  CHECK(gathered.seeds.equal(samples.seeds.index_select(0, positions)));
  if (has_positions) CHECK(accelerator::to_host(device_samples.positions).equal(positions + 5));
}

TEST_CASE("the gather kernel copies rows of all types, sizes and alignments") {
  const EmulatedKernels emulated;
  const grid::ScopedOrder order(GENERATE(grid::Order::kForwards, grid::Order::kBackwards));
  torch::manual_seed(3);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kByte}) {
    for (const std::int64_t size : {1, 2, 6, 7, 105, 784, 4200}) {
      const at::Tensor rows = at::randint(256, {kSamples, size}, at::kFloat).to(type);
      for (const std::int64_t count : {0, 1, 17}) {
        check_rows(rows, count, /*has_positions=*/false);
        if (count > 0) check_rows(rows, count, /*has_positions=*/true);
      }
      const at::Tensor memory = at::randint(256, {kSamples * size + 1}, at::kFloat).to(type);
      check_rows(memory.narrow(0, 1, kSamples * size).view({kSamples, size}), 5, false);
    }
  }
}

TEST_CASE("the gather kernel copies rows on a GPU", "[gpu][kernels]") {
  if (!testing::have_gpu()) return;
  const GpuKernels gpu;
  for (const std::int64_t size : {7, 784}) {
    check_rows(at::randint(256, {kSamples, size}, at::kByte), 17, /*has_positions=*/true,
               kFirstGpu);
  }
}

const NormalizeOptions kOne{0.1307, 0.3081};

struct Case {
  AugmentList list;
  NormalizeOptions normalize;
  at::ScalarType type;
};

std::shared_ptr<loader::Augmenter> make_augmenter(const data::ImageSet& set, const Case& test) {
  if (test.list.empty()) return nullptr;
  return std::make_shared<loader::Augmenter>(test.list, ImageSize{set.height, set.width}, 1,
                                             at::kCPU);
}

std::unique_ptr<loader::BatchSource> make_source(const data::ImageSet& set, const Case& test) {
  auto source = loader::make_batch_source(set, test.normalize, at::kCPU, test.type,
                                          make_augmenter(set, test));
  source->draw_seeds(4);
  return source;
}

/// Returns a batch gathered without kernels; if `range` is empty, of the last samples as stored.
loader::Batch expected_batch(const data::ImageSet& set, const std::vector<std::int64_t>& order,
                             const Case& test, data::Range range) {
  const auto source = make_source(set, test);
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

/// Compares batches gathered by the kernel with those gathered by the host, bit for bit.
void check_source(const data::ImageSet& set, const Case& test) {
  const std::vector<std::int64_t> order = data::epoch_permutation(set.count, 1, 2);
  const loader::Batch first = expected_batch(set, order, test, {4, 13});
  const loader::Batch second = expected_batch(set, order, test, {13, 22});
  const loader::Batch last = expected_batch(set, order, test, {22, 23});
  const loader::Batch stored = expected_batch(set, order, test, {0, 0});
  const EmulatedKernels emulated;
  REQUIRE(kernels::are_used(at::kCPU));
  const auto source = make_source(set, test);
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

TEST_CASE("batches gathered by the kernel are bit-identical to the host's") {
  const data::ImageSet set = testing::small_images({.count = kSamples, .height = 9, .width = 7});
  const MixupOptions global{0.4, std::nullopt, settings::MixupScope::kGlobal};
  for (const AugmentList& list :
       {AugmentList{},
        AugmentList{RandomCropOptions{ImageSize{12, 9}, 4}, HorizontalFlipOptions{},
                    CutoutOptions{4}},
        AugmentList{settings::RotateOptions{20}, MixupOptions{}},
        AugmentList{HorizontalFlipOptions{}, settings::ResizeOptions{{5, 12}}},
        AugmentList{kOne, global}}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
      check_source(set, {list, kOne, type});
  }
}

}  // namespace
}  // namespace mnist_train
