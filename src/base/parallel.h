#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace mnist_train {

/// Calls `work(begin, end)` for parts of the range [begin, end), on at most as many threads as
/// at::get_num_threads returns on the calling thread. Each part but the last has at least `grain`
/// elements. There are up to four parts per thread, so that a descheduled thread takes fewer.
/// LibTorch operations inside parallel parts use one thread each. The calling thread does all the
/// work alone if there is only one part or thread, if LibTorch is not loaded, in nested calls and
/// OpenMP regions, and while another thread's work uses the helpers. Throws the first exception of
/// `work`, and Error if the system refuses to start a thread.
///
/// Replaces at::parallel_for, a template that uses threads only if this program is compiled with
/// OpenMP, which would add a second OpenMP library. In addition, OpenMP's threads wait for each
/// other in each call, so a descheduled one delays all others.
void parallel_for(std::int64_t begin, std::int64_t end, std::int64_t grain,
                  const std::function<void(std::int64_t, std::int64_t)>& work);

/// A barrier for processes or threads that share memory. Whatever one writes before arriving is
/// visible to the others after the barrier. A waiter spins briefly, then sleeps on a futex.
class SharedBarrier {
 public:
  /// Returns the size of the barrier's shared memory in bytes.
  static std::size_t bytes(int ranks);

  /// `memory` must be initialised to zeros, aligned to a cache line and shared by all ranks.
  SharedBarrier(void* memory, int rank, int ranks);

  /// Returns when all ranks have arrived. After each 0.1 s of sleep without an arrival, calls
  /// `check` for each other rank; an exception from it ends the wait.
  void arrive_and_wait(const std::function<void(int rank)>& check);
  /// Returns whether that rank has reached the same barrier as this rank.
  bool has_arrived(int rank) const;

 private:
  struct alignas(64) Counter {
    std::atomic<std::uint32_t> value;
  };

  Counter* changes_;   // arrivals of all ranks; waiting ranks sleep on it
  Counter* arrivals_;  // by rank
  int rank_;
  int ranks_;
  std::uint32_t arrived_ = 0;  // number of this rank's arrivals
};

}  // namespace mnist_train
