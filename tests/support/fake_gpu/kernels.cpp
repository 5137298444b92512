#include "support/fake_gpu/kernels.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "support/fake_gpu/bfloat16.h"
#include "support/fake_gpu/capture.h"
#include "support/fake_gpu/message.h"
#include "support/fake_gpu/report.h"
#include "support/fake_gpu/settings.h"
#include "support/fake_gpu/stream.h"

namespace mnist_train::fake_gpu {

namespace {

/// A tensor element type, with functions that read and write one element.
struct ElementType {
  std::int8_t number;        // its c10::ScalarType, which ATen passes to kernels
  std::string_view mangled;  // name within mangled kernel names
  std::size_t bytes;
  double (*read)(const std::byte* from);
  void (*write)(std::byte* to, double number);
};

/// `Element` is the stored type, `Number` the type of the value that it represents.
template <class Element, class Number = Element>
constexpr ElementType element_type(std::int8_t number, std::string_view mangled) {
  return {number, mangled, sizeof(Element),
          [](const std::byte* from) {
            Element element{};
            std::memcpy(&element, from, sizeof element);
            return static_cast<double>(static_cast<Number>(element));
          },
          [](std::byte* to, double value) {
            const auto element = static_cast<Element>(static_cast<Number>(value));
            std::memcpy(to, &element, sizeof element);
          }};
}

constexpr std::array kElementTypes{
    element_type<double>(7, "d"),
    element_type<float>(6, "f"),
    element_type<std::int64_t>(4, "l"),
    element_type<std::int32_t>(3, "i"),
    element_type<std::int16_t>(2, "s"),
    element_type<std::uint8_t, bool>(11, "b"),
    element_type<std::int8_t>(1, "a"),
    element_type<std::uint8_t>(0, "h"),
    element_type<BFloat16, float>(15, "N3c108BFloat16E"),
    ElementType{5, "N3c104HalfE", 2, nullptr, nullptr}};  // supports fills, but no sums

/// An entry of the table; null for a type that is not in it.
using Type = const ElementType*;

template <class Predicate>
Type find_type(const Predicate& is_wanted) {
  const auto found = std::find_if(kElementTypes.begin(), kElementTypes.end(), is_wanted);
  return found == kElementTypes.end() ? nullptr : &*found;
}

Type numbered_type(std::int8_t number) {
  return find_type([&](const ElementType& type) { return type.number == number; });
}

bool is_number(Type type) { return type != nullptr && type->read != nullptr; }

/// Counters are in small tensors; larger ones contain results of no-op kernels anyway.
constexpr std::size_t kMaxElements = 1024;
constexpr double kMaxCounter = 1e9;

constexpr std::string_view kVectorized = "vectorized_elementwise_kernelI";
constexpr std::string_view kUnrolled = "unrolled_elementwise_kernelI";
constexpr std::string_view kFill = "FillFunctorI";  // followed by the type
constexpr std::string_view kAdd = "CUDAFunctor_addI";
constexpr std::string_view kAddNumber = "CUDAFunctorOnSelf_addI";
constexpr std::string_view kCopy = "direct_copy_kernel_cuda";

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// Returns the type after `prefix` in a mangled name.
Type type_after(std::string_view kernel, std::string_view prefix) {
  const std::size_t begin = kernel.find(prefix);
  if (begin == std::string_view::npos) return nullptr;
  const std::string_view rest = kernel.substr(begin + prefix.size());
  return find_type([&](const ElementType& type) { return rest.starts_with(type.mangled); });
}

std::byte* tensor_at(void** arguments, std::size_t index) {
  return static_cast<std::byte**>(arguments[2])[index];
}

Operation emulate_fill(const ElementType& type, void** arguments) {
  const auto count = static_cast<std::size_t>(*static_cast<const int*>(arguments[0]));
  const std::string value(static_cast<const char*>(arguments[1]), type.bytes);
  return [count, value, tensor = tensor_at(arguments, 0)] {
    auto* to = static_cast<std::byte*>(host_address(tensor));
    if (value.find_first_not_of('\0') == std::string::npos) {
      std::memset(to, 0, count * value.size());
      return;
    }
    for (std::size_t i = 0; i < count; ++i) {
      std::memcpy(to + i * value.size(), value.data(), value.size());
    }
  };
}

/// One tensor of an elementwise kernel.
struct Operand {
  Type type = nullptr;
  std::byte* data = nullptr;
};

/// result[i] = first[i] + scale * second[i] + number; a missing tensor counts as 0.
struct Sum {
  std::size_t count = 0;
  Operand result;
  Operand first;
  Operand second;
  double scale = 0;
  double number = 0;

  bool is_possible() const {
    const bool second_is_possible = second.data == nullptr || is_number(second.type);
    return count <= kMaxElements && is_number(result.type) && is_number(first.type) &&
           second_is_possible;
  }
};

/// Reads an element. A value too large for a counter counts as 0: a no-op kernel did not write it.
double counter_element(const Operand& operand, std::size_t index) {
  if (operand.data == nullptr) return 0;
  const auto* element =
      static_cast<const std::byte*>(host_address(operand.data)) + index * operand.type->bytes;
  const double number = operand.type->read(element);
  return std::abs(number) <= kMaxCounter ? number : 0;  // 0 for NaN
}

void run_sum(const Sum& sum) {
  auto* result = static_cast<std::byte*>(host_address(sum.result.data));
  for (std::size_t i = 0; i < sum.count; ++i) {
    const double number =
        counter_element(sum.first, i) + sum.scale * counter_element(sum.second, i) + sum.number;
    sum.result.type->write(result + i * sum.result.type->bytes, number);
  }
}

/// Returns member `index` of a functor whose members all have ATen's computation type for `type`.
double member_of_functor(void** arguments, Type type, std::size_t index) {
  if (!is_number(type)) return 0;
  constexpr std::int8_t kFloat = 6;
  constexpr std::int8_t kBFloat16 = 15;
  const ElementType& computed = type->number == kBFloat16 ? *numbered_type(kFloat) : *type;
  const auto* members = static_cast<const std::byte*>(arguments[1]);
  return computed.read(members + index * computed.bytes);
}

/// Return the tensor types of a kernel that converts on load and store. LoadWithCast and
/// StoreWithCast begin with the types, one byte each.
Type loaded_type(void** arguments, std::size_t input) {
  return numbered_type(static_cast<const std::int8_t*>(arguments[5])[input]);
}

Type stored_type(void** arguments) {
  return numbered_type(*static_cast<const std::int8_t*>(arguments[6]));
}

/// Returns the sum that the kernel computes, or one that is not `is_possible()` for other kernels.
Sum sum_of_kernel(std::string_view kernel, void** arguments) {
  const bool converts = contains(kernel, kUnrolled) && contains(kernel, "LoadWithCastI") &&
                        contains(kernel, "StoreWithCastILi1E");
  if (!converts && !contains(kernel, kVectorized)) return {};
  Sum sum;
  sum.count = static_cast<std::size_t>(*static_cast<const int*>(arguments[0]));
  Type type = nullptr;
  if (contains(kernel, kAdd)) {
    type = type_after(kernel, kAdd);
    sum.scale = member_of_functor(arguments, type, 0);
    sum.second = {converts ? loaded_type(arguments, 1) : type, tensor_at(arguments, 2)};
  } else if (contains(kernel, kAddNumber)) {
    type = type_after(kernel, kAddNumber);
    sum.number = member_of_functor(arguments, type, 0) * member_of_functor(arguments, type, 1);
  } else if (!converts || !contains(kernel, kCopy)) {
    return {};
  }
  sum.result = {converts ? stored_type(arguments) : type, tensor_at(arguments, 0)};
  sum.first = {converts ? loaded_type(arguments, 0) : type, tensor_at(arguments, 1)};
  return sum;
}

/// Returns the operation of an ATen kernel that a run's counters need, or else an empty operation.
/// These kernels fill a contiguous tensor with a value, or they add, add a number to, or convert
/// small contiguous tensors. So a run knows how many samples it has seen and whether it was asked
/// to stop, although nothing else is computed.
///
/// `kernel` is the mangled name. `arguments` are those of at::native's
///
///     vectorized_elementwise_kernel<…>(int count, Functor, array<char*, N> tensors)
///     unrolled_elementwise_kernel<…>(int count, Functor, array<char*, N> tensors,
///                                    input offsets, output offsets, LoadWithCast, StoreWithCast)
///
/// in LibTorch 2.11; the first tensor is the result.
Operation emulate_aten_kernel(std::string_view kernel, void** arguments) {
  if (arguments == nullptr) return {};
  const Type filled = type_after(kernel, kFill);
  if (filled != nullptr && (contains(kernel, kVectorized) || contains(kernel, kUnrolled))) {
    return emulate_fill(*filled, arguments);
  }
  const Sum sum = sum_of_kernel(kernel, arguments);
  if (!sum.is_possible()) return {};
  return [sum] { run_sum(sum); };
}

constexpr unsigned kMaxGridHeight = 65535;  // also the maximum depth
constexpr std::size_t kMaxShared_bytes = std::size_t{227} * 1024;

struct Kernels {
  std::mutex mutex;
  std::unordered_map<const void*, Kernel> of_function;
};

Kernels& kernels() {
  static auto& kernels = *new Kernels();
  return kernels;
}

bool is_possible(const LaunchShape& shape) {
  const unsigned threads = shape.block.x * shape.block.y * shape.block.z;
  return shape.grid.x > 0 && shape.grid.y > 0 && shape.grid.z > 0 &&
         shape.grid.y <= kMaxGridHeight && shape.grid.z <= kMaxGridHeight && threads > 0 &&
         threads <= static_cast<unsigned>(kMaxThreadsPerBlock);
}

/// Returns the operation that a launch enqueues: `work` and the effects of the settings. It is
/// empty if there is nothing to do, which saves waking the stream's thread.
Operation with_settings(Operation work, int device) {
  const long kernel_us = settings().kernel_us;
  if (kernel_us == 0 && !counts_started_launches()) return work;
  return [work = std::move(work), device, kernel_us] {
    if (counts_started_launches()) count_started_launch(device);
    if (kernel_us > 0) ::usleep(static_cast<useconds_t>(kernel_us));
    if (work) work();
  };
}

Operation operation_of(const Kernel& kernel, const LaunchShape& shape, void** arguments) {
  if (kernel.bind == nullptr) return emulate_aten_kernel(kernel.name, arguments);
  const Translate translate = [](void* address) { return host_address(address); };
  Operation work;
  kernel.bind(kernel.name, arguments, translate, shape.grid.x, shape.block.x, &work);
  return work;
}

cudaError_t launch(Stream& stream, const char* name, Operation work) {
  count_launch(name, is_capturing(stream));
  return submit(stream, {NodeKind::kKernel, name, with_settings(std::move(work), stream.device())});
}

}  // namespace

void register_kernel(const void* host_function, const char* name) {
  Kernels& all = kernels();
  const std::lock_guard lock(all.mutex);
  all.of_function[host_function].name = name;
}

Kernel* find_kernel(const void* host_function) {
  Kernels& all = kernels();
  const std::lock_guard lock(all.mutex);
  const auto found = all.of_function.find(host_function);
  return found == all.of_function.end() ? nullptr : &found->second;
}

cudaError_t launch_kernel(const Kernel* kernel, const LaunchShape& shape, void** arguments,
                          cudaStream_t stream) {
  if (kernel == nullptr) {
    say_misuse("launch", "the kernel was not registered");
    return cudaErrorInvalidDeviceFunction;
  }
  if (!is_possible(shape)) {
    say_misuse(kernel->name, "invalid launch shape");
    return cudaErrorInvalidConfiguration;
  }
  if (shape.shared_bytes > kMaxShared_bytes) return cudaErrorInvalidValue;
  return launch(stream_of(stream), kernel->name, operation_of(*kernel, shape, arguments));
}

cudaError_t launch_library_kernel(cudaStream_t stream, const char* name, Operation operation) {
  bind_context();
  return launch(stream_of(stream), name, std::move(operation));
}

}  // namespace mnist_train::fake_gpu
