#include "base/parallel.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <exception>

namespace mnist_train {

namespace {

template <class Function>
Function* loaded_function(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
}

/// What OpenMP's libraries offer to compiled programs; null where none is loaded.
struct OpenMp {
  int (*max_threads)() = loaded_function<int()>("omp_get_max_threads");
  int (*in_parallel)() = loaded_function<int()>("omp_in_parallel");
  int (*threads)() = loaded_function<int()>("omp_get_num_threads");
  int (*thread)() = loaded_function<int()>("omp_get_thread_num");
  /// Calls `work(argument)` on each thread of a team; 0 threads are as many as max_threads gives.
  void (*parallel)(void (*work)(void*), void* argument, unsigned threads, unsigned flags) =
      loaded_function<void(void (*)(void*), void*, unsigned, unsigned)>("GOMP_parallel");

  bool is_loaded() const {
    return max_threads != nullptr && in_parallel != nullptr && threads != nullptr &&
           thread != nullptr && parallel != nullptr;
  }
};

const OpenMp& open_mp() {
  static const OpenMp kLibrary;
  return kLibrary;
}

/// What the threads of a team share.
struct Team {
  std::int64_t begin, end, grain;
  const std::function<void(std::int64_t, std::int64_t)>& work;
  std::atomic_flag failed;
  std::exception_ptr failure;

  void do_part() {
    const std::int64_t count = end - begin;
    const std::int64_t parts = std::min<std::int64_t>(open_mp().threads(), count / grain);
    const std::int64_t of_part = (count + parts - 1) / parts;
    const std::int64_t first = begin + open_mp().thread() * of_part;
    if (first >= end) return;
    try {
      work(first, std::min(first + of_part, end));
    } catch (...) {
      if (!failed.test_and_set()) failure = std::current_exception();
    }
  }
};

}  // namespace

void parallel_for(std::int64_t begin, std::int64_t end, std::int64_t grain,
                  const std::function<void(std::int64_t, std::int64_t)>& work) {
  if (begin >= end) return;
  grain = std::max<std::int64_t>(1, grain);
  const OpenMp& library = open_mp();
  if (end - begin <= grain || !library.is_loaded() || library.max_threads() == 1 ||
      library.in_parallel() != 0) {
    work(begin, end);
    return;
  }
  Team team{begin, end, grain, work, {}, nullptr};
  library.parallel([](void* shared) { static_cast<Team*>(shared)->do_part(); }, &team, 0, 0);
  if (team.failure) std::rethrow_exception(team.failure);
}

}  // namespace mnist_train
