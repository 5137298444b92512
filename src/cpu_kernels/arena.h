#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "cpu_kernels/layout.h"

namespace mnist_train::cpu_kernels {

/// The system has no memory for an arena.
struct ArenaError : std::bad_alloc {
  const char* what() const noexcept override { return "no memory for the activations of a batch"; }
};

/// Memory of fixed parts, which are zeros at first.
template <class Element>
class Arena {
 public:
  /// Returns the offset of a new part.
  std::size_t add(std::int64_t elements) {
    const std::size_t offset = size_;
    const std::size_t bytes = static_cast<std::size_t>(elements) * sizeof(Element) + kSlackBytes;
    size_ += (bytes + kPage - 1) / kPage * kPage / sizeof(Element);
    return offset;
  }
  void allocate() {
    const std::size_t bytes = std::max<std::size_t>(size_ * sizeof(Element), kPage);
    void* const memory = std::aligned_alloc(kPage, bytes);
    if (memory == nullptr) throw ArenaError();
    std::memset(memory, 0, bytes);
    memory_.reset(static_cast<Element*>(memory));
  }
  Element* at(std::size_t offset) const { return memory_.get() + offset; }

 private:
  static constexpr std::size_t kPage = 4096;
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };

  std::size_t size_ = 0;
  std::unique_ptr<Element[], Free> memory_;
};

/// Parts of an arena that values share if they are live at different times.
class Reuse {
 public:
  static constexpr std::size_t kNone = ~std::size_t{0};

  explicit Reuse(std::int64_t values) : part_of_(static_cast<std::size_t>(values), kNone) {}

  /// Gives a value the first free part that is large enough, unless it has one.
  void take(std::int32_t value, std::int64_t size) {
    std::size_t& part = part_of_[static_cast<std::size_t>(value)];
    if (part != kNone) return;
    for (part = 0; part < parts_.size(); ++part) {
      if (!parts_[part].in_use && parts_[part].size >= size) break;
    }
    if (part == parts_.size()) parts_.push_back({size, false});
    parts_[part].in_use = true;
  }
  void give_back(std::int32_t value) {
    parts_[part_of_[static_cast<std::size_t>(value)]].in_use = false;
  }

  /// Adds the parts to an arena. Returns the offset of each value, 0 for those without a part.
  template <class Element>
  std::vector<std::size_t> add_to(Arena<Element>& arena) const {
    std::vector<std::size_t> of_parts, offsets;
    for (const ReusedPart& part : parts_) of_parts.push_back(arena.add(part.size));
    for (const std::size_t part : part_of_) {
      offsets.push_back(part == kNone ? 0 : of_parts[part]);
    }
    return offsets;
  }

 private:
  struct ReusedPart {
    std::int64_t size;
    bool in_use;
  };

  std::vector<ReusedPart> parts_;
  std::vector<std::size_t> part_of_;  // of values
};

}  // namespace mnist_train::cpu_kernels
