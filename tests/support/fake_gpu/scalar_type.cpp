#include "support/fake_gpu/scalar_type.h"

#include <array>
#include <cstring>

#include "support/fake_gpu/bfloat16.h"

namespace mnist_train::fake_gpu {

namespace {

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

}  // namespace

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

}  // namespace mnist_train::fake_gpu
