#pragma once

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <future>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/error.h"
#include "base/system.h"

namespace mnist_train::comm {

/// Returns whether memory ran out: a GPU's, or the host's in LibTorch's allocator, which has no
/// exception type for it.
inline bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  const std::string_view text = error.what();
  return dynamic_cast<const c10::Error*>(&error) != nullptr &&
         text.substr(0, text.find('\n')).find("DefaultCPUAllocator: ") != std::string_view::npos;
}

/// Returns whether this rank caused the failure: a lack of memory, or an error of its GPU.
inline bool is_own_fault(const std::exception& error) {
  return is_out_of_memory(error) || dynamic_cast<const c10::AcceleratorError*>(&error) != nullptr;
}

/// Returns whether a backend's wait for another rank timed out; that rank may still be there.
inline bool is_timeout(const std::exception& error) {
  const std::string_view text = error.what();
  return text.find("imed out") != std::string_view::npos ||
         text.find("timeout") != std::string_view::npos;  // NCCL's watchdog
}

/// Runs a collective. Exceptions of c10d or a backend mean that another rank is gone or late; they
/// become a PeerError that names the operation.
template <class Function>
auto translate_failures(const char* operation, Function&& function) {
  try {
    return function();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    if (is_own_fault(error)) throw;
    throw PeerError(std::string("lost another rank in ") + operation + ": " + short_message(error));
  }
}

/// A time-out that does not count time in which this process was stopped, as with the whole job.
class Deadline {
 public:
  explicit Deadline(double timeout_s) : left_s_(timeout_s) {}

  /// Returns the seconds that are left. Must be called about every `next_look`.
  double left_s() {
    const double now_s = monotonic_seconds();
    left_s_ -= std::min(now_s - looked_at_s_, 2 * kLookEvery_s);
    looked_at_s_ = now_s;
    return left_s_;
  }

  /// Returns the longest time to wait before the next `left_s`.
  std::chrono::milliseconds next_look() {
    return to_milliseconds(std::clamp(left_s(), 0.001, kLookEvery_s));
  }

 private:
  static constexpr double kLookEvery_s = 0.5;

  double left_s_;
  double looked_at_s_ = monotonic_seconds();
};

/// Runs `work` on its own thread and returns its result or throws its exception. Returns nothing if
/// the deadline comes first: the thread stays behind in a call that nobody can end, so `work` must
/// own all that it uses.
template <class Work>
auto finish_before(Deadline& deadline, Work work) -> std::optional<std::invoke_result_t<Work>> {
  auto promise = std::make_shared<std::promise<std::invoke_result_t<Work>>>();
  auto result = promise->get_future();
  start_thread([promise, work = std::move(work)] {
    try {
      promise->set_value(work());
    } catch (...) {
      promise->set_exception(std::current_exception());
    }
  }).detach();
  while (result.wait_for(deadline.next_look()) != std::future_status::ready) {
    if (deadline.left_s() <= 0) return std::nullopt;
  }
  return result.get();
}

}  // namespace mnist_train::comm
