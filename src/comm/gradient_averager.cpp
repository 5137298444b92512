#include "comm/gradient_averager.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "comm/bucketed_averager.h"
#include "comm/shared_memory_averager.h"

namespace mnist_train::comm {

namespace {

constexpr std::int64_t kOverlapPaysFrom_bytes = 25 << 20;

/// The averager of a single rank.
class NoAverager : public GradientAverager {
 public:
  using GradientAverager::GradientAverager;

  void average() override {
    if (!leaves_parts()) return;
    const std::vector<at::Tensor> rows =
        buffer_.rows.narrow(1, gradient_count(), buffer_.statistics).unbind();
    comm::add_up(rows, buffer_.tree.over_ranks(), statistics());
  }
  bool adds_up_late() const override { return true; }
  bool capturable() const override { return true; }
  const char* name() const override { return "none"; }

 private:
  bool leaves_parts() const { return !buffer_.tree.over_ranks().empty(); }
  GradientSum parts() const override {
    if (!leaves_parts() && !buffer_.bf16_rows.defined()) return {};
    return parts_in({buffer_.rows}, {buffer_.bf16_rows});
  }
};

/// Sums the whole buffer, statistics included, in one all-reduce after backward. Compressed
/// gradients are rounded before and after the sum; the statistics then have an all-reduce of their
/// own and stay exact.
class FlatAverager : public GradientAverager {
 public:
  FlatAverager(const settings::TrainOptions& options, const Communicator& communicator,
               GradientBuffer buffer)
      : GradientAverager(std::move(buffer)), communicator_(communicator) {
    if (const auto type = compressed_type(options.gradient_averaging.compression)) {
      compressed_ = at::empty({gradient_count()}, buffer_.flat.options().dtype(type));
    }
  }

  void average() override {
    if (!compressed_.defined()) return communicator_.all_reduce_sum(buffer_.flat);
    at::Tensor gradients = buffer_.flat.narrow(0, 0, gradient_count());
    at::Tensor exact = statistics();
    compressed_.copy_(gradients);
    communicator_.all_reduce_sum(compressed_);
    gradients.copy_(compressed_);
    communicator_.all_reduce_sum(exact);
  }

  /// NCCL's all-reduce is work of the device, which a graph captures; Gloo's is the host's.
  bool capturable() const override { return communicator_.reduces_on_device(); }
  const char* name() const override { return "flat"; }

 private:
  const Communicator& communicator_;
  at::Tensor compressed_;  // [gradient elements], undefined where they are not compressed
};

/// Gathers the rows of all ranks, and adds them up on each in the order of the tree.
class GatheringAverager : public GradientAverager {
 public:
  GatheringAverager(const Communicator& communicator, GradientBuffer buffer)
      : GradientAverager(std::move(buffer)), communicator_(communicator) {
    const auto rows_of_rank = static_cast<std::int64_t>(buffer_.tree.rows_of_rank());
    own_ = buffer_.rows.narrow(0, 0, rows_of_rank);
    gathered_ = at::empty({communicator.world_size() * rows_of_rank, buffer_.rows.size(1)},
                          buffer_.rows.options());
    for (const at::Tensor& row : gathered_.unbind()) rows_.push_back(without_padding(row));
  }

  void average() override {
    communicator_.all_gather(own_, gathered_);
    comm::add_up(rows_, buffer_.tree.over_ranks(), buffer_.flat);
  }

  bool capturable() const override { return communicator_.reduces_on_device(); }
  const char* name() const override { return "flat"; }

 private:
  const Communicator& communicator_;
  at::Tensor own_;                // [rows of a rank, n], a view
  at::Tensor gathered_;           // [ranks * rows of a rank, n]
  std::vector<at::Tensor> rows_;  // of `gathered_`
};

bool takes_shared_memory(const settings::TrainOptions& options, const Communicator& communicator,
                         at::Device device) {
  using Strategy = settings::AveragingStrategy;
  const auto& averaging = options.gradient_averaging;
  if (averaging.strategy != Strategy::kAuto) return averaging.strategy == Strategy::kSharedMemory;
  return averaging.compression == settings::Compression::kNone &&
         SharedMemoryAverager::fits(communicator, device);
}

settings::AveragingStrategy choose_strategy(const settings::TrainOptions& options,
                                            const Communicator& communicator,
                                            const GradientBuffer& buffer, bool may_overlap) {
  using Strategy = settings::AveragingStrategy;
  const auto& averaging = options.gradient_averaging;
  if (averaging.strategy != Strategy::kAuto) return averaging.strategy;
  if (takes_shared_memory(options, communicator, buffer.flat.device())) {
    return Strategy::kSharedMemory;
  }
  const auto bytes = buffer.flat.numel() * buffer.flat.element_size();
  const bool overlap = may_overlap && !options.deterministic && bytes >= kOverlapPaysFrom_bytes;
  return overlap ? Strategy::kBucketed : Strategy::kFlat;
}

}  // namespace

GradientBuffer one_row_buffer(std::vector<at::Tensor> parameters, const at::Tensor& flat,
                              std::int64_t statistics, int ranks) {
  return {.parameters = std::move(parameters),
          .rows = flat.unsqueeze(0),
          .flat = flat,
          .bf16_rows = {},
          .statistics = statistics,
          .tree = SummationTree::of_ranks(ranks),
          .views = {}};
}

void GradientAverager::backward(const at::Tensor& root, const at::Tensor& gradient, bool /*last*/) {
  root.backward(gradient);
  buffer_.collect();
}

GradientSum GradientAverager::sum() const {
  GradientSum sum = added_up_ ? GradientSum{} : parts();
  if (sum.rows.empty()) sum.rows.push_back({{}, owned_gradients()});
  return sum;
}

void GradientAverager::add_up() {
  if (std::exchange(added_up_, true)) return;
  const GradientSum sum = parts();
  // Nobody else reads this part of the result, so the sum can take the place of one of the rows.
  if (!sum.rows.empty()) sum.add_up(owned_gradients());
}

GradientSum GradientAverager::parts_in(const std::vector<at::Tensor>& tables,
                                       const std::vector<at::Tensor>& bf16_tables) const {
  const Slice slice = owned_slice();
  const std::int64_t in_bf16 = buffer_.bf16_rows.defined() ? buffer_.bf16_rows.size(1) : 0;
  const std::int64_t head = std::clamp<std::int64_t>(in_bf16 - slice.begin, 0, slice.size);
  GradientSum sum{{}, buffer_.tree.over_ranks()};
  for (std::size_t rank = 0; rank < tables.size(); ++rank) {
    for (std::size_t number = 0; number < buffer_.tree.rows_of_rank(); ++number) {
      const auto row = static_cast<std::int64_t>(number);
      GradientRow& part = sum.rows.emplace_back();
      if (head > 0) part.bf16 = bf16_tables[rank].select(0, row).narrow(0, slice.begin, head);
      part.f32 = tables[rank].select(0, row).narrow(0, slice.begin + head, slice.size - head);
    }
  }
  return sum;
}

bool adds_up_late(const settings::TrainOptions& options, const Communicator& communicator,
                  at::Device device) {
  if (communicator.alone()) return device.is_cpu();
  // First what is collective, since ranks on a CPU wait for those with a GPU.
  return takes_shared_memory(options, communicator, device) && device.is_cpu();
}

std::optional<at::ScalarType> compressed_type(settings::Compression compression) {
  switch (compression) {
    case settings::Compression::kFp16:
      return at::kHalf;
    case settings::Compression::kBf16:
      return at::kBFloat16;
    case settings::Compression::kNone:
      break;
  }
  return std::nullopt;
}

std::unique_ptr<GradientAverager> make_gradient_averager(const settings::TrainOptions& options,
                                                         const Communicator& communicator,
                                                         GradientBuffer buffer, bool may_overlap) {
  if (communicator.alone()) return std::make_unique<NoAverager>(std::move(buffer));
  switch (choose_strategy(options, communicator, buffer, may_overlap)) {
    case settings::AveragingStrategy::kBucketed:
      return std::make_unique<BucketedAverager>(options, communicator, std::move(buffer));
    case settings::AveragingStrategy::kSharedMemory:
      return std::make_unique<SharedMemoryAverager>(communicator, std::move(buffer));
    default:
      if (options.shards) {
        return std::make_unique<GatheringAverager>(communicator, std::move(buffer));
      }
      return std::make_unique<FlatAverager>(options, communicator, std::move(buffer));
  }
}

}  // namespace mnist_train::comm
