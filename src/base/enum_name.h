#pragma once

#include <array>
#include <cstddef>

namespace mnist_train {

/// Returns the name of an enumerator whose enum counts from 0, out of a table in the enum's order;
/// `otherwise` for a value that the table does not have, as one from another process may be.
template <class Enum, std::size_t kCount>
constexpr const char* enum_name(const std::array<const char*, kCount>& names, Enum value,
                                const char* otherwise = "unknown") {
  const auto index = static_cast<std::size_t>(value);
  return index < kCount ? names[index] : otherwise;
}

}  // namespace mnist_train
