#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace mnist_train::checkpoint {

[[noreturn]] inline void fail_checkpoint(const std::string& message) {
  throw Error(ExitCode::kCheckpoint, message);
}

template <class Value>
using NamedValues = std::vector<std::pair<std::string, Value>>;
using NamedTensors = NamedValues<at::Tensor>;

/// Returns the value with this name, or null.
template <class Value>
const Value* find_named(const NamedValues<Value>& values, std::string_view name) {
  for (const auto& [key, value] : values) {
    if (key == name) return &value;
  }
  return nullptr;
}

/// An element type of tensors in files, by its names in safetensors and in PyTorch's pickles.
struct ElementType {
  const char* safetensors;
  const char* storage;
  const char* dtype;
  at::ScalarType type;
};
inline constexpr std::array kElementTypes{
    ElementType{"F32", "torch.FloatStorage", "torch.float32", at::kFloat},
    ElementType{"F64", "torch.DoubleStorage", "torch.float64", at::kDouble},
    ElementType{"F16", "torch.HalfStorage", "torch.float16", at::kHalf},
    ElementType{"BF16", "torch.BFloat16Storage", "torch.bfloat16", at::kBFloat16},
    ElementType{"I64", "torch.LongStorage", "torch.int64", at::kLong},
    ElementType{"I32", "torch.IntStorage", "torch.int32", at::kInt},
    ElementType{"I16", "torch.ShortStorage", "torch.int16", at::kShort},
    ElementType{"I8", "torch.CharStorage", "torch.int8", at::kChar},
    ElementType{"U8", "torch.ByteStorage", "torch.uint8", at::kByte},
    ElementType{"BOOL", "torch.BoolStorage", "torch.bool", at::kBool},
};

/// Returns the element type whose `member` is `value`, or null.
template <class Member, class Value>
const ElementType* find_element_type(Member ElementType::*member, const Value& value) {
  for (const ElementType& row : kElementTypes) {
    if (row.*member == value) return &row;
  }
  return nullptr;
}

/// The content of a safetensors file (https://github.com/huggingface/safetensors).
struct TensorFile {
  NamedTensors tensors;  // contiguous and on the CPU when they were read
  NamedValues<std::string> metadata;
  NamedValues<std::string> unreadable{};  // names, and why each is no tensor of a known type

  const at::Tensor* find(std::string_view name) const { return find_named(tensors, name); }
  const std::string* find_metadata(std::string_view name) const {
    return find_named(metadata, name);
  }
};

/// Writes a safetensors file, whole or not at all. With `seal` its last tensor is
/// `mnist-train.seal` (u8[16]), the XXH3-128 of all bytes before it, which reveals any flipped bit
/// or missing byte; other readers see one more tensor. Throws Error(kCheckpoint).
void write_safetensors(const std::filesystem::path& path, const TensorFile& content, bool seal);

/// Reads a safetensors file and checks header, types, shapes, that the tensors cover the data
/// exactly, and the seal if there is one or `require_seal` demands it. Allocates no more than the
/// file's size. Throws Error(kCheckpoint) with path and reason.
TensorFile read_safetensors(const std::filesystem::path& path, bool require_seal);

}  // namespace mnist_train::checkpoint
