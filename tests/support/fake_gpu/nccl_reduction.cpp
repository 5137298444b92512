#include "support/fake_gpu/nccl_reduction.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "support/fake_gpu/bfloat16.h"

namespace mnist_train::fake_gpu {

namespace {

/// `Element` is what is stored, `Sum` what is computed with.
template <class Element, class Sum>
void reduce_as(std::span<const std::byte* const> inputs, std::byte* output, std::size_t count,
               ncclRedOp_t operation) {
  const auto element_of = [&](const std::byte* input, std::size_t index) {
    Element element;
    std::memcpy(&element, input + index * sizeof element, sizeof element);
    return static_cast<Sum>(element);
  };
  for (std::size_t i = 0; i < count; ++i) {
    Sum sum = element_of(inputs.front(), i);
    for (const std::byte* input : inputs.subspan(1)) {
      const Sum value = element_of(input, i);
      if (operation == ncclMax) {
        sum = std::max(sum, value);
      } else if (operation == ncclMin) {
        sum = std::min(sum, value);
      } else {
        sum = static_cast<Sum>(sum + value);
      }
    }
    if (operation == ncclAvg) sum = static_cast<Sum>(sum / static_cast<Sum>(inputs.size()));
    const auto result = static_cast<Element>(sum);
    std::memcpy(output + i * sizeof result, &result, sizeof result);
  }
}

}  // namespace

std::size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      return 0;
  }
}

bool can_reduce(ncclDataType_t type, ncclRedOp_t operation) {
  const bool known_operation =
      operation == ncclSum || operation == ncclMax || operation == ncclMin || operation == ncclAvg;
  return known_operation && bytes_of(type) > 0;
}

void reduce(std::span<const std::byte* const> inputs, std::byte* output, std::size_t count,
            ncclDataType_t type, ncclRedOp_t operation) {
  switch (type) {
    case ncclFloat32:
      return reduce_as<float, float>(inputs, output, count, operation);
    case ncclFloat64:
      return reduce_as<double, double>(inputs, output, count, operation);
    case ncclFloat16:
      return reduce_as<_Float16, float>(inputs, output, count, operation);
    case ncclBfloat16:
      return reduce_as<BFloat16, float>(inputs, output, count, operation);
    case ncclInt8:
      return reduce_as<std::int8_t, std::int8_t>(inputs, output, count, operation);
    case ncclUint8:
      return reduce_as<std::uint8_t, std::uint8_t>(inputs, output, count, operation);
    case ncclInt32:
      return reduce_as<std::int32_t, std::int32_t>(inputs, output, count, operation);
    case ncclUint32:
      return reduce_as<std::uint32_t, std::uint32_t>(inputs, output, count, operation);
    case ncclInt64:
      return reduce_as<std::int64_t, std::int64_t>(inputs, output, count, operation);
    case ncclUint64:
      return reduce_as<std::uint64_t, std::uint64_t>(inputs, output, count, operation);
    default:
      return;  // can_reduce is false
  }
}

}  // namespace mnist_train::fake_gpu
