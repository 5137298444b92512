#include "train/flat_parameters.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace mnist_train::train {

namespace {

std::vector<std::int64_t> dense_strides(at::IntArrayRef sizes, at::MemoryFormat format) {
  // [out, in, height, width] -> channels_last, even with one input channel.
  if (sizes.size() == 4 && format == at::MemoryFormat::ChannelsLast) {
    return c10::get_channels_last_strides_2d(sizes);
  }
  const auto strides = c10::contiguous_strides(sizes);
  return {strides.begin(), strides.end()};
}

// Alignment of parameters in elements, padded with zeros. The fastest bf16 matrix products and
// convolutions on GPUs need an alignment of 16 bytes.
constexpr std::int64_t kAlignment = 8;
constexpr std::int64_t kRowAlignment = 16;  // elements: a cache line

}  // namespace

FlatParameters::FlatParameters(models::Model& module, std::int64_t statistics,
                               torch::nn::Module* bf16_copy, ShardLayout layout,
                               std::vector<settings::ParameterSettings> kinds)
    : names_(module.named_parameters().keys()),
      parameters_(bf16_copy != nullptr ? bf16_copy->parameters() : module.parameters()),
      tree_(std::move(layout.tree)),
      leaves_(tree_.leaves(layout.rank)) {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> masters = module.parameters();
  kinds.resize(masters.size());
  const std::size_t trained = freeze(masters, kinds);
  std::int64_t bf16_total = 0;
  const std::int64_t all = lay_out(kinds, module.memory_format(), bf16_total);
  const std::int64_t total = spans_.back().slice.begin + spans_.back().slice.size;
  const at::TensorOptions options = masters.front().options().requires_grad(false);
  weights_ = at::zeros({all}, options);
  values_ = weights_.narrow(0, 0, total);
  const std::int64_t used = total + statistics;
  const std::int64_t row_size = (used + kRowAlignment - 1) / kRowAlignment * kRowAlignment;
  rows_ = at::zeros({static_cast<std::int64_t>(tree_.rows()), row_size}, options);
  for (const at::Tensor& row : rows_.unbind()) used_rows_.push_back(row.narrow(0, 0, used));
  gradients_ = used_rows_.front().narrow(0, 0, total);
  statistics_ = used_rows_.front().narrow(0, total, statistics);
  shard_statistics_ = shards() == 1 ? statistics_ : at::zeros({statistics}, options);
  gradient_views_.resize(used_rows_.size());
  bf16_values_ = at::zeros({bf16_total}, options.dtype(at::kBFloat16));
  if (bf16_total > 0 && layout.keeps_precision) {
    bf16_rows_ = at::zeros({rows_.size(0), bf16_total}, bf16_values_.options());
  }
  for (std::size_t i = 0; i < masters.size(); ++i) {
    const at::Tensor value = view(weights_, layouts_[i]);
    value.copy_(masters[i]);
    masters[i].set_data(value);
    const bool is_shared = bf16_copy == nullptr || parameters_[i].scalar_type() == at::kFloat;
    if (i >= trained) {
      parameters_[i].set_data(is_shared ? value : at::empty_like(value, at::kBFloat16));
      if (!is_shared) frozen_copies_.push_back({parameters_[i], value});
      continue;
    }
    parameters_[i].set_data(is_shared ? value : view(bf16_values_, layouts_[i]));
    const bool stays_bf16 = bf16_rows_.defined() && !is_shared;
    for (std::size_t row = 0; row < used_rows_.size(); ++row) {
      const at::Tensor& collected =
          stays_bf16 ? bf16_rows_.select(0, static_cast<std::int64_t>(row)) : used_rows_[row];
      gradient_views_[row].push_back(view(collected, layouts_[i]));
    }
  }
  names_.resize(trained);
  parameters_.resize(trained);
  if (bf16_copy == nullptr) return;
  std::vector<at::Tensor> buffers = bf16_copy->buffers();
  const std::vector<at::Tensor> master_buffers = module.buffers();
  for (std::size_t i = 0; i < buffers.size(); ++i) buffers[i].set_data(master_buffers[i]);
  refresh_bf16_copy();
}

/// Sets which parameters require gradients, and reorders them so that frozen ones come last.
/// Returns the number of trained parameters.
std::size_t FlatParameters::freeze(std::vector<at::Tensor>& masters,
                                   std::vector<settings::ParameterSettings>& kinds) {
  std::vector<std::size_t> order(masters.size());
  std::iota(order.begin(), order.end(), 0);
  const auto frozen = std::stable_partition(order.begin(), order.end(),
                                            [&](std::size_t i) { return !kinds[i].frozen; });
  for (std::size_t i = 0; i < masters.size(); ++i) {
    masters[i].set_requires_grad(!kinds[i].frozen);
    parameters_[i].set_requires_grad(!kinds[i].frozen);
  }
  const auto reorder = [&](auto& list) {
    auto before = list;
    for (std::size_t i = 0; i < order.size(); ++i) list[i] = before[order[i]];
  };
  reorder(names_);
  reorder(parameters_);
  reorder(masters);
  reorder(kinds);
  return static_cast<std::size_t>(frozen - order.begin());
}

/// Lays out bf16 parameters before fp32 ones, both grouped by settings, and frozen ones last.
/// Returns the total number of elements.
std::int64_t FlatParameters::lay_out(const std::vector<settings::ParameterSettings>& kinds,
                                     at::MemoryFormat format, std::int64_t& bf16_total) {
  std::vector<settings::ParameterSettings> distinct;
  for (const settings::ParameterSettings& each : kinds) {
    if (std::ranges::find(distinct, each) == distinct.end()) distinct.push_back(each);
  }
  layouts_.resize(parameters_.size());
  std::int64_t total = 0;
  const auto add = [&](std::size_t i) {
    const at::IntArrayRef sizes = parameters_[i].sizes();
    layouts_[i] = {total, sizes.vec(), dense_strides(sizes, format)};
    const std::int64_t size = (parameters_[i].numel() + kAlignment - 1) / kAlignment * kAlignment;
    total += size;
    return size;
  };
  for (const bool bf16 : {true, false}) {
    for (const settings::ParameterSettings& kind : distinct) {
      for (std::size_t i = 0; i < parameters_.size(); ++i) {
        const bool is_bf16 = parameters_[i].scalar_type() == at::kBFloat16;
        if (is_bf16 != bf16 || kind.frozen || kinds[i] != kind) continue;
        if (spans_.empty() || spans_.back().kind != kind) spans_.push_back({{total, 0}, kind});
        spans_.back().slice.size += add(i);
      }
    }
    if (bf16) bf16_total = total;
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (kinds[i].frozen) add(i);
  }
  return total;
}

comm::GradientBuffer FlatParameters::gradient_buffer() const {
  return {parameters_,         rows_, used_rows_.front(),     bf16_rows_,
          statistics_.numel(), tree_, gradient_views_.front()};
}

void FlatParameters::begin_shard(std::size_t number) {
  for (const at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
  shard_ = number;
  accumulating_ = false;
}

void FlatParameters::set_destinations(models::GradientDestinations& destinations) const {
  if (!values_.is_cpu()) return;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& view = shard_views()[i];
    const bool fits = view.scalar_type() == parameters_[i].scalar_type();
    destinations.set(parameters_[i], fits ? view : at::Tensor());
  }
}

void FlatParameters::collect_gradients() {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  gradients.reserve(parameters_.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    gradients.push_back(std::move(parameters_[i].mutable_grad()));
    if (gradients.back().defined()) continue;
    throw Error(
        ExitCode::kRunFailed,
        "parameter " + names_[i] +
            " receives no gradient: the output must depend on every trained parameter; freeze "
            "it by an entry of parameters: {\"match\": \"" +
            names_[i] + "\", \"frozen\": true}");
  }
  collect(gradients, at::kBFloat16);
  collect(gradients, at::kFloat);
  accumulating_ = true;
}

void FlatParameters::end_shard(std::size_t number) {
  const c10::NoGradGuard no_grad;
  const comm::SummationTree::Leaf& leaf = leaves_[number];
  if (shards() > 1) {
    const std::int64_t count = statistics_.numel();
    used_rows_[leaf.row].narrow(0, gradients_.numel(), count).copy_(shard_statistics_);
  }
  for (const comm::RowSum& sum : leaf.sums) used_rows_[sum.to].add_(used_rows_[sum.from]);
}

/// Copies the gradients of one type into the flat gradients or, in later batches of a shard, adds
/// them. Handles one type at a time because, with mixed types, a GPU would need one launch per
/// tensor instead of one for all. Skips gradients that a layer wrote to its destination buffer.
void FlatParameters::collect(const std::vector<at::Tensor>& gradients, at::ScalarType type) {
  std::vector<at::Tensor> from;
  std::vector<at::Tensor> to;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const at::Tensor& view = shard_views()[i];
    if (gradients[i].scalar_type() != type) continue;
    if (gradients[i].const_data_ptr() == view.const_data_ptr()) continue;
    from.push_back(gradients[i]);
    to.push_back(view);
  }
  if (from.empty()) return;
  if (accumulating_) {
    at::_foreach_add_(to, from);
  } else {
    at::_foreach_copy_(to, from);
  }
}

at::Tensor FlatParameters::bf16_values_of(comm::Slice slice) const {
  const std::int64_t begin = std::min(slice.begin, bf16_values_.numel());
  return bf16_values_.narrow(0, begin, std::min(slice.size, bf16_values_.numel() - begin));
}

void FlatParameters::refresh_bf16_copy() const {
  const c10::NoGradGuard no_grad;
  bf16_values_.copy_(values_.narrow(0, 0, bf16_values_.numel()));
  for (const auto& [copy, value] : frozen_copies_) copy.copy_(value);
}

at::Tensor FlatParameters::view(const at::Tensor& flat, const Layout& layout) {
  return flat.as_strided(layout.sizes, layout.strides, flat.storage_offset() + layout.offset);
}

}  // namespace mnist_train::train
