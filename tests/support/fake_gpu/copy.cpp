#include "support/fake_gpu/copy.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <limits>

#include "support/fake_gpu/capture.h"
#include "support/fake_gpu/device_memory.h"
#include "support/fake_gpu/message.h"
#include "support/fake_gpu/report.h"
#include "support/fake_gpu/settings.h"

namespace mnist_train::fake_gpu {

namespace {

/// How many steps' sums mnist-train reads at once (train::GraphedStep), and how many bytes those of
/// one step have (train::StepSums): loss, correct predictions, samples and requests to stop, f32.
constexpr std::array<std::size_t, 2> kStepsOfReads{1, 16};
constexpr std::size_t kSums = 4;
constexpr std::size_t kBytesOfStep = kSums * sizeof(float);

bool reads_step_sums(const CopyRequest& request) {
  const bool to_host = device_of(request.from) >= 0 && device_of(request.to) < 0;
  return to_host && request.rows == 1 &&
         std::any_of(kStepsOfReads.begin(), kStepsOfReads.end(),
                     [&](std::size_t steps) { return request.width == steps * kBytesOfStep; });
}

/// Overwrites sums with NaN if FAKE_GPU_NAN_AFTER_READS says so for this read.
void spoil_step_sums(void* sums, std::size_t bytes) {
  static std::atomic<long> reads{0};
  if (++reads < settings().nan_after_reads) return;
  auto* const values = static_cast<float*>(sums);
  for (std::size_t i = 0; i < bytes / sizeof(float); ++i) {
    if (i % kSums >= settings().nan_from) values[i] = std::numeric_limits<float>::quiet_NaN();
  }
}

void run_copy(const CopyRequest& request) {
  auto* to = static_cast<std::byte*>(host_address(request.to));
  const auto* from = static_cast<const std::byte*>(host_address(request.from));
  for (std::size_t row = 0; row < request.rows; ++row) {
    std::memmove(to + row * request.to_pitch, from + row * request.from_pitch, request.width);
  }
  if (settings().nan_after_reads > 0 && reads_step_sums(request)) {
    spoil_step_sums(to, request.width);
  }
}

bool is_pageable(const void* address) { return device_of(address) < 0 && !is_pinned(address); }

std::size_t reach(const CopyRequest& request, std::size_t pitch) {
  return (request.rows - 1) * pitch + request.width;
}

const char* place_of(const void* address) { return device_of(address) < 0 ? "host" : "device"; }

}  // namespace

cudaError_t copy(Stream& stream, const CopyRequest& request) {
  if (request.width == 0 || request.rows == 0) return cudaSuccess;
  trace(request.call, " of ", request.rows * request.width, " bytes, ", place_of(request.from),
        " to ", place_of(request.to));
  if (!is_valid_memory(request.to, reach(request, request.to_pitch)) ||
      !is_valid_memory(request.from, reach(request, request.from_pitch))) {
    say_misuse(request.call, "memory of a device that is not allocated");
    return cudaErrorInvalidValue;
  }
  const bool captured = is_capturing(stream);
  const bool pageable = is_pageable(request.to) || is_pageable(request.from);
  if (captured && pageable) say_misuse(request.call, "note: a graph copies pageable memory");
  const cudaError_t error =
      submit(stream, {NodeKind::kCopy, request.call, [request] { run_copy(request); }});
  if (error != cudaSuccess || captured) return error;
  count(Counter::kCopies);
  if (pageable) count(Counter::kPageableCopies);
  if (pageable || request.host_waits) stream.wait(stream.end());
  return cudaSuccess;
}

cudaError_t fill(Stream& stream, void* address, int value, std::size_t bytes, const char* call) {
  if (!is_valid_memory(address, bytes)) {
    say_misuse(call, "memory of a device that is not allocated");
    return cudaErrorInvalidValue;
  }
  if (!is_capturing(stream)) count(Counter::kFills);
  return submit(stream, {NodeKind::kFill, call, [address, value, bytes] {
                           std::memset(host_address(address), value, bytes);
                         }});
}

}  // namespace mnist_train::fake_gpu
