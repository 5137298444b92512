#pragma once

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "support/grid/order.h"

/// Emulates a GPU's grid of blocks and threads, so that a kernel's source, included after this
/// header, runs on a CPU. Blocks run one after the other. A thread of a block runs until it ends or
/// waits for other threads; only then does the next thread begin. Running threads in reverse order
/// reveals missing barriers. The emulation cannot reveal races within a warp, missing fences, stale
/// caches, or launches that exceed the resources per thread.
namespace mnist_train::grid {

struct Index {
  unsigned x = 0;
  unsigned y = 0;
  unsigned z = 0;
};

/// Runs the threads of one block as fibers; a new fiber is created only when a thread waits.
class Block {
 public:
  enum class Scope { kWarp, kBlock };

  /// Runs `body` once for each thread.
  void run(unsigned threads, const std::function<void()>& body);
  /// Returns when all threads of the scope that have not ended are waiting at the same barrier.
  void wait(Scope scope);
  /// Shares `value` with this thread's warp, and returns the value shared by lane `lane`.
  template <class T>
  T exchange(T value, unsigned lane);

 private:
  static constexpr unsigned kWarp = 32;
  static constexpr unsigned kMaxThreads = 1024;
  static constexpr std::size_t kStack_bytes = std::size_t{64} * 1024;

  /// A position in a stack, for GCC's built-in setjmp and longjmp, which are a hundred times faster
  /// than swapcontext because they make no system call.
  using Place = std::array<void*, 5>;

  struct Fiber {
    ucontext_t context{};  // start of the fiber
    bool has_begun = false;
    Place place{};  // current position while it waits
    std::unique_ptr<std::byte[]> stack;
    unsigned thread = 0;
    bool waits = false;
    Scope scope = Scope::kBlock;
  };

  static void prepare(Fiber& fiber);
  static void begin_fiber();
  static void leave(Fiber& fiber);
  [[noreturn]] static void go_to(Place& place);
  [[noreturn]] static void enter(Fiber& fiber);
  void run_threads();
  void resume(Fiber& fiber);
  bool release_waiting();
  [[noreturn]] static void fail(const char* what);

  std::function<void()> body_;
  unsigned threads_ = 0;
  unsigned begun_ = 0;
  unsigned alive_ = 0;
  std::array<unsigned, kMaxThreads / kWarp> alive_of_warp_{};
  std::array<std::array<std::array<std::byte, 8>, kMaxThreads>, 2> exchanged_{};
  std::array<unsigned, kMaxThreads> exchanges_{};
  Place scheduler_{};
  Fiber* current_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers_;  // reused between blocks
  std::size_t used_ = 0;                        // number used by this block
};

inline Block* block = nullptr;

}  // namespace mnist_train::grid

inline mnist_train::grid::Index threadIdx;
inline mnist_train::grid::Index blockIdx;
inline mnist_train::grid::Index blockDim;
inline mnist_train::grid::Index gridDim;

namespace mnist_train::grid {

inline void Block::fail(const char* what) {
  std::fprintf(stderr, "grid: %s\n", what);
  std::abort();
}

inline void Block::run(unsigned threads, const std::function<void()>& body) {
  if (threads == 0 || threads > kMaxThreads) fail("a block must have 1 to 1,024 threads");
  body_ = body;
  threads_ = alive_ = threads;
  begun_ = 0;
  used_ = 0;
  exchanges_ = {};
  for (unsigned warp = 0; warp < alive_of_warp_.size(); ++warp) {
    const unsigned first = warp * kWarp;
    alive_of_warp_[warp] = first < threads ? std::min(kWarp, threads - first) : 0;
  }
  Block* const outer = std::exchange(block, this);
  while (alive_ > 0) {
    if (begun_ < threads_) {
      if (used_ == fibers_.size()) {
        fibers_.push_back(std::make_unique<Fiber>());
        prepare(*fibers_.back());
      }
      Fiber& fiber = *fibers_[used_++];
      resume(fiber);
    } else if (!release_waiting()) {
      fail("threads of a block wait at different barriers");
    }
  }
  block = outer;
}

inline void Block::prepare(Fiber& fiber) {
  fiber.stack = std::make_unique_for_overwrite<std::byte[]>(kStack_bytes);
  ::getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = kStack_bytes;
  fiber.context.uc_link = nullptr;
  ::makecontext(&fiber.context, &Block::begin_fiber, 0);
}

/// Runs threads of any block; a fiber never ends, because starting one takes a system call.
inline void Block::begin_fiber() {
  for (;;) {
    block->run_threads();
    leave(*block->current_);
  }
}

// Stack switches are not sanitized: the address sanitizer would make a system call before each.

/// Returns to the scheduler until the fiber is resumed.
[[gnu::noinline, gnu::no_sanitize("address")]] inline void Block::leave(Fiber& fiber) {
  if (__builtin_setjmp(fiber.place.data()) == 0) go_to(block->scheduler_);
}

[[gnu::noinline, gnu::no_sanitize("address")]] inline void Block::go_to(Place& place) {
  __builtin_longjmp(place.data(), 1);
}

[[gnu::noinline, gnu::no_sanitize("address")]] inline void Block::enter(Fiber& fiber) {
  if (std::exchange(fiber.has_begun, true)) go_to(fiber.place);
  ::setcontext(&fiber.context);
  fail("cannot start a thread");
}

inline void Block::run_threads() {
  Fiber& fiber = *current_;
  while (begun_ < threads_) {
    const unsigned thread = order == Order::kForwards ? begun_ : threads_ - 1 - begun_;
    ++begun_;
    fiber.thread = thread;
    threadIdx = {thread, 0, 0};
    body_();
    --alive_;
    --alive_of_warp_[fiber.thread / kWarp];
  }
}

[[gnu::noinline, gnu::no_sanitize("address")]] inline void Block::resume(Fiber& fiber) {
  current_ = &fiber;
  fiber.waits = false;
  threadIdx = {fiber.thread, 0, 0};
  if (__builtin_setjmp(scheduler_.data()) == 0) enter(fiber);
}

[[gnu::noinline]] inline void Block::wait(Scope scope) {
  Fiber& fiber = *current_;
  fiber.waits = true;
  fiber.scope = scope;
  leave(fiber);
}

/// Resumes the threads of scopes in which all threads wait. Returns whether there were any.
inline bool Block::release_waiting() {
  unsigned of_block = 0;
  std::array<unsigned, kMaxThreads / kWarp> of_warp{};
  for (std::size_t i = 0; i < used_; ++i) {
    Fiber* const fiber = fibers_[i].get();
    if (!fiber->waits) continue;
    ++(fiber->scope == Scope::kBlock ? of_block : of_warp[fiber->thread / kWarp]);
  }
  std::vector<Fiber*> released;
  for (std::size_t i = 0; i < used_; ++i) {
    Fiber* const fiber = fibers_[i].get();
    if (!fiber->waits) continue;
    const unsigned warp = fiber->thread / kWarp;
    const bool all_wait =
        fiber->scope == Scope::kBlock ? of_block == alive_ : of_warp[warp] == alive_of_warp_[warp];
    if (all_wait) released.push_back(fiber);
  }
  if (order == Order::kBackwards) std::reverse(released.begin(), released.end());
  for (Fiber* fiber : released) resume(*fiber);
  return !released.empty();
}

template <class T>
T Block::exchange(T value, unsigned lane) {
  static_assert(sizeof(T) <= 8);
  const unsigned thread = current_->thread;
  const unsigned from = thread / kWarp * kWarp + lane;
  auto& slots = exchanged_[exchanges_[thread]++ % 2];  // 2: a thread may be one exchange ahead
  std::memcpy(slots[thread].data(), &value, sizeof value);
  wait(Scope::kWarp);
  if (lane >= kWarp || from >= threads_) return value;
  T given;
  std::memcpy(&given, slots[from].data(), sizeof given);
  return given;
}

/// Only one grid runs at a time, because the state of its threads is global: accessing thread-local
/// variables would be slow in a library that is loaded at run time.
inline std::mutex grid_mutex;
inline Block the_block;

/// Translates a pointer of the program to an address that the CPU can access.
using Translate = void* (*)(void* address);

/// A kernel function with its parameter types erased.
class Kernel {
 public:
  using Work = std::function<void(unsigned blocks, unsigned threads)>;

  template <class... Parameters>
  explicit Kernel(void (*function)(Parameters...))
      : sizes_{sizeof(Parameters)...},
        bind_([function](const void* const* arguments, Translate translate) {
          return bind(function, arguments, translate, std::index_sequence_for<Parameters...>());
        }) {}

  /// The sizes of the parameters, in bytes.
  const std::vector<std::size_t>& sizes() const { return sizes_; }
  /// Returns a function that runs the kernel with copies of the arguments. `translate` may be null.
  Work with(const void* const* arguments, Translate translate) const {
    return bind_(arguments, translate);
  }

 private:
  template <class... Parameters, std::size_t... indices>
  static Work bind(void (*function)(Parameters...), const void* const* arguments,
                   Translate translate, std::index_sequence<indices...>) {
    const std::tuple<Parameters...> values{read<Parameters>(arguments[indices], translate)...};
    return [function, values](unsigned blocks, unsigned threads) {
      const std::lock_guard lock(grid_mutex);
      gridDim = {blocks, 1, 1};
      blockDim = {threads, 1, 1};
      for (unsigned i = 0; i < blocks; ++i) {
        blockIdx = {order == Order::kForwards ? i : blocks - 1 - i, 0, 0};
        the_block.run(threads, [&] { std::apply(function, values); });
      }
    };
  }

  template <class T>
  static T read(const void* argument, Translate translate) {
    T value;
    std::memcpy(&value, argument, sizeof value);
    if constexpr (std::is_pointer_v<T>) {
      if (translate != nullptr && value != nullptr) {
        value = static_cast<T>(translate(const_cast<void*>(static_cast<const void*>(value))));
      }
    }
    return value;
  }

  std::vector<std::size_t> sizes_;
  std::function<Work(const void* const*, Translate)> bind_;
};

/// All kernels exported by EXPORT_KERNEL, by name.
inline std::map<std::string, Kernel>& all_kernels() {
  static std::map<std::string, Kernel> kernels_by_name;
  return kernels_by_name;
}

}  // namespace mnist_train::grid

// CUDA C++ keywords and functions.
#define __global__
#define __device__
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __shared__ static
#define UNROLL
#define __syncthreads() mnist_train::grid::block->wait(mnist_train::grid::Block::Scope::kBlock)
#define EXPORT_KERNEL(name)                               \
  [[maybe_unused]] static const bool name##_is_exported = \
      mnist_train::grid::all_kernels().emplace(#name, mnist_train::grid::Kernel(&(name))).second;

inline void __threadfence() {}
inline void __syncwarp(unsigned = 0) {
  mnist_train::grid::block->wait(mnist_train::grid::Block::Scope::kWarp);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return mnist_train::grid::block->exchange(value,
                                            (threadIdx.x % 32) ^ static_cast<unsigned>(mask));
}
template <class T>
T __shfl_down_sync(unsigned, T value, unsigned distance) {
  return mnist_train::grid::block->exchange(value, threadIdx.x % 32 + distance);
}
template <class T>
T __shfl_sync(unsigned, T value, int lane) {
  return mnist_train::grid::block->exchange(value, static_cast<unsigned>(lane));
}
template <class T>
T atomicAdd(T* address, T value) {
  return std::exchange(*address, static_cast<T>(*address + value));
}
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
/// Multiplication and addition that the compiler must not fuse into an operation with one rounding.
inline float __fmul_rn(float a, float b) {
  const volatile float product = a * b;
  return product;
}
inline float __fadd_rn(float a, float b) {
  const volatile float sum = a + b;
  return sum;
}
inline float rsqrtf(float value) { return 1 / std::sqrt(value); }
