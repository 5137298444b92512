#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace mnist_train {

/// A barrier of processes, or threads, that share memory. All that one of them wrote before it
/// arrived is visible to the others once they have passed. A waiting process spins for some 20
/// microseconds, then sleeps on a futex.
class SharedBarrier {
 public:
  /// Returns the bytes of shared memory that the barrier takes.
  static std::size_t bytes(int ranks);

  /// `memory`: zeros at first, aligned to a cache line, the same for all ranks.
  SharedBarrier(void* memory, int rank, int ranks);

  /// Returns when all ranks have arrived. Ten times a second a sleeping one calls `check` with a
  /// rank that is missing; its exception ends the wait.
  void arrive_and_wait(const std::function<void(int rank)>& check);
  /// Returns whether that rank has come as far as this one.
  bool has_arrived(int rank) const;

 private:
  struct alignas(64) Counter {
    std::atomic<std::uint32_t> value;
  };

  Counter* changes_;   // arrivals of all ranks; waiting ranks sleep on it
  Counter* arrivals_;  // by rank
  int rank_;
  int ranks_;
  std::uint32_t arrived_ = 0;  // of this rank
};

}  // namespace mnist_train
