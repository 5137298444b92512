#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace mnist_train {

/// Calls `work(begin, end)` for parts of the range from `begin` to `end`, on as many threads as
/// at::set_num_threads was given in this one. Each part but the last has at least `grain` numbers.
/// There are several parts per thread, so that a descheduled thread does fewer. LibTorch's
/// operations within shared parts use one thread each. The calling thread does all work alone if
/// there is only one part, if the program has not loaded LibTorch, inside another such call, and
/// while another thread is in one. Throws the first exception of `work`, and Error if the system
/// refuses a thread.
///
/// at::parallel_for is a template that uses threads only in programs compiled with OpenMP, which
/// would need an OpenMP library of their own. And OpenMP's threads wait for each other in each
/// call: one without a core holds up all.
void parallel_for(std::int64_t begin, std::int64_t end, std::int64_t grain,
                  const std::function<void(std::int64_t, std::int64_t)>& work);

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
