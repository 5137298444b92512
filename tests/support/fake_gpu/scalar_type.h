#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace mnist_train::fake_gpu {

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

/// Returns the type that a mangled name begins with (Itanium C++ ABI); kOther where there is none
/// of those above.
ScalarType mangled_type(std::string_view mangled);

/// Returns the size of an element in bytes; 0 for kOther.
std::size_t bytes_of(ScalarType type);

/// Returns whether `read_number` and `write_number` know the type.
bool is_number(ScalarType type);

/// Reads an element as a number.
double read_number(ScalarType type, const std::byte* element);

/// Writes a number as an element.
void write_number(ScalarType type, std::byte* element, double number);

}  // namespace mnist_train::fake_gpu
