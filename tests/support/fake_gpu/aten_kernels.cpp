#include "support/fake_gpu/aten_kernels.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "support/fake_gpu/bfloat16.h"

namespace mnist_train::fake_gpu {

namespace {

/// A type of tensors' elements. The numbers are those of c10::ScalarType, which ATen passes to its
/// kernels.
enum class ScalarType : std::int8_t {
  kByte = 0,
  kChar = 1,
  kShort = 2,
  kInt = 3,
  kLong = 4,
  kHalf = 5,
  kFloat = 6,
  kDouble = 7,
  kBool = 11,
  kBFloat16 = 15,
  kOther = -1,
};

struct MangledType {
  std::string_view name;
  ScalarType type;
};

constexpr std::array kMangledTypes{MangledType{"d", ScalarType::kDouble},
                                   MangledType{"f", ScalarType::kFloat},
                                   MangledType{"l", ScalarType::kLong},
                                   MangledType{"i", ScalarType::kInt},
                                   MangledType{"s", ScalarType::kShort},
                                   MangledType{"b", ScalarType::kBool},
                                   MangledType{"a", ScalarType::kChar},
                                   MangledType{"h", ScalarType::kByte},
                                   MangledType{"N3c108BFloat16E", ScalarType::kBFloat16},
                                   MangledType{"N3c104HalfE", ScalarType::kHalf}};

template <class Element>
double read_as(const std::byte* from) {
  Element element;
  std::memcpy(&element, from, sizeof element);
  return static_cast<double>(element);
}

template <class Element>
void write_as(std::byte* to, double number) {
  const auto element = static_cast<Element>(number);
  std::memcpy(to, &element, sizeof element);
}

ScalarType mangled_type(std::string_view mangled) {
  for (const auto& [name, type] : kMangledTypes) {
    if (mangled.starts_with(name)) return type;
  }
  return ScalarType::kOther;
}

std::size_t bytes_of(ScalarType type) {
  switch (type) {
    case ScalarType::kByte:
    case ScalarType::kChar:
    case ScalarType::kBool:
      return 1;
    case ScalarType::kShort:
    case ScalarType::kHalf:
    case ScalarType::kBFloat16:
      return 2;
    case ScalarType::kInt:
    case ScalarType::kFloat:
      return 4;
    case ScalarType::kLong:
    case ScalarType::kDouble:
      return 8;
    case ScalarType::kOther:
      break;
  }
  return 0;
}

bool is_number(ScalarType type) { return bytes_of(type) > 0 && type != ScalarType::kHalf; }

double read_number(ScalarType type, const std::byte* element) {
  switch (type) {
    case ScalarType::kByte:
      return read_as<std::uint8_t>(element);
    case ScalarType::kChar:
      return read_as<std::int8_t>(element);
    case ScalarType::kBool:
      return read_as<std::uint8_t>(element) != 0 ? 1 : 0;
    case ScalarType::kShort:
      return read_as<std::int16_t>(element);
    case ScalarType::kInt:
      return read_as<std::int32_t>(element);
    case ScalarType::kLong:
      return read_as<std::int64_t>(element);
    case ScalarType::kFloat:
      return read_as<float>(element);
    case ScalarType::kDouble:
      return read_as<double>(element);
    case ScalarType::kBFloat16: {
      BFloat16 number;
      std::memcpy(&number, element, sizeof number);
      return static_cast<float>(number);
    }
    case ScalarType::kHalf:
    case ScalarType::kOther:
      break;
  }
  return 0;
}

void write_number(ScalarType type, std::byte* element, double number) {
  switch (type) {
    case ScalarType::kByte:
      return write_as<std::uint8_t>(element, number);
    case ScalarType::kChar:
      return write_as<std::int8_t>(element, number);
    case ScalarType::kBool:
      return write_as<std::uint8_t>(element, number != 0 ? 1 : 0);
    case ScalarType::kShort:
      return write_as<std::int16_t>(element, number);
    case ScalarType::kInt:
      return write_as<std::int32_t>(element, number);
    case ScalarType::kLong:
      return write_as<std::int64_t>(element, number);
    case ScalarType::kFloat:
      return write_as<float>(element, number);
    case ScalarType::kDouble:
      return write_as<double>(element, number);
    case ScalarType::kBFloat16: {
      const BFloat16 rounded(static_cast<float>(number));
      std::memcpy(element, &rounded, sizeof rounded);
      return;
    }
    case ScalarType::kHalf:
    case ScalarType::kOther:
      return;
  }
}

/// Larger tensors hold what kernels that do nothing should have computed.
constexpr std::size_t kMaxElements = 1024;
constexpr double kMaxCounter = 1e9;

constexpr std::string_view kVectorized = "vectorized_elementwise_kernelI";
constexpr std::string_view kUnrolled = "unrolled_elementwise_kernelI";
constexpr std::string_view kFill = "FillFunctorI";  // in names, the type comes next
constexpr std::string_view kAdd = "CUDAFunctor_addI";
constexpr std::string_view kAddNumber = "CUDAFunctorOnSelf_addI";
constexpr std::string_view kCopy = "direct_copy_kernel_cuda";

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// Returns the type that comes behind `prefix` in a mangled name.
ScalarType type_behind(std::string_view kernel, std::string_view prefix) {
  const std::size_t begin = kernel.find(prefix);
  return begin == std::string_view::npos ? ScalarType::kOther
                                         : mangled_type(kernel.substr(begin + prefix.size()));
}

std::byte* tensor_at(void** arguments, std::size_t index) {
  return static_cast<std::byte**>(arguments[2])[index];
}

Operation emulate_fill(ScalarType type, void** arguments) {
  const auto count = static_cast<std::size_t>(*static_cast<const int*>(arguments[0]));
  const std::string value(static_cast<const char*>(arguments[1]), bytes_of(type));
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
  ScalarType type = ScalarType::kOther;
  std::byte* data = nullptr;
};

/// result[i] = first[i] + scale * second[i] + number, where a tensor that is missing counts as 0.
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

/// Reads an element. What no counter can be counts as 0: it is what was in the memory when a kernel
/// did nothing.
double counter_element(const Operand& operand, std::size_t index) {
  if (operand.data == nullptr) return 0;
  const auto* element =
      static_cast<const std::byte*>(host_address(operand.data)) + index * bytes_of(operand.type);
  const double number = read_number(operand.type, element);
  return std::abs(number) <= kMaxCounter ? number : 0;  // a NaN is not
}

void run_sum(const Sum& sum) {
  auto* result = static_cast<std::byte*>(host_address(sum.result.data));
  for (std::size_t i = 0; i < sum.count; ++i) {
    const double number =
        counter_element(sum.first, i) + sum.scale * counter_element(sum.second, i) + sum.number;
    write_number(sum.result.type, result + i * bytes_of(sum.result.type), number);
  }
}

/// Returns the number at `index` of a functor whose members are all of the type in which ATen
/// computes with `type`.
double member_of_functor(void** arguments, ScalarType type, std::size_t index) {
  const ScalarType computed = type == ScalarType::kBFloat16 ? ScalarType::kFloat : type;
  const auto* members = static_cast<const std::byte*>(arguments[1]);
  return is_number(computed) ? read_number(computed, members + index * bytes_of(computed)) : 0;
}

/// Returns the types of the tensors of a kernel that converts while it loads and stores. The
/// members of LoadWithCast and StoreWithCast begin with them, a byte each.
ScalarType loaded_type(void** arguments, std::size_t input) {
  return static_cast<const ScalarType*>(arguments[5])[input];
}

ScalarType stored_type(void** arguments) { return *static_cast<const ScalarType*>(arguments[6]); }

/// Returns the sum that the kernel computes; one that is not possible if it computes something
/// else.
Sum sum_of_kernel(std::string_view kernel, void** arguments) {
  const bool converts = contains(kernel, kUnrolled) && contains(kernel, "LoadWithCastI") &&
                        contains(kernel, "StoreWithCastILi1E");
  if (!converts && !contains(kernel, kVectorized)) return {};
  Sum sum;
  sum.count = static_cast<std::size_t>(*static_cast<const int*>(arguments[0]));
  ScalarType type = ScalarType::kOther;
  if (contains(kernel, kAdd)) {
    type = type_behind(kernel, kAdd);
    sum.scale = member_of_functor(arguments, type, 0);
    sum.second = {converts ? loaded_type(arguments, 1) : type, tensor_at(arguments, 2)};
  } else if (contains(kernel, kAddNumber)) {
    type = type_behind(kernel, kAddNumber);
    sum.number = member_of_functor(arguments, type, 0) * member_of_functor(arguments, type, 1);
  } else if (!converts || !contains(kernel, kCopy)) {
    return {};
  }
  sum.result = {converts ? stored_type(arguments) : type, tensor_at(arguments, 0)};
  sum.first = {converts ? loaded_type(arguments, 0) : type, tensor_at(arguments, 1)};
  return sum;
}

}  // namespace

Operation emulate_aten_kernel(std::string_view kernel, void** arguments) {
  if (arguments == nullptr) return {};
  const ScalarType filled = type_behind(kernel, kFill);
  if (filled != ScalarType::kOther &&
      (contains(kernel, kVectorized) || contains(kernel, kUnrolled))) {
    return emulate_fill(filled, arguments);
  }
  const Sum sum = sum_of_kernel(kernel, arguments);
  if (!sum.is_possible()) return {};
  return [sum] { run_sum(sum); };
}

}  // namespace mnist_train::fake_gpu
