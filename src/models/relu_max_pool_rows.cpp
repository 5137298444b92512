#include "models/relu_max_pool_rows.h"

#include <algorithm>
#include <limits>

namespace mnist_train::models {

namespace {

constexpr std::uint8_t kNone = 4;

template <class Bits>
constexpr Bits kInfinity = sizeof(Bits) == 4 ? static_cast<Bits>(0x7f800000)
                                             : static_cast<Bits>(0x7f80);

template <class Bits>
Bits ordered(Bits bits) {
  constexpr Bits kLargest = std::numeric_limits<Bits>::max();
  return static_cast<Bits>(bits & kLargest) > kInfinity<Bits> ? kLargest : bits;
}

template <class Bits>
void take_larger(Bits value, Bits place, Bits& best, Bits& which) {
  which = value > best ? place : which;
  best = value > best ? value : best;
}

template <class Bits>
void pool_row(const Bits* top, const Bits* bottom, Bits* out, std::uint8_t* choice,
              std::int64_t width, std::int64_t channels) {
  for (std::int64_t x = 0; x < width; ++x) {
    const Bits* a = top + 2 * x * channels;
    const Bits* b = bottom + 2 * x * channels;
    for (std::int64_t c = 0; c < channels; ++c) {
      Bits best = 0;
      Bits which = kNone;
      take_larger<Bits>(ordered(a[c]), 0, best, which);
      take_larger<Bits>(ordered(a[c + channels]), 1, best, which);
      take_larger<Bits>(ordered(b[c]), 2, best, which);
      take_larger<Bits>(ordered(b[c + channels]), 3, best, which);
      out[x * channels + c] = best;
      choice[x * channels + c] = static_cast<std::uint8_t>(which);
    }
  }
}

template <class Bits>
void spread_row(const Bits* gradient, const std::uint8_t* choice, Bits* top, Bits* bottom,
                std::int64_t width, std::int64_t channels) {
  std::fill_n(top, 2 * width * channels, Bits{0});
  std::fill_n(bottom, 2 * width * channels, Bits{0});
  for (std::int64_t x = 0; x < width; ++x) {
    Bits* const a = top + 2 * x * channels;
    Bits* const b = bottom + 2 * x * channels;
    Bits* const places[] = {a, a + channels, b, b + channels};
    for (std::int64_t c = 0; c < channels; ++c) {
      const std::uint8_t which = choice[x * channels + c];
      const Bits value = gradient[x * channels + c];
      places[which % 4][c] = which == kNone ? Bits{0} : value;  // without a branch to mispredict
    }
  }
}

template <class Bits>
constexpr PoolRows<Bits> kPortable{&pool_row<Bits>, &spread_row<Bits>};

}  // namespace

template <>
const PoolRows<std::int32_t>& portable_pool_rows() {
  return kPortable<std::int32_t>;
}

template <>
const PoolRows<std::int16_t>& portable_pool_rows() {
  return kPortable<std::int16_t>;
}

}  // namespace mnist_train::models
