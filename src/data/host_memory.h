#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace mnist_train::data {

/// Zeroed memory that the system provides page by page as it is written: a reservation that is
/// never filled costs nothing. Throws Error(kData) that begins with `name`.
std::shared_ptr<std::uint8_t> reserve_memory(std::size_t bytes, const std::string& name);

}  // namespace mnist_train::data
