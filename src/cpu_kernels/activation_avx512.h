#pragma once

// Only for sources compiled with AVX-512; see lanes_avx512.h.

#include "cpu_kernels/layers_avx512.h"

/// Activation functions in fp32. Errors are a few ulp; NaNs propagate.
namespace mnist_train::cpu_kernels::avx512 {

inline __m512 splat(float value) { return _mm512_set1_ps(value); }

/// Evaluates the polynomial with these coefficients, highest degree first.
template <class... Coefficients>
[[gnu::always_inline]] inline __m512 polynomial(__m512 x, float highest, Coefficients... others) {
  __m512 sum = splat(highest);
  ((sum = _mm512_fmadd_ps(sum, x, splat(others))), ...);
  return sum;
}

/// Clamps a to [low, high]. NaNs propagate: if an operand is NaN, the second is returned.
inline __m512 clamp(__m512 a, float low, float high) {
  return _mm512_min_ps(splat(high), _mm512_max_ps(splat(low), a));
}

/// Returns e^x as 2^n * e^r with |r| <= ln(2) / 2, using the polynomial of Cephes' expf.
inline __m512 exponential(__m512 x) {
  x = clamp(x, -150, 150);  // beyond these, results are 0 or infinite
  const __m512 n =
      _mm512_roundscale_ps(x * 0x1.715476p0F, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  // ln(2) in two parts; the first has few enough bits for an exact product.
  __m512 r = _mm512_fnmadd_ps(n, splat(0.693359375F), x);
  r = _mm512_fnmadd_ps(n, splat(-2.12194440e-4F), r);
  const __m512 p = polynomial(r, 1.9875691500e-4F, 1.3981999507e-3F, 8.3334519073e-3F,
                              4.1665795894e-2F, 1.6666665459e-1F, 5.0000001201e-1F);
  return _mm512_scalef_ps(_mm512_fmadd_ps(r * r, p, r + 1.0F), n);
}

inline __m512 sigmoid(__m512 x) { return 1.0F / (1.0F + exponential(_mm512_setzero_ps() - x)); }

/// The standard normal cumulative distribution function at x and its derivative.
struct Normal {
  __m512 cdf, pdf;
};

/// With a = |x| and k = kCentre, the probability below -a is e^(-a^2 / 2) / (a + k) times a
/// polynomial in (a - k) / (a + k), interpolated at Chebyshev nodes with an error of 4e-8.
inline Normal normal_distribution(__m512 x) {
  constexpr float kCentre = 3.75F;
  const __m512 a = _mm512_min_ps(splat(15), _mm512_abs_ps(x));
  const __m512 square = a * a;
  const __m512 square_error = _mm512_fmsub_ps(a, a, square);  // rounding error of the square
  __m512 e = exponential(square * -0.5F);
  e = _mm512_fnmadd_ps(square_error * 0.5F, e, e);
  const __m512 t = 1.0F / (a + kCentre);
  const __m512 p = polynomial((a - kCentre) * t, 4.495319850e-4F, 5.191939439e-4F, -4.170580888e-3F,
                              1.192974622e-3F, 3.749176164e-2F, -1.515192620e-1F, 3.529397875e-1F,
                              -5.881883701e-1F, 7.502940700e-1F);
  const __m512 tail = e * t * p;
  const __mmask16 positive = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GT_OQ);
  return {_mm512_mask_sub_ps(tail, positive, splat(1), tail), e * 0.398942280F};
}

// These have `value(x)` and `gradient(dy, v)`; v is the output if `differentiates_output`, else x.

/// ReLU, or ReLU6 if `limit` is 6.
struct Relu {
  __m512 value(__m512 x) const { return clamp(x, 0, limit); }
  __m512 gradient(__m512 dy, __m512 y) const {
    return _mm512_maskz_mov_ps(relu_mask(0xffff, y, limit), dy);
  }

  float limit = kNoLimit;
};

struct LeakyRelu {
  __m512 value(__m512 x) const { return gradient(x, x); }
  __m512 gradient(__m512 dy, __m512 v) const {
    const __mmask16 below = _mm512_cmp_ps_mask(v, _mm512_setzero_ps(), _CMP_LE_OQ);
    return _mm512_mask_mul_ps(dy, below, dy, splat(negative_slope));
  }

  float negative_slope;
};

struct Sigmoid {
  __m512 value(__m512 x) const { return sigmoid(x); }
  __m512 gradient(__m512 dy, __m512 y) const { return dy * (y * (1.0F - y)); }
};

struct Tanh {
  /// Uses exponentials or, for small numbers, the polynomial of Cephes' tanhf.
  __m512 value(__m512 x) const {
    const __m512 magnitude = _mm512_abs_ps(x);
    const __m512 t = 1.0F - 2.0F / (exponential(magnitude + magnitude) + 1.0F);
    const __m512 square = x * x;
    const __m512 p = polynomial(square, -5.70498872745e-3F, 2.06390887954e-2F, -5.37397155531e-2F,
                                1.33314422036e-1F, -3.33332819422e-1F);
    const __m512 near_zero = _mm512_fmadd_ps(square * x, p, x);
    const __m512i sign =
        _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(static_cast<int>(0x80000000U)));
    const __m512 signed_t = _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(t), sign));
    return _mm512_mask_mov_ps(signed_t, _mm512_cmp_ps_mask(magnitude, splat(0.625F), _CMP_LT_OQ),
                              near_zero);
  }
  __m512 gradient(__m512 dy, __m512 y) const { return dy * _mm512_fnmadd_ps(y, y, splat(1)); }
};

struct Silu {
  __m512 value(__m512 x) const { return x * sigmoid(x); }
  __m512 gradient(__m512 dy, __m512 x) const {
    const __m512 s = sigmoid(x);
    return dy * (s * _mm512_fmadd_ps(x, 1.0F - s, splat(1)));
  }
};

struct Gelu {
  __m512 value(__m512 x) const { return x * normal_distribution(x).cdf; }
  __m512 gradient(__m512 dy, __m512 x) const {
    const Normal normal = normal_distribution(x);
    return dy * _mm512_fmadd_ps(x, normal.pdf, normal.cdf);
  }
};

/// Calls `action` with the function object of an activation.
template <class Action>
[[gnu::always_inline]] inline void with_function(const ActivationSpec& activation,
                                                 const Action& action) {
  switch (activation.function) {
    case Function::kRelu:
      return action(Relu{});
    case Function::kRelu6:
      return action(Relu{6});
    case Function::kLeakyRelu:
      return action(LeakyRelu{activation.negative_slope});
    case Function::kSigmoid:
      return action(Sigmoid{});
    case Function::kTanh:
      return action(Tanh{});
    case Function::kSilu:
      return action(Silu{});
    case Function::kGelu:
      return action(Gelu{});
  }
}

template <class Element>
void activate(const PixelRange& range, const ActivationSpec& activation, const Element* x,
              Element* y) {
  with_function(activation, [&](const auto& function) {
    for_each_vector<Element>(
        range, [&](const Position& p) __attribute__((always_inline)) {
          Values<Element> values = load_words(x + p.offset);
          for (__m512& value : values.v) value = function.value(value);
          store_words(y + p.offset, values);
        });
  });
}

template <class Element>
void activation_gradient(const PixelRange& range, const ActivationSpec& activation,
                         const Element* dy, const Element* value, Element* dx) {
  with_function(activation, [&](const auto& function) {
    for_each_vector<Element>(
        range, [&](const Position& p) __attribute__((always_inline)) {
          const auto gradient = [&](__m512 g, __m512 v) {
            return _mm512_maskz_mov_ps(p.mask, function.gradient(g, v));
          };
          store_words(dx + p.offset,
                      map(gradient, load_words(dy + p.offset), load_words(value + p.offset)));
        });
  });
}

}  // namespace mnist_train::cpu_kernels::avx512
