#pragma once

// Only for sources compiled with AVX-512, like lanes_avx512.h.

#include "cpu_kernels/normalization_avx512.h"

/// Activation functions in fp32. Errors are a few ulp; NaNs stay NaNs.
namespace mnist_train::cpu_kernels::avx512 {

inline __m512 number(float value) { return _mm512_set1_ps(value); }

/// Returns the polynomial with these coefficients, the constant last.
template <class... Coefficients>
[[gnu::always_inline]] inline __m512 polynomial(__m512 x, float highest, Coefficients... others) {
  __m512 sum = number(highest);
  ((sum = _mm512_fmadd_ps(sum, x, number(others))), ...);
  return sum;
}

/// Returns a bounded below and above. A NaN stays one: of two operands, the instructions return the
/// second if either is NaN.
inline __m512 clamp(__m512 a, float low, float high) {
  return _mm512_min_ps(number(high), _mm512_max_ps(number(low), a));
}

/// Returns e^x: 2^n * e^r with |r| <= ln(2) / 2, by the polynomial of Cephes' expf.
inline __m512 exponential(__m512 x) {
  x = clamp(x, -150, 150);  // further results are 0 or infinite anyway
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, number(0x1.715476p0F)),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  // ln(2) in two parts, of which the first has few enough digits for an exact product.
  __m512 r = _mm512_fnmadd_ps(n, number(0.693359375F), x);
  r = _mm512_fnmadd_ps(n, number(-2.12194440e-4F), r);
  const __m512 p = polynomial(r, 1.9875691500e-4F, 1.3981999507e-3F, 8.3334519073e-3F,
                              4.1665795894e-2F, 1.6666665459e-1F, 5.0000001201e-1F);
  const __m512 power = _mm512_fmadd_ps(_mm512_mul_ps(r, r), p, _mm512_add_ps(r, number(1)));
  return _mm512_scalef_ps(power, n);
}

inline __m512 sigmoid(__m512 x) {
  const __m512 e = exponential(_mm512_sub_ps(_mm512_setzero_ps(), x));
  return _mm512_div_ps(number(1), _mm512_add_ps(number(1), e));
}

/// By exponentials, or for small numbers by the polynomial of Cephes' tanhf.
inline __m512 hyperbolic_tangent(__m512 x) {
  const __m512 magnitude = _mm512_abs_ps(x);
  const __m512 e = exponential(_mm512_add_ps(magnitude, magnitude));
  const __m512 far =
      _mm512_sub_ps(number(1), _mm512_div_ps(number(2), _mm512_add_ps(e, number(1))));
  const __m512 square = _mm512_mul_ps(x, x);
  const __m512 p = polynomial(square, -5.70498872745e-3F, 2.06390887954e-2F, -5.37397155531e-2F,
                              1.33314422036e-1F, -3.33332819422e-1F);
  const __m512 near = _mm512_fmadd_ps(_mm512_mul_ps(square, x), p, x);
  const __m512i sign =
      _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(static_cast<int>(0x80000000U)));
  const __m512 signed_far = _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(far), sign));
  return _mm512_mask_mov_ps(signed_far, _mm512_cmp_ps_mask(magnitude, number(0.625F), _CMP_LT_OQ),
                            near);
}

/// The standard normal distribution function at x, and its derivative.
struct Normal {
  __m512 below, density;
};

/// For a = |x|, the part below -a is e^(-a^2 / 2) / (a + k) times a polynomial of
/// (a - k) / (a + k), interpolated at Chebyshev nodes with an error of 4e-8.
inline Normal normal_distribution(__m512 x) {
  constexpr float kCentre = 3.75F;
  const __m512 a = _mm512_min_ps(number(15), _mm512_abs_ps(x));
  const __m512 square = _mm512_mul_ps(a, a);
  const __m512 rest = _mm512_fmsub_ps(a, a, square);  // that rounding took from the square
  __m512 e = exponential(_mm512_mul_ps(square, number(-0.5F)));
  e = _mm512_fnmadd_ps(_mm512_mul_ps(rest, number(0.5F)), e, e);
  const __m512 t = _mm512_div_ps(number(1), _mm512_add_ps(a, number(kCentre)));
  const __m512 p = polynomial(_mm512_mul_ps(_mm512_sub_ps(a, number(kCentre)), t), 4.495319850e-4F,
                              5.191939439e-4F, -4.170580888e-3F, 1.192974622e-3F, 3.749176164e-2F,
                              -1.515192620e-1F, 3.529397875e-1F, -5.881883701e-1F, 7.502940700e-1F);
  const __m512 tail = _mm512_mul_ps(_mm512_mul_ps(e, t), p);
  const __mmask16 positive = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GT_OQ);
  return {_mm512_mask_sub_ps(tail, positive, number(1), tail),
          _mm512_mul_ps(e, number(0.398942280F))};
}

// Functions: `value(x)`, and `gradient(dy, v)`, which takes the output as v if
// `differentiates_output`, otherwise the input.

struct Relu {
  __m512 value(__m512 x) const { return _mm512_max_ps(_mm512_setzero_ps(), x); }
  __m512 gradient(__m512 dy, __m512 y) const {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(y, _mm512_setzero_ps(), _CMP_NLE_UQ), dy);
  }
};

struct Relu6 {
  __m512 value(__m512 x) const { return clamp(x, 0, 6); }
  __m512 gradient(__m512 dy, __m512 y) const {
    const __mmask16 above = _mm512_cmp_ps_mask(y, _mm512_setzero_ps(), _CMP_NLE_UQ);
    return _mm512_maskz_mov_ps(_mm512_mask_cmp_ps_mask(above, y, number(6), _CMP_NGE_UQ), dy);
  }
};

struct LeakyRelu {
  __m512 value(__m512 x) const { return gradient(x, x); }
  __m512 gradient(__m512 dy, __m512 v) const {
    const __mmask16 below = _mm512_cmp_ps_mask(v, _mm512_setzero_ps(), _CMP_LE_OQ);
    return _mm512_mask_mul_ps(dy, below, dy, number(negative_slope));
  }

  float negative_slope;
};

struct Hardsigmoid {
  __m512 value(__m512 x) const {
    return _mm512_mul_ps(clamp(_mm512_add_ps(x, number(3)), 0, 6), number(1.0F / 6));
  }
  __m512 gradient(__m512 dy, __m512 y) const {
    const __mmask16 above = _mm512_cmp_ps_mask(y, _mm512_setzero_ps(), _CMP_NLE_UQ);
    return _mm512_maskz_mul_ps(_mm512_mask_cmp_ps_mask(above, y, number(1), _CMP_NGE_UQ), dy,
                               number(1.0F / 6));
  }
};

struct Hardswish {
  __m512 value(__m512 x) const { return _mm512_mul_ps(x, Hardsigmoid{}.value(x)); }
  __m512 gradient(__m512 dy, __m512 x) const {
    const __m512 slope = _mm512_fmadd_ps(x, number(1.0F / 3), number(0.5F));
    const __mmask16 inside = _mm512_cmp_ps_mask(x, number(3), _CMP_NGE_UQ);
    const __m512 right = _mm512_mask_mul_ps(dy, inside, dy, slope);
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, number(-3), _CMP_NLE_UQ), right);
  }
};

struct Sigmoid {
  __m512 value(__m512 x) const { return sigmoid(x); }
  __m512 gradient(__m512 dy, __m512 y) const {
    return _mm512_mul_ps(dy, _mm512_mul_ps(y, _mm512_sub_ps(number(1), y)));
  }
};

struct Tanh {
  __m512 value(__m512 x) const { return hyperbolic_tangent(x); }
  __m512 gradient(__m512 dy, __m512 y) const {
    return _mm512_mul_ps(dy, _mm512_fnmadd_ps(y, y, number(1)));
  }
};

struct Silu {
  __m512 value(__m512 x) const { return _mm512_mul_ps(x, sigmoid(x)); }
  __m512 gradient(__m512 dy, __m512 x) const {
    const __m512 s = sigmoid(x);
    const __m512 slope = _mm512_fmadd_ps(x, _mm512_sub_ps(number(1), s), number(1));
    return _mm512_mul_ps(dy, _mm512_mul_ps(s, slope));
  }
};

struct Gelu {
  __m512 value(__m512 x) const { return _mm512_mul_ps(x, normal_distribution(x).below); }
  __m512 gradient(__m512 dy, __m512 x) const {
    const Normal normal = normal_distribution(x);
    return _mm512_mul_ps(dy, _mm512_fmadd_ps(x, normal.density, normal.below));
  }
};

/// x * sigmoid(2 u) with u = sqrt(2 / pi) * (x + 0.044715 x^3), which is x / 2 * (1 + tanh(u)).
struct TanhGelu {
  static constexpr float kFactor = 1.59576912F;  // 2 sqrt(2 / pi)
  static constexpr float kCubic = 0.044715F;
  static constexpr float kFar = 20;  // the sigmoid rounds to 0 or 1 there

  __m512 value(__m512 x) const { return _mm512_mul_ps(x, weight(x)); }
  __m512 gradient(__m512 dy, __m512 x) const {
    const __m512 s = weight(x);
    x = clamp(x, -kFar, kFar);
    const __m512 u = _mm512_mul_ps(
        x, _mm512_fmadd_ps(_mm512_mul_ps(x, x), number(3 * kFactor * kCubic), number(kFactor)));
    const __m512 slope = _mm512_fmadd_ps(u, _mm512_sub_ps(number(1), s), number(1));
    return _mm512_mul_ps(dy, _mm512_mul_ps(s, slope));
  }

 private:
  static __m512 weight(__m512 x) {
    x = clamp(x, -kFar, kFar);
    return sigmoid(_mm512_mul_ps(
        x, _mm512_fmadd_ps(_mm512_mul_ps(x, x), number(kFactor * kCubic), number(kFactor))));
  }
};

/// Calls `action(function)`.
template <class Action>
[[gnu::always_inline]] inline void with_function(const ActivationSpec& activation,
                                                 const Action& action) {
  switch (activation.function) {
    case Function::kRelu:
      return action(Relu{});
    case Function::kRelu6:
      return action(Relu6{});
    case Function::kLeakyRelu:
      return action(LeakyRelu{activation.negative_slope});
    case Function::kHardsigmoid:
      return action(Hardsigmoid{});
    case Function::kHardswish:
      return action(Hardswish{});
    case Function::kSigmoid:
      return action(Sigmoid{});
    case Function::kTanh:
      return action(Tanh{});
    case Function::kSilu:
      return action(Silu{});
    case Function::kGelu:
      return action(Gelu{});
    case Function::kTanhGelu:
      return action(TanhGelu{});
  }
}

template <class Element>
void activate(const PixelRange& range, const ActivationSpec& activation, const Element* x,
              Element* y) {
  with_function(activation, [&](const auto& function) {
    for_each_vector<Element>(
        range, [&](std::int64_t offset, std::int64_t, __mmask16) __attribute__((always_inline)) {
          Values<Element> values = load_words(x + offset);
          for (__m512& value : values.of) value = function.value(value);
          store_words(y + offset, values);
        });
  });
}

template <class Element>
void activation_gradient(const PixelRange& range, const ActivationSpec& activation,
                         const Element* dy, const Element* value, Element* dx) {
  with_function(activation, [&](const auto& function) {
    for_each_vector<Element>(
        range, [&](std::int64_t offset, std::int64_t,
                   __mmask16 mask) __attribute__((always_inline)) {
          Values<Element> g = load_words(dy + offset);
          const Values<Element> values = load_words(value + offset);
          for (int d = 0; d < kDepth<Element>; ++d) {
            g.of[d] = _mm512_maskz_mov_ps(mask, function.gradient(g.of[d], values.of[d]));
          }
          store_words(dx + offset, g);
        });
  });
}

}  // namespace mnist_train::cpu_kernels::avx512
