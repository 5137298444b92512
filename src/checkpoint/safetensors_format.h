#pragma once

#include <c10/core/ScalarType.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/hash.h"
#include "base/safetensors_header.h"

namespace mnist_train::checkpoint {

/// The parts of the safetensors format that reading and writing share.
inline constexpr const char* kSealName = "mnist-train.seal";
inline constexpr std::size_t kSealBytes = Hasher::kDigestBytes;
inline constexpr std::size_t kLengthBytes = kSafetensorsLengthBytes;

struct TypeName {
  const char* name;
  c10::ScalarType type;
};
inline constexpr std::array kTypes{
    TypeName{"F32", c10::ScalarType::Float},     TypeName{"F64", c10::ScalarType::Double},
    TypeName{"F16", c10::ScalarType::Half},      TypeName{"I64", c10::ScalarType::Long},
    TypeName{"BF16", c10::ScalarType::BFloat16}, TypeName{"I32", c10::ScalarType::Int},
    TypeName{"U8", c10::ScalarType::Byte},       TypeName{"BOOL", c10::ScalarType::Bool},
};

std::array<std::uint8_t, kSealBytes> seal_of(const Hasher& hasher);

}  // namespace mnist_train::checkpoint
