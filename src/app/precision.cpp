#include "app/precision.h"

#include <ATen/ops/full.h>
#include <spdlog/spdlog.h>

#include "comm/cuda_module.h"

namespace mnist_train::app {

namespace {

bool computes_bfloat16_natively(const Worker& worker) {
  if (worker.placement.cuda) {
    return comm::cuda_module().computes_bfloat16(worker.placement.device_index);
  }
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16") != 0;
#else
  return false;
#endif
}

}  // namespace

bool trains_in_bfloat16(Worker& worker) {
  const bool native = computes_bfloat16_natively(worker);
  switch (worker.config.train.precision) {
    case settings::PrecisionName::kFp32:
      return false;
    case settings::PrecisionName::kBf16:
      if (!native) {
        spdlog::warn("precision bf16: {} does not compute it natively, fp32 is faster here",
                     worker.placement.cuda ? "this GPU" : "this processor");
      }
      return true;
    case settings::PrecisionName::kAuto:
      break;
  }
  at::Tensor natives =
      at::full({1}, native ? 1 : 0, at::TensorOptions(at::kLong).device(worker.device()));
  worker.communicator.all_reduce_sum(natives);
  return natives.item<std::int64_t>() == worker.communicator.world_size();
}

}  // namespace mnist_train::app
