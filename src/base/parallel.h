#pragma once

#include <cstdint>
#include <functional>

namespace mnist_train {

/// Calls `work(begin, end)` for parts of the numbers from `begin` to `end`, on as many threads as
/// at::set_num_threads was given in this one. Each part but the last has at least `grain` numbers;
/// there are several for each thread, which takes the next one when it is done, so that a thread
/// which other programs hold up does fewer. LibTorch's operations in parts that several threads
/// share use one thread each. One thread alone does the work where there is only one part, where
/// the program has not loaded LibTorch, inside another such call, and while another thread is in
/// one. Throws the first exception that `work` throws, and Error if the system refuses a thread.
///
/// at::parallel_for is a template that uses threads only in programs compiled with OpenMP, of whose
/// library such a program needs its own. And OpenMP's threads wait for each other in each call: one
/// without a core holds up all, the longer the more they ask whether it is done.
void parallel_for(std::int64_t begin, std::int64_t end, std::int64_t grain,
                  const std::function<void(std::int64_t, std::int64_t)>& work);

}  // namespace mnist_train
