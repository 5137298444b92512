#pragma once

#include <cstdint>
#include <functional>

namespace mnist_train {

/// Calls `work(begin, end)` for parts of the numbers from `begin` to `end`, on as many threads as
/// at::set_num_threads was given in this one. Each part but the last has at least `grain` numbers.
/// One thread alone does it where there is only one part, where the program has not loaded
/// LibTorch, and inside another such call. Throws the first exception that `work` throws.
///
/// at::parallel_for is a template that uses threads only in programs compiled with OpenMP. Such a
/// program needs an OpenMP library of its own, and some builds of LibTorch bring theirs under
/// another name; two of them would fight for the cores. So this asks LibTorch's at run time.
void parallel_for(std::int64_t begin, std::int64_t end, std::int64_t grain,
                  const std::function<void(std::int64_t, std::int64_t)>& work);

}  // namespace mnist_train
