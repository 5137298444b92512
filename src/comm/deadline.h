#pragma once

#include <algorithm>
#include <chrono>
#include <exception>
#include <future>
#include <memory>
#include <optional>
#include <type_traits>

#include "base/system.h"

namespace mnist_train::comm {

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
