#include "support/fake_gpu/capture.h"

#include <algorithm>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "support/fake_gpu/message.h"
#include "support/fake_gpu/report.h"
#include "support/fake_gpu/stream.h"

namespace mnist_train::fake_gpu {

namespace {

/// The state of one stream in a capture.
struct Member {
  std::uint64_t nodes = 0;   // captured by this stream
  NodesBefore nodes_before;  // that precede its next node
};

using Members = std::unordered_map<const Stream*, Member>;

}  // namespace

struct Capture {
  unsigned long long id = 0;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;  // the one that began the capture
  const Stream* origin = nullptr;
  bool invalid = false;
  GraphHandle graph;
  Members members;
};

namespace {

using CapturePointer = std::shared_ptr<Capture>;

/// All active captures.
struct Captures {
  std::vector<CapturePointer> all;
  std::unordered_map<const Stream*, CapturePointer> of_stream;
  unsigned long long begun = 0;

  CapturePointer find(const Stream& stream) const {
    const auto found = of_stream.find(&stream);
    return found == of_stream.end() ? nullptr : found->second;
  }
};

/// Exclusive access to the captures of this process.
class LockedCaptures {
 public:
  Captures* operator->() const { return &captures(); }
  void unlock() { lock_.unlock(); }

 private:
  static Captures& captures() {
    static auto& captures = *new Captures();
    return captures;
  }
  static std::mutex& mutex() {
    static auto& mutex = *new std::mutex();
    return mutex;
  }

  std::unique_lock<std::mutex> lock_{mutex()};
};

thread_local cudaStreamCaptureMode mode_of_thread = cudaStreamCaptureModeGlobal;

void invalidate(Capture& capture, const char* call, const char* reason) {
  if (!capture.invalid) say_misuse(call, reason);
  capture.invalid = true;
}

bool forbids_unsafe_calls(const Capture& capture) {
  if (capture.mode == cudaStreamCaptureModeRelaxed) return false;
  if (capture.thread == std::this_thread::get_id()) return true;
  return mode_of_thread == cudaStreamCaptureModeGlobal &&
         capture.mode == cudaStreamCaptureModeGlobal;
}

/// Returns whether all work that other streams captured is joined to the origin stream.
bool is_joined(const Capture& capture) {
  const NodesBefore& joined = capture.members.at(capture.origin).nodes_before;
  return std::all_of(capture.members.begin(), capture.members.end(), [&](const auto& entry) {
    const auto& [stream, member] = entry;
    if (stream == capture.origin || member.nodes == 0) return true;
    const auto before = joined.find(stream);
    return before != joined.end() && before->second >= member.nodes;
  });
}

cudaError_t outcome(const Capture& capture) {
  if (capture.invalid) return cudaErrorStreamCaptureInvalidated;
  if (is_joined(capture)) return cudaSuccess;
  say_misuse("cudaStreamEndCapture", "another stream has unjoined work");
  return cudaErrorStreamCaptureUnjoined;
}

}  // namespace

cudaError_t begin_capture(Stream& stream, cudaStreamCaptureMode mode) {
  if (stream.is_legacy()) {
    say_misuse("cudaStreamBeginCapture", "the legacy stream cannot be captured");
    return cudaErrorStreamCaptureImplicit;
  }
  LockedCaptures captures;
  if (captures->find(stream)) return cudaErrorIllegalState;
  auto capture = std::make_shared<Capture>();
  capture->id = ++captures->begun;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->origin = &stream;
  capture->graph.graph = std::make_shared<Graph>();
  capture->members[&stream];
  captures->of_stream[&stream] = capture;
  captures->all.push_back(std::move(capture));
  return cudaSuccess;
}

cudaError_t end_capture(Stream& stream, std::shared_ptr<Graph>& graph) {
  LockedCaptures captures;
  const CapturePointer capture = captures->find(stream);
  if (!capture || capture->origin != &stream) return cudaErrorStreamCaptureUnmatched;
  if (capture->mode != cudaStreamCaptureModeRelaxed &&
      capture->thread != std::this_thread::get_id()) {
    return cudaErrorStreamCaptureWrongThread;
  }
  const cudaError_t result = outcome(*capture);
  for (const auto& entry : capture->members) captures->of_stream.erase(entry.first);
  captures->all.erase(std::find(captures->all.begin(), captures->all.end(), capture));
  const Graph& captured = *capture->graph.graph;
  record_graph(captured, capture->members.size(), result == cudaSuccess);
  if (result == cudaSuccess) graph = capture->graph.graph;
  return result;
}

bool is_capturing(const Stream& stream) {
  LockedCaptures captures;
  return captures->find(stream) != nullptr;
}

cudaError_t get_capture_info(const Stream& stream, CaptureInfo& info) {
  if (const cudaError_t error = check_legacy_stream(stream, "cudaStreamGetCaptureInfo")) {
    return error;
  }
  LockedCaptures captures;
  const CapturePointer capture = captures->find(stream);
  info = {};
  if (!capture) return cudaSuccess;
  info.status =
      capture->invalid ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
  info.id = capture->id;
  info.graph = &capture->graph;
  return cudaSuccess;
}

void exchange_capture_mode(cudaStreamCaptureMode& mode) { std::swap(mode, mode_of_thread); }

cudaError_t submit(Stream& stream, Node node) {
  LockedCaptures captures;
  if (const CapturePointer capture = captures->find(stream)) {
    if (capture->invalid) return cudaErrorStreamCaptureInvalidated;
    capture->graph.graph->add(std::move(node));
    Member& member = capture->members[&stream];
    member.nodes_before[&stream] = ++member.nodes;
    return cudaSuccess;
  }
  captures.unlock();
  if (const cudaError_t error = check_legacy_stream(stream, node.name)) return error;
  if (node.operation) stream.enqueue(std::move(node.operation));
  return cudaSuccess;
}

cudaError_t check_unsafe_call(const char* call) {
  if (mode_of_thread == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  LockedCaptures captures;
  cudaError_t result = cudaSuccess;
  for (const CapturePointer& capture : captures->all) {
    if (!forbids_unsafe_calls(*capture)) continue;
    invalidate(*capture, call, "this call is unsafe while a stream is capturing");
    result = cudaErrorStreamCaptureUnsupported;
  }
  return result;
}

cudaError_t check_not_capturing(const Stream& stream, const char* call) {
  LockedCaptures captures;
  const CapturePointer capture = captures->find(stream);
  if (!capture) return cudaSuccess;
  invalidate(*capture, call, "the stream is capturing");
  return cudaErrorStreamCaptureUnsupported;
}

cudaError_t check_device_not_capturing(int device, const char* call) {
  LockedCaptures captures;
  cudaError_t result = cudaSuccess;
  for (const CapturePointer& capture : captures->all) {
    if (capture->origin->device() != device) continue;
    invalidate(*capture, call, "a stream of this device is capturing");
    result = cudaErrorStreamCaptureUnsupported;
  }
  return result;
}

cudaError_t check_legacy_stream(const Stream& stream, const char* call) {
  if (!stream.is_legacy()) return cudaSuccess;
  LockedCaptures captures;
  for (const auto& [member, capture] : captures->of_stream) {
    if (!member->is_blocking() || member->device() != stream.device()) continue;
    invalidate(*capture, call, "the legacy stream is used while a blocking stream is capturing");
    return cudaErrorStreamCaptureImplicit;
  }
  return cudaSuccess;
}

cudaError_t get_capture_point(const Stream& stream, CapturePoint& point) {
  LockedCaptures captures;
  point = {captures->find(stream), {}};
  if (!point.capture) return cudaSuccess;
  if (point.capture->invalid) return cudaErrorStreamCaptureInvalidated;
  point.nodes_before = point.capture->members[&stream].nodes_before;
  return cudaSuccess;
}

cudaError_t join_capture(Stream& stream, const CapturePoint& point) {
  constexpr const char* kCall = "cudaStreamWaitEvent";
  LockedCaptures captures;
  const bool under_way =
      std::find(captures->all.begin(), captures->all.end(), point.capture) != captures->all.end();
  if (!under_way) {
    say_misuse(kCall, "the event was last recorded in a capture that has ended");
    return cudaErrorCapturedEvent;
  }
  const CapturePointer own = captures->find(stream);
  if (own && own != point.capture) {
    invalidate(*own, kCall, "a capturing stream waits for an event from another capture");
    return cudaErrorStreamCaptureMerge;
  }
  if (stream.is_legacy()) {
    invalidate(*point.capture, kCall, "the legacy stream waits for a captured event");
    return cudaErrorStreamCaptureImplicit;
  }
  if (point.capture->invalid) return cudaErrorStreamCaptureInvalidated;
  captures->of_stream[&stream] = point.capture;
  Member& member = point.capture->members[&stream];
  for (const auto& [other, nodes] : point.nodes_before) {
    member.nodes_before[other] = std::max(member.nodes_before[other], nodes);
  }
  return cudaSuccess;
}

cudaError_t refuse_captured_event(const CapturePoint& point, const char* call) {
  LockedCaptures captures;
  if (std::find(captures->all.begin(), captures->all.end(), point.capture) != captures->all.end()) {
    invalidate(*point.capture, call, "the event was recorded in a capturing stream");
  } else {
    say_misuse(call, "the event was last recorded in a capture");
  }
  return cudaErrorCapturedEvent;
}

cudaError_t check_no_outside_event(const Stream& stream) {
  LockedCaptures captures;
  const CapturePointer capture = captures->find(stream);
  if (!capture) return cudaSuccess;
  invalidate(*capture, "cudaStreamWaitEvent",
             "a capturing stream waits for an event from outside the capture");
  return cudaErrorStreamCaptureIsolation;
}

cudaError_t launch_graph(const std::shared_ptr<Graph>& graph, cudaStream_t handle) {
  Stream& stream = stream_of(handle);
  if (!is_capturing(stream)) count(Counter::kReplays);
  return submit(stream, {NodeKind::kOther, "cudaGraphLaunch", [graph] { graph->run(); }});
}

}  // namespace mnist_train::fake_gpu
