#include "comm/flat_averager.h"

#include <ATen/ops/empty.h>

#include <utility>

namespace mnist_train::comm {

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

FlatAverager::FlatAverager(const settings::TrainOptions& options, const Communicator& communicator,
                           GradientBuffer buffer)
    : GradientAverager(std::move(buffer)), communicator_(communicator) {
  if (const auto type = compressed_type(options.gradient_averaging.compression)) {
    compressed_ = at::empty({gradient_count()}, buffer_.flat.options().dtype(*type));
  }
}

void FlatAverager::average() {
  if (!compressed_.defined()) return communicator_.all_reduce_sum(buffer_.flat);
  at::Tensor gradients = buffer_.flat.narrow(0, 0, gradient_count());
  at::Tensor exact = statistics();
  compressed_.copy_(gradients);
  communicator_.all_reduce_sum(compressed_);
  gradients.copy_(compressed_);
  communicator_.all_reduce_sum(exact);
}

}  // namespace mnist_train::comm
