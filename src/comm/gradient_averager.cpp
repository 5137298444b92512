#include "comm/gradient_averager.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <unordered_map>

#include "base/cpu.h"
#include "base/parallel.h"
#include "base/print.h"

namespace mnist_train::comm {

namespace {

using settings::AveragingStrategy;

constexpr std::int64_t kMinOverlap_bytes = 25 << 20;
constexpr std::int64_t kMinWork = 32 * DeferredSum::kBlock;  // elements per parallel part

/// Returns the first shard of the right half of a node.
std::int64_t middle_of(std::int64_t begin, std::int64_t end) {
  return begin +
         static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(end - begin - 1)));
}

/// Returns a block of the row: in place if it is all fp32, otherwise as a copy in `block`.
const float* read(const GradientRow& row, std::int64_t begin, std::int64_t count, float* block) {
  const std::int64_t bf16_count = row.bf16.defined() ? row.bf16.numel() : 0;
  const std::int64_t head = std::clamp<std::int64_t>(bf16_count - begin, 0, count);
  const float* const tail =
      head == count ? nullptr : row.f32.const_data_ptr<float>() + (begin + head - bf16_count);
  if (head == 0) return tail;
  bf16_to_float(static_cast<const std::uint16_t*>(row.bf16.const_data_ptr()) + begin, head, block);
  if (tail != nullptr) {
    std::memcpy(block + head, tail, sizeof(float) * static_cast<std::size_t>(count - head));
  }
  return block;
}

/// The averager for a single rank, which sums its own shards.
class NoAverager : public GradientAverager {
 public:
  using GradientAverager::GradientAverager;

  void average() override {}
  bool capturable() const override { return true; }
  const char* name() const override { return "none"; }

 private:
  DeferredSum summands() const override {
    if (!buffer_.bf16_rows.defined()) return {};
    return summands_in({buffer_.rows}, {buffer_.bf16_rows});
  }
};

/// Returns the type in which compressed gradients are sent; nullopt without compression.
std::optional<at::ScalarType> compressed_type(settings::Compression compression) {
  if (compression == settings::Compression::kFp16) return at::kHalf;
  if (compression == settings::Compression::kBf16) return at::kBFloat16;
  return std::nullopt;
}

/// Sums the whole buffer, statistics included, in one all-reduce after backward. With compression,
/// gradients and their sums are rounded to the compressed type; the statistics then have their own
/// all-reduce and remain fp32. With fixed shards it gathers the rows of all ranks instead, and each
/// rank sums them in the order of the tree.
class FlatAverager : public GradientAverager {
 public:
  FlatAverager(const settings::TrainOptions& options, const Communicator& communicator,
               GradientBuffer buffer)
      : GradientAverager(std::move(buffer)), communicator_(communicator) {
    const at::TensorOptions type = buffer_.rows.options();
    if (options.shards) {
      const auto rows = static_cast<std::int64_t>(buffer_.tree.rows_per_rank());
      local_rows_ = buffer_.rows.narrow(0, 0, rows);
      all_rows_ = at::empty({communicator.world_size() * rows, buffer_.rows.size(1)}, type);
    } else if (const auto sent = compressed_type(options.gradient_averaging.compression)) {
      compressed_ = at::empty({gradient_count()}, type.dtype(sent));
    }
  }

  void average() override {
    if (all_rows_.defined()) {
      communicator_.all_gather(local_rows_, all_rows_);
      const at::Tensor used = all_rows_.narrow(1, 0, buffer_.flat.numel());
      comm::add_rows(used.unbind(), buffer_.tree.cross_rank_sums(), buffer_.flat);
    } else if (!compressed_.defined()) {
      communicator_.all_reduce_sum(buffer_.flat);
    } else {
      at::Tensor gradients = buffer_.flat.narrow(0, 0, gradient_count());
      at::Tensor exact = statistics();
      compressed_.copy_(gradients);
      communicator_.all_reduce_sum(compressed_);
      gradients.copy_(compressed_);
      communicator_.all_reduce_sum(exact);
    }
  }

  /// NCCL's all-reduce runs on the device, so a graph captures it; Gloo's runs on the host.
  bool capturable() const override { return communicator_.reduces_on_device(); }
  const char* name() const override { return "flat"; }

 private:
  const Communicator& communicator_;
  at::Tensor compressed_;  // [gradient elements]; undefined without compression
  at::Tensor local_rows_;  // [rows of a rank, m], a view; undefined without fixed shards
  at::Tensor all_rows_;    // [ranks * rows of a rank, m]; likewise
};

std::unique_ptr<c10d::Reducer> make_reducer(const GradientBuffer& buffer,
                                            const Communicator& communicator,
                                            std::int64_t bucket_bytes, bool find_unused) {
  const std::size_t count = buffer.parameters.size();
  const std::vector<bool> expect_sparse(count, false);
  // As in DDP, the first of the rebuilt buckets is small, so that sending starts early.
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

/// Returns a bucket's consecutive tensors, each with the layout of its view.
std::vector<at::Tensor> tensors_in(const at::Tensor& bucket, const std::vector<at::Tensor>& views) {
  std::vector<at::Tensor> tensors;
  std::int64_t begin = bucket.storage_offset();
  for (const at::Tensor& view : views) {
    tensors.push_back(bucket.as_strided(view.sizes(), view.strides(), begin));
    begin += view.numel();
  }
  return tensors;
}

/// Sums gradients with c10d::Reducer, like PyTorch's DistributedDataParallel: hooks on the
/// parameters fill buckets in the order in which backward computes gradients, and each is
/// all-reduced once full. The statistics have their own all-reduce, started before backward.
///
/// Unless compressed, sums are fp32, as in the other strategies, even if gradients and buckets are
/// bf16: each bucket is converted before its all-reduce, and the sums are written to the flat
/// gradients, bypassing the parameters' own gradients.
class BucketedAverager : public GradientAverager {
 public:
  BucketedAverager(const settings::TrainOptions& options, const Communicator& communicator,
                   GradientBuffer buffer)
      : GradientAverager(std::move(buffer)),
        communicator_(communicator),
        keep_bucket_order_(options.deterministic),
        sent_type_(compressed_type(options.gradient_averaging.compression)) {
    for (std::size_t i = 0; i < buffer_.views.size(); ++i) {
      views_[buffer_.parameters[i].unsafeGetTensorImpl()] = buffer_.views[i];
    }
    const auto bucket_bytes =
        static_cast<std::int64_t>(options.gradient_averaging.bucket_mb * 1024 * 1024);
    // Rebuilding buckets after the first step changes the order of addition, and a resumed run has
    // a different first step. If the Reducer searches for unused parameters, it does not rebuild.
    translate_failures("reducer setup", [&] {
      reducer_ = make_reducer(buffer_, communicator_, bucket_bytes, keep_bucket_order_);
      reducer_->register_comm_hook(std::make_unique<Hook>(this));
    });
  }

  void begin() override {
    GradientAverager::begin();
    accumulating_ = false;
    translate_failures("a bucket rebuild", [&] {
      if (!keep_bucket_order_) reducer_->rebuild_buckets();
      reducer_->prepare_for_forward();
    });
  }

  void backward(const at::Tensor& root, const at::Tensor& gradient, bool last) override {
    if (!last) {
      root.backward(gradient);
      accumulating_ = true;
      return;
    }
    const launch::WaitScope waiting(communicator_.status(), launch::Wait::kBackward);
    translate_failures("gradient averaging", [&] {
      std::vector<at::Tensor> step_statistics{statistics()};
      statistics_work_ = communicator_.process_group()->allreduce(step_statistics);
      reducer_->prepare_for_backward({root});
      root.backward(gradient);  // ends with a wait for the sums of all buckets
    });
    take_sums();
  }

  void average() override {
    const launch::WaitScope waiting(communicator_.status(), launch::Wait::kAveraging);
    translate_failures("gradient averaging", [&] { statistics_work_->wait(); });
  }

  bool sends_in_backward() const override { return true; }
  const char* name() const override { return "bucketed"; }

 private:
  /// Passes buckets to the averager. The Reducer's built-in hooks divide by the number of ranks.
  class Hook : public c10d::CppCommHookInterface<BucketedAverager*> {
   public:
    using CppCommHookInterface::CppCommHookInterface;

    c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
      return state_->all_reduce(bucket);
    }
  };

  /// Sums the gradients of a bucket over all batches of the step and all ranks. The Reducer then
  /// rounds the sums and copies them to the parameters' gradients, which `take_sums` replaces.
  c10::intrusive_ptr<c10::ivalue::Future> all_reduce(c10d::GradBucket& bucket) {
    std::vector<at::Tensor> views;
    for (const at::Tensor& parameter : bucket.getParameters()) {
      views.push_back(views_.at(parameter.unsafeGetTensorImpl()));
    }
    const at::Tensor sums = bucket.getBufferRef().to(at::kFloat);
    if (accumulating_) at::_foreach_add_(tensors_in(sums, views), views);
    std::vector<at::Tensor> sent{sent_type_ ? sums.to(*sent_type_) : sums};
    bucket_sums_.emplace_back(sent.front(), std::move(views));
    return communicator_.process_group()->allreduce(sent)->getFuture();
  }

  /// Copies the sums to the flat gradients, which become the parameters' gradients. Parameters that
  /// backward did not reach still have no gradient.
  void take_sums() {
    const at::NoGradGuard no_grad;
    for (const auto& [summed, views] : bucket_sums_) {
      at::_foreach_copy_(views, tensors_in(summed, views));
    }
    bucket_sums_.clear();
    for (std::size_t i = 0; i < buffer_.parameters.size(); ++i) {
      at::Tensor& gradient = buffer_.parameters[i].mutable_grad();
      if (gradient.defined()) gradient = buffer_.views[i];
    }
  }

  const Communicator& communicator_;
  bool keep_bucket_order_;
  std::optional<at::ScalarType> sent_type_;                       // of compressed gradients
  std::unordered_map<const c10::TensorImpl*, at::Tensor> views_;  // by parameter
  bool accumulating_ = false;  // whether the step had earlier batches
  // Of the step: each bucket's sums, [n] in the type in which they are sent, and the views of the
  // flat gradients that receive them.
  std::vector<std::pair<at::Tensor, std::vector<at::Tensor>>> bucket_sums_;
  std::unique_ptr<c10d::Reducer> reducer_;
  c10::intrusive_ptr<c10d::Work> statistics_work_;
};

}  // namespace

SummationTree::SummationTree(std::vector<std::int64_t> begins)
    : begins_(std::move(begins)), nodes_(begins_.size() - 1) {
  std::vector<std::pair<RowLocation, RowLocation>> sums;
  visit({begins_.front(), begins_.back()}, sums);
  for (const auto& nodes : nodes_) rows_per_rank_ = std::max(rows_per_rank_, nodes.size());
  const auto number = [this](RowLocation place) { return place.rank * rows_per_rank_ + place.row; };
  for (const auto& [to, from] : sums) cross_rank_sums_.push_back({number(to), number(from)});
  for (int rank = 0; rank < static_cast<int>(nodes_.size()); ++rank) {
    for (const Leaf& leaf : leaves(rank)) rows_ = std::max(rows_, leaf.row + 1);
  }
}

SummationTree SummationTree::for_ranks(int ranks) {
  std::vector<std::int64_t> begins(static_cast<std::size_t>(ranks) + 1);
  std::iota(begins.begin(), begins.end(), 0);
  return SummationTree(std::move(begins));
}

/// Finds the largest nodes that a single rank reduces, and the additions across ranks. Returns the
/// row of the node's sum.
SummationTree::RowLocation SummationTree::visit(
    ShardRange node, std::vector<std::pair<RowLocation, RowLocation>>& sums) {
  const auto after = std::upper_bound(begins_.begin(), begins_.end(), node.begin);
  if (node.end <= *after) {
    const auto rank = static_cast<std::size_t>(after - begins_.begin() - 1);
    nodes_[rank].push_back(node);
    return {rank, nodes_[rank].size() - 1};
  }
  const std::int64_t middle = middle_of(node.begin, node.end);
  const RowLocation left = visit({node.begin, middle}, sums);
  const RowLocation right = visit({middle, node.end}, sums);
  sums.emplace_back(left, right);
  return left;
}

std::vector<SummationTree::Leaf> SummationTree::leaves(int rank) const {
  const auto& nodes = nodes_[static_cast<std::size_t>(rank)];
  std::vector<Leaf> leaves;
  for (std::size_t row = 0; row < nodes.size(); ++row) {
    add_leaves(nodes[row], row, nodes.size(), leaves);
  }
  return leaves;
}

/// Appends the leaves of a node whose sum ends up in `row`; rows from `free_row` on are scratch.
void SummationTree::add_leaves(ShardRange node, std::size_t row, std::size_t free_row,
                               std::vector<Leaf>& leaves) const {
  if (node.end - node.begin == 1) return leaves.push_back({row, {}});
  const std::int64_t middle = middle_of(node.begin, node.end);
  add_leaves({node.begin, middle}, row, free_row, leaves);
  add_leaves({middle, node.end}, free_row, free_row + 1, leaves);
  leaves.back().sums.push_back({row, free_row});
}

void add_rows(const std::vector<at::Tensor>& rows, const std::vector<RowSum>& sums,
              at::Tensor result) {
  for (std::size_t i = 0; i + 1 < sums.size(); ++i) {
    at::Tensor(rows[sums[i].to]).add_(rows[sums[i].from]);
  }
  at::add_out(result, rows[sums.back().to], rows[sums.back().from]);
}

const float* DeferredSum::block(std::int64_t begin, std::int64_t count, Scratch& scratch) const {
  auto& blocks = scratch.blocks;
  auto& row_data = scratch.row_data;
  if (order.empty()) return read(rows.front(), begin, count, blocks.front().data());
  std::fill(row_data.begin(), row_data.end(), nullptr);
  const auto summand = [&](std::size_t row) {
    if (row_data[row] == nullptr) row_data[row] = read(rows[row], begin, count, blocks[row].data());
    return row_data[row];
  };
  for (const RowSum& sum : order) {
    add_floats(summand(sum.to), summand(sum.from), count, blocks[sum.to].data());
    row_data[sum.to] = blocks[sum.to].data();
  }
  return row_data[order.back().to];
}

void DeferredSum::write_to(const at::Tensor& result) const {
  auto* const to = result.mutable_data_ptr<float>();
  parallel_for(0, result.numel(), kMinWork, [&](std::int64_t begin, std::int64_t end) {
    Scratch scratch = make_scratch();
    for (; begin < end; begin += kBlock) {
      const std::int64_t count = std::min(kBlock, end - begin);
      const float* const sum = block(begin, count, scratch);
      if (sum != to + begin) std::copy_n(sum, count, to + begin);
    }
  });
}

DeferredSum GradientAverager::deferred_sum() const {
  DeferredSum sum = complete_ ? DeferredSum{} : summands();
  if (sum.rows.empty()) sum.rows.push_back({{}, owned_gradients()});
  return sum;
}

void GradientAverager::complete_sum() {
  if (std::exchange(complete_, true)) return;
  const DeferredSum sum = summands();
  // No other rank reads this slice of the rows, so the sum may overwrite one of them.
  if (!sum.rows.empty()) sum.write_to(owned_gradients());
}

DeferredSum GradientAverager::summands_in(const std::vector<at::Tensor>& tables,
                                          const std::vector<at::Tensor>& bf16_tables) const {
  const Slice slice = owned_slice();
  const std::int64_t bf16_count = buffer_.bf16_rows.defined() ? buffer_.bf16_rows.size(1) : 0;
  const std::int64_t head = std::clamp<std::int64_t>(bf16_count - slice.begin, 0, slice.size);
  DeferredSum sum{{}, buffer_.tree.cross_rank_sums()};
  for (std::size_t rank = 0; rank < tables.size(); ++rank) {
    for (std::size_t number = 0; number < buffer_.tree.rows_per_rank(); ++number) {
      const auto row = static_cast<std::int64_t>(number);
      GradientRow& part = sum.rows.emplace_back();
      if (head > 0) part.bf16 = bf16_tables[rank].select(0, row).narrow(0, slice.begin, head);
      part.f32 = tables[rank].select(0, row).narrow(0, slice.begin + head, slice.size - head);
    }
  }
  return sum;
}

settings::TrainOptions share_memory_if_possible(settings::TrainOptions options,
                                                const Communicator& communicator,
                                                at::Device device) {
  AveragingStrategy& strategy = options.gradient_averaging.strategy;
  const bool is_required = strategy == AveragingStrategy::kSharedMemory;
  const bool is_preferred = strategy == AveragingStrategy::kAuto &&
                            options.gradient_averaging.compression == settings::Compression::kNone;
  if (communicator.alone() || !(is_required || is_preferred)) return options;
  const bool fits_here = communicator.one_host() && device.is_cpu();
  const bool is_possible = !communicator.reduces_on_device() &&  // NCCL cannot reduce CPU tensors
                           communicator.sum_over_ranks(fits_here ? 0 : 1) == 0;
  if (is_possible) {
    strategy = AveragingStrategy::kSharedMemory;
  } else if (is_required) {
    refuse(
        "gradient_averaging.strategy \"shared_memory\" needs all processes on the CPUs of one "
        "host; set it to \"flat\" or \"bucketed\"");
  }
  return options;
}

std::unique_ptr<GradientAverager> make_gradient_averager(const settings::TrainOptions& options,
                                                         const Communicator& communicator,
                                                         GradientBuffer buffer, bool may_overlap) {
  const AveragingStrategy strategy = options.gradient_averaging.strategy;
  if (communicator.alone()) return std::make_unique<NoAverager>(std::move(buffer));
  if (strategy == AveragingStrategy::kSharedMemory) {
    return make_shared_memory_averager(communicator, std::move(buffer));
  }
  const bool overlap_pays = may_overlap && !options.deterministic &&
                            buffer.flat.numel() * buffer.flat.element_size() >= kMinOverlap_bytes;
  if (strategy == AveragingStrategy::kBucketed ||
      (strategy == AveragingStrategy::kAuto && overlap_pays)) {
    return std::make_unique<BucketedAverager>(options, communicator, std::move(buffer));
  }
  return std::make_unique<FlatAverager>(options, communicator, std::move(buffer));
}

}  // namespace mnist_train::comm
