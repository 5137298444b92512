#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace mnist_train::data {

/// Zeroed memory that the system provides page by page as it is written: a reservation that is
/// never filled costs nothing. Throws Error(kData) that begins with `name`.
std::shared_ptr<std::uint8_t> reserve_memory(std::size_t bytes, const std::string& name);

/// What this process can still take: the system's available memory, cut by the limits of its
/// control groups; the greatest number where nobody says.
std::int64_t available_memory_bytes();

}  // namespace mnist_train::data
