#include <ATen/Version.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <dlfcn.h>
#include <spdlog/fmt/fmt.h>
#include <torch/version.h>

#include <algorithm>

#include "accelerator/device.h"
#include "app/commands.h"
#include "base/print.h"
#include "base/system.h"

namespace mnist_train::app {

namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void fail(const std::string& message) { throw Error(ExitCode::kRunFailed, message); }

/// Returns the median time of `work`. Collective.
double seconds_of(Worker& worker, int repetitions, const std::function<void()>& work) {
  constexpr int kWarmUps = 2;
  std::vector<double> seconds;
  for (int i = -kWarmUps; i < repetitions; ++i) {
    launch::update(worker.status(), launch::Phase::kTraining, 1, i + kWarmUps);
    const double begin_s = monotonic_seconds();
    work();
    accelerator::synchronize(worker.device());
    if (i >= 0) seconds.push_back(monotonic_seconds() - begin_s);
  }
  std::ranges::sort(seconds);
  return seconds[seconds.size() / 2];
}

/// Measures latency and bandwidth of all-reduces over Gloo or NCCL. Collective.
Json measure_all_reduce(Worker& worker) {
  constexpr std::int64_t kElements = 4 << 20;  // fp32: 16 MiB
  const auto measure = [&](std::int64_t elements, int repetitions) {
    at::Tensor sum = at::ones({elements}, at::TensorOptions(at::kFloat).device(worker.device()));
    worker.communicator.all_reduce_sum(sum);
    const auto first = accelerator::to_host(sum.narrow(0, 0, 1)).item<float>();
    if (first != static_cast<float>(worker.identity.world_size)) {
      fail("all-reduce computes a wrong sum");
    }
    sum.zero_();
    return seconds_of(worker, repetitions, [&] { worker.communicator.all_reduce_sum(sum); });
  };
  const double latency_s = measure(1, 100);
  const double seconds = measure(kElements, 9);
  const auto bytes = static_cast<double>(kElements) * sizeof(float);
  return {{"name", worker.placement.backend},
          {"latency_s", latency_s},
          {"bytes_per_second", bytes / seconds}};
}

/// Detects a build of LibTorch without kernels for this GPU.
void require_kernels(const Worker& worker) {
  constexpr std::int64_t kSide = 64;
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor ones =
        at::ones({kSide, kSide}, at::TensorOptions(type).device(worker.device()));
    if (accelerator::to_host(at::matmul(ones, ones).sum()).item<float>() != kSide * kSide * kSide) {
      fail(worker.placement.device_name() + " computes wrong results");
    }
  }
}

std::string torch_folder() {
  Dl_info info{};
  const auto address = reinterpret_cast<const void*>(&at::get_cpu_capability);
  if (::dladdr(address, &info) == 0 || info.dli_fname == nullptr) return "";
  return std::filesystem::weakly_canonical(info.dli_fname).parent_path().parent_path().string();
}

Json cuda_facts() {
  const accelerator::CudaModule& module = accelerator::cuda_module();
  const int runtime = module.runtime_version();
  return {{"runtime", fmt::format("{}.{}", runtime / 1000, runtime % 1000 / 10)},
          {"nccl", module.nccl_version()}};
}

}  // namespace

void run_diagnosis(Worker& worker) {
  launch::update(worker.status(), launch::Phase::kTraining, 1, 0);
  require_kernels(worker);
  Json result = {{"torch", TORCH_VERSION},
                 {"torch_folder", torch_folder()},
                 {"cpu_capability", at::get_cpu_capability()},
                 {"all_reduce", Json::array()}};
  if (worker.placement.cuda) result["cuda"] = cuda_facts();
  if (!worker.communicator.alone()) result["all_reduce"].push_back(measure_all_reduce(worker));
  if (worker.is_rank0()) print_result(result);
}

}  // namespace mnist_train::app
