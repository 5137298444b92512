// Tests the mock itself: memory, streams, events and errors behave like a GPU's, and captures
// enforce CUDA's rules: only forbidden calls fail, with CUDA's error, and invalidate the capture.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "support/catch.h"

namespace mnist_train::fake_gpu {

namespace {

constexpr std::size_t kBytes = 4096;
constexpr std::chrono::milliseconds kTimeToRunAhead(20);  // for a stream that fails to wait

void* device_memory() {
  void* memory = nullptr;
  REQUIRE(cudaMalloc(&memory, kBytes) == cudaSuccess);
  return memory;
}

char* pinned_memory() {
  void* memory = nullptr;
  REQUIRE(cudaHostAlloc(&memory, kBytes, 0) == cudaSuccess);
  return static_cast<char*>(memory);
}

cudaStream_t make_stream(unsigned flags = cudaStreamNonBlocking) {
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreateWithPriority(&stream, flags, 0) == cudaSuccess);
  return stream;
}

cudaEvent_t make_event() {
  cudaEvent_t event = nullptr;
  REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
  return event;
}

/// A stream that is blocked until it is released.
struct WaitingStream {
  WaitingStream() {
    const auto wait = [](void* until) {
      while (!*static_cast<std::atomic<bool>*>(until)) std::this_thread::yield();
    };
    REQUIRE(cudaLaunchHostFunc(stream, wait, &released) == cudaSuccess);
  }
  ~WaitingStream() {
    released = true;
    cudaStreamSynchronize(stream);
  }

  cudaStream_t stream = make_stream();
  std::atomic<bool> released{false};
};

/// Memory, two streams and two events of a device; the first stream is capturing.
struct Scene {
  explicit Scene(cudaStreamCaptureMode mode, unsigned flags = cudaStreamNonBlocking)
      : capturing(make_stream(flags)), other(make_stream()) {
    REQUIRE(cudaStreamBeginCapture(capturing, mode) == cudaSuccess);
  }

  /// Ends the capture; returns its error.
  cudaError_t end() {
    const cudaError_t error = cudaStreamEndCapture(capturing, &graph);
    REQUIRE((graph != nullptr) == (error == cudaSuccess));
    cudaGetLastError();
    return error;
  }

  cudaError_t fill(cudaStream_t stream) { return cudaMemsetAsync(memory, 0, kBytes, stream); }

  cudaStream_t capturing;
  cudaStream_t other;
  cudaEvent_t event = make_event();
  cudaEvent_t second_event = make_event();
  void* memory = device_memory();
  void* pinned = pinned_memory();
  cudaGraph_t graph = nullptr;
};

struct Call {
  std::string name;
  std::function<cudaError_t(Scene&)> make;
};

/// Returns calls that may wait for the device or that wait for a stream that is not capturing.
std::vector<Call> unsafe_calls() {
  return {
      {"cudaMalloc", [](Scene& scene) { return cudaMalloc(&scene.memory, kBytes); }},
      {"cudaFree", [](Scene&) { return cudaFree(nullptr); }},
      {"cudaHostAlloc", [](Scene& scene) { return cudaHostAlloc(&scene.pinned, kBytes, 0); }},
      {"cudaMemcpy",
       [](Scene& scene) {
         return cudaMemcpy(scene.pinned, scene.memory, kBytes, cudaMemcpyDeviceToHost);
       }},
      {"cudaStreamQuery", [](Scene& scene) { return cudaStreamQuery(scene.other); }},
      {"cudaStreamSynchronize", [](Scene& scene) { return cudaStreamSynchronize(scene.other); }},
      {"cudaEventQuery",
       [](Scene& scene) {
         REQUIRE(cudaEventRecord(scene.event, scene.other) == cudaSuccess);
         return cudaEventQuery(scene.event);
       }},
  };
}

void make_in_other_thread(const std::function<void()>& calls) { std::thread(calls).join(); }

}  // namespace

TEST_CASE("the host cannot access device memory") {
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

TEST_CASE("a new thread has no driver context until the runtime binds one") {
  CUresult before = CUDA_SUCCESS;
  CUresult after = CUDA_SUCCESS;
  const auto launch = [] {
    return cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
  };
  std::thread([&] {
    before = launch();
    cudaSetDevice(0);
    after = launch();
  }).join();
  CHECK(before == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(after == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("the host runs ahead of a stream until it waits for an event") {
  WaitingStream waiting;
  cudaEvent_t event = make_event();
  CHECK(cudaEventQuery(event) == cudaSuccess);  // the event was never recorded
  CHECK(cudaEventRecord(event, waiting.stream) == cudaSuccess);
  CHECK(cudaEventQuery(event) == cudaErrorNotReady);
  CHECK(cudaStreamQuery(waiting.stream) == cudaErrorNotReady);
  CHECK(cudaGetLastError() == cudaErrorNotReady);
  waiting.released = true;
  CHECK(cudaEventSynchronize(event) == cudaSuccess);
  CHECK(cudaEventQuery(event) == cudaSuccess);
}

TEST_CASE("a stream that waits for another stream's event runs its work afterwards") {
  void* memory = device_memory();
  char* pinned = pinned_memory();
  cudaStream_t second = make_stream();
  cudaEvent_t event = make_event();
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
  CHECK(*pinned == 5);
  cudaGetLastError();
}

TEST_CASE("calls that are unsafe during a capture fail, unless the capture is relaxed") {
  for (const Call& call : unsafe_calls()) {
    INFO(call.name);
    for (const auto mode : {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal}) {
      Scene scene(mode);
      CHECK(call.make(scene) == cudaErrorStreamCaptureUnsupported);
      CHECK(scene.fill(scene.capturing) == cudaErrorStreamCaptureInvalidated);
      CHECK(scene.end() == cudaErrorStreamCaptureInvalidated);
    }
    Scene relaxed(cudaStreamCaptureModeRelaxed);
    CHECK(call.make(relaxed) == cudaSuccess);
    CHECK(relaxed.end() == cudaSuccess);
  }
}

TEST_CASE("only a global capture forbids unsafe calls in other threads") {
  const auto outcome_of_other_thread = [](Scene& scene) {
    cudaError_t error = cudaSuccess;
    make_in_other_thread([&] { error = cudaMalloc(&scene.memory, kBytes); });
    return error;
  };
  Scene global(cudaStreamCaptureModeGlobal);
  CHECK(outcome_of_other_thread(global) == cudaErrorStreamCaptureUnsupported);
  CHECK(global.end() == cudaErrorStreamCaptureInvalidated);
  Scene local(cudaStreamCaptureModeThreadLocal);
  CHECK(outcome_of_other_thread(local) == cudaSuccess);
  CHECK(local.end() == cudaSuccess);
}

TEST_CASE("a capturing stream cannot be waited for, and its events cannot be queried") {
  const std::vector<Call> calls{
      {"stream", [](Scene& scene) { return cudaStreamSynchronize(scene.capturing); }},
      {"stream query", [](Scene& scene) { return cudaStreamQuery(scene.capturing); }},
      {"callback",
       [](Scene& scene) { return cudaStreamAddCallback(scene.capturing, nullptr, nullptr, 0); }},
      {"device", [](Scene&) { return cudaDeviceSynchronize(); }}};
  for (const Call& call : calls) {
    INFO(call.name);
    Scene scene(cudaStreamCaptureModeRelaxed);
    CHECK(call.make(scene) == cudaErrorStreamCaptureUnsupported);
    CHECK(scene.end() == cudaErrorStreamCaptureInvalidated);
  }
  for (const auto look : {&cudaEventQuery, &cudaEventSynchronize}) {
    Scene scene(cudaStreamCaptureModeRelaxed);
    CHECK(cudaEventRecord(scene.event, scene.capturing) == cudaSuccess);
    CHECK(look(scene.event) == cudaErrorCapturedEvent);
    CHECK(scene.end() == cudaErrorStreamCaptureInvalidated);
    CHECK(look(scene.event) == cudaErrorCapturedEvent);
  }
}

TEST_CASE("a stream that joins a capture must be joined back before the capture ends") {
  Scene scene(cudaStreamCaptureModeGlobal);
  CHECK(cudaEventRecord(scene.event, scene.capturing) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(scene.other, scene.event, 0) == cudaSuccess);
  SECTION("unless it captured nothing") { CHECK(scene.end() == cudaSuccess); }
  SECTION("or the capture fails") {
    CHECK(scene.fill(scene.other) == cudaSuccess);
    CHECK(scene.end() == cudaErrorStreamCaptureUnjoined);
  }
  SECTION("with all of its work") {
    CHECK(cudaEventRecord(scene.second_event, scene.other) == cudaSuccess);
    CHECK(scene.fill(scene.other) == cudaSuccess);
    CHECK(cudaStreamWaitEvent(scene.capturing, scene.second_event, 0) == cudaSuccess);
    CHECK(scene.end() == cudaErrorStreamCaptureUnjoined);
  }
  SECTION("and then the capture succeeds") {
    CHECK(scene.fill(scene.other) == cudaSuccess);
    CHECK(cudaEventRecord(scene.second_event, scene.other) == cudaSuccess);
    CHECK(cudaStreamWaitEvent(scene.capturing, scene.second_event, 0) == cudaSuccess);
    CHECK(scene.end() == cudaSuccess);
    std::size_t nodes = 0;
    CHECK(cudaGraphGetNodes(scene.graph, nullptr, &nodes) == cudaSuccess);
    CHECK(nodes == 1);
  }
}

TEST_CASE("a capturing stream cannot wait for an event from outside the capture") {
  Scene scene(cudaStreamCaptureModeGlobal);
  CHECK(cudaStreamWaitEvent(scene.capturing, scene.event, 0) == cudaSuccess);  // never recorded
  CHECK(cudaEventRecord(scene.event, scene.other) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(scene.capturing, scene.event, 0) == cudaErrorStreamCaptureIsolation);
  CHECK(scene.end() == cudaErrorStreamCaptureInvalidated);
}

TEST_CASE("the legacy stream cannot be captured, or used while a blocking stream captures") {
  CHECK(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal) ==
        cudaErrorStreamCaptureImplicit);
  Scene independent(cudaStreamCaptureModeGlobal);
  CHECK(independent.fill(nullptr) == cudaSuccess);
  CHECK(independent.end() == cudaSuccess);
  Scene blocking(cudaStreamCaptureModeGlobal, cudaStreamDefault);
  CHECK(blocking.fill(nullptr) == cudaErrorStreamCaptureImplicit);
  CHECK(blocking.end() == cudaErrorStreamCaptureInvalidated);
}

TEST_CASE("a capture must end on the stream and the thread on which it began") {
  Scene scene(cudaStreamCaptureModeThreadLocal);
  CHECK(cudaStreamEndCapture(scene.other, &scene.graph) == cudaErrorStreamCaptureUnmatched);
  cudaError_t error = cudaSuccess;
  make_in_other_thread([&] { error = cudaStreamEndCapture(scene.capturing, &scene.graph); });
  CHECK(error == cudaErrorStreamCaptureWrongThread);
  CHECK(scene.end() == cudaSuccess);
}

TEST_CASE("a graph runs its work at every replay, but not during capture") {
  Scene scene(cudaStreamCaptureModeGlobal);
  CHECK(cudaMemsetAsync(scene.memory, 7, kBytes, scene.capturing) == cudaSuccess);
  CHECK(cudaMemcpyAsync(scene.pinned, scene.memory, kBytes, cudaMemcpyDeviceToHost,
                        scene.capturing) == cudaSuccess);
  CHECK(scene.end() == cudaSuccess);
  cudaGraphExec_t executable = nullptr;
  CHECK(cudaGraphInstantiateWithFlags(&executable, scene.graph, 0) == cudaSuccess);
  auto* host = static_cast<char*>(scene.pinned);
  for (int replay = 0; replay < 2; ++replay) {
    host[0] = 0;
    CHECK(cudaStreamSynchronize(scene.capturing) == cudaSuccess);
    CHECK(host[0] == 0);
    CHECK(cudaGraphLaunch(executable, scene.capturing) == cudaSuccess);
    CHECK(cudaStreamSynchronize(scene.capturing) == cudaSuccess);
    CHECK(host[0] == 7);
  }
}

}  // namespace mnist_train::fake_gpu
