// The mock's memory, streams, events and errors are like a GPU's.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "support/catch.h"

namespace mnist_train::fake_gpu {

namespace {

constexpr std::size_t kBytes = 4096;
constexpr std::chrono::milliseconds kTimeToRunAhead(20);  // for a stream that does not wait

void* device_memory() {
  void* memory = nullptr;
  REQUIRE(cudaMalloc(&memory, kBytes) == cudaSuccess);
  return memory;
}

/// A stream that waits until it is told not to.
struct WaitingStream {
  WaitingStream() {
    REQUIRE(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0) == cudaSuccess);
    const auto wait = [](void* until) {
      while (!*static_cast<std::atomic<bool>*>(until)) std::this_thread::yield();
    };
    REQUIRE(cudaLaunchHostFunc(stream, wait, &released) == cudaSuccess);
  }
  ~WaitingStream() {
    released = true;
    cudaStreamSynchronize(stream);
  }

  cudaStream_t stream = nullptr;
  std::atomic<bool> released{false};
};

}  // namespace

TEST_CASE("the host cannot touch memory of a device") {
  auto* memory = static_cast<volatile char*>(device_memory());
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGSEGV, SIG_DFL);
    ::_exit(*memory);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGSEGV);
}

TEST_CASE("bytes come back from a device as they were sent") {
  char sent[kBytes];
  char received[kBytes] = {};
  for (std::size_t i = 0; i < kBytes; ++i) sent[i] = static_cast<char>(i % 251);
  void* memory = device_memory();
  void* copy = device_memory();
  CHECK(cudaMemcpy(memory, sent, kBytes, cudaMemcpyHostToDevice) == cudaSuccess);
  CHECK(cudaMemcpy(copy, memory, kBytes, cudaMemcpyDeviceToDevice) == cudaSuccess);
  CHECK(cudaMemcpy(received, copy, kBytes, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(std::equal(sent, sent + kBytes, received));
}

TEST_CASE("memory that is not allocated cannot be copied") {
  char host[2 * kBytes] = {};
  void* memory = device_memory();
  CHECK(cudaMemcpy(host, memory, 2 * kBytes, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
  CHECK(cudaFree(memory) == cudaSuccess);
  CHECK(cudaMemcpy(host, memory, kBytes, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
  CHECK(cudaFree(memory) == cudaErrorInvalidValue);
  CHECK(cudaMemset(memory, 0, kBytes) == cudaErrorInvalidValue);
  cudaGetLastError();
}

TEST_CASE("memory that is freed can be allocated again, up to the limit") {
  std::size_t free_before = 0;
  std::size_t total = 0;
  REQUIRE(cudaMemGetInfo(&free_before, &total) == cudaSuccess);
  void* all = nullptr;
  CHECK(cudaMalloc(&all, free_before) == cudaSuccess);
  void* more = nullptr;
  CHECK(cudaMalloc(&more, 1) == cudaErrorMemoryAllocation);
  CHECK(cudaFree(all) == cudaSuccess);
  std::size_t free_after = 0;
  CHECK(cudaMemGetInfo(&free_after, &total) == cudaSuccess);
  CHECK(free_after == free_before);
  cudaGetLastError();
}

TEST_CASE("a new thread has no context for the driver until the runtime needs one") {
  CUresult before = CUDA_SUCCESS;
  CUresult behind = CUDA_SUCCESS;
  const auto launch = [] {
    return cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
  };
  std::thread([&] {
    before = launch();
    cudaSetDevice(0);
    behind = launch();
  }).join();
  CHECK(before == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(behind == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("an error is remembered until it is asked for") {
  CHECK(cudaSetDevice(63) == cudaErrorInvalidDevice);
  CHECK(cudaPeekAtLastError() == cudaErrorInvalidDevice);
  CHECK(cudaGetLastError() == cudaErrorInvalidDevice);
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("the host runs ahead of a stream until it waits for an event") {
  WaitingStream waiting;
  cudaEvent_t event = nullptr;
  REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
  CHECK(cudaEventQuery(event) == cudaSuccess);  // never recorded
  CHECK(cudaEventRecord(event, waiting.stream) == cudaSuccess);
  CHECK(cudaEventQuery(event) == cudaErrorNotReady);
  CHECK(cudaStreamQuery(waiting.stream) == cudaErrorNotReady);
  CHECK(cudaGetLastError() == cudaErrorNotReady);
  waiting.released = true;
  CHECK(cudaEventSynchronize(event) == cudaSuccess);
  CHECK(cudaEventQuery(event) == cudaSuccess);
}

TEST_CASE("a stream that waits for an event of another one does its work afterwards") {
  void* memory = device_memory();
  void* pinned = nullptr;
  REQUIRE(cudaHostAlloc(&pinned, kBytes, 0) == cudaSuccess);
  cudaStream_t second = nullptr;
  cudaEvent_t event = nullptr;
  REQUIRE(cudaStreamCreateWithPriority(&second, cudaStreamNonBlocking, 0) == cudaSuccess);
  REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
  {
    WaitingStream first;
    CHECK(cudaMemsetAsync(memory, 5, kBytes, first.stream) == cudaSuccess);
    CHECK(cudaEventRecord(event, first.stream) == cudaSuccess);
    CHECK(cudaStreamWaitEvent(second, event, 0) == cudaSuccess);
    CHECK(cudaMemcpyAsync(pinned, memory, kBytes, cudaMemcpyDeviceToHost, second) == cudaSuccess);
    std::this_thread::sleep_for(kTimeToRunAhead);
    CHECK(cudaStreamQuery(second) == cudaErrorNotReady);
  }
  CHECK(cudaStreamSynchronize(second) == cudaSuccess);
  CHECK(*static_cast<char*>(pinned) == 5);
  cudaGetLastError();
}

TEST_CASE("a copy of pageable memory waits for the stream, one of pinned memory does not") {
  void* memory = device_memory();
  void* pinned = nullptr;
  REQUIRE(cudaHostAlloc(&pinned, kBytes, 0) == cudaSuccess);
  char pageable[kBytes] = {};
  WaitingStream waiting;
  CHECK(cudaMemcpyAsync(pinned, memory, kBytes, cudaMemcpyDeviceToHost, waiting.stream) ==
        cudaSuccess);
  CHECK(cudaStreamQuery(waiting.stream) == cudaErrorNotReady);
  std::thread releaser([&] {
    std::this_thread::sleep_for(kTimeToRunAhead);
    waiting.released = true;
  });
  CHECK(cudaMemcpyAsync(pageable, memory, kBytes, cudaMemcpyDeviceToHost, waiting.stream) ==
        cudaSuccess);
  CHECK(waiting.released);
  releaser.join();
  cudaGetLastError();
}

}  // namespace mnist_train::fake_gpu
