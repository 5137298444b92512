#pragma once

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

}  // namespace mnist_train
