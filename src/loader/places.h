#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "data/sampler.h"

namespace mnist_train::loader {

/// The order of an epoch, or that in which samples are stored.
enum class Order { kEpoch, kStored };

/// Which samples of an order make a batch.
struct Places {
  data::Range range;
  Order order = Order::kEpoch;
  at::Tensor positions{};    // those of BatchSource::gather_at, instead of where the range lies
  std::int64_t advance = 0;  // is added to `positions` once they have been read
};

}  // namespace mnist_train::loader
