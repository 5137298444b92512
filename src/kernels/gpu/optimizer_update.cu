// One optimizer step over flat buffers in a single pass, which also updates the weights' bf16 copy
// and moving average. For weights p, learning rate a, weight decay w and the optimizer's state:
// SGD:   g = gradient + w * p,  m' = momentum * m + g,
//        p' = p - a * (Nesterov ? g + momentum * m' : m')
// Adam:  g = gradient + w * p,  m' = b1 * m + (1 - b1) * g,  v' = b2 * v + (1 - b2) * g^2,
//        p' = p - a / (1 - b1^t) * m' / (sqrt(v') / sqrt(1 - b2^t) + epsilon)
// AdamW: like Adam, but without w in g and with p * (1 - a * w) instead of p.
// Then the bf16 copy of the first `copy_count` weights and the exponential moving average e of all
// weights are updated: e' = e + r * (p' - e). Sources: torch.optim.SGD (dampening 0), Adam and
// AdamW (no amsgrad); ATen's _fused_sgd_ and _fused_adam_. 1 - b^t is computed with expm1 and log1p
// to preserve its precision.

constexpr int kPackSize = 4;  // weights that a thread updates at once

/// Buffers of an update, aligned to packs of kPackSize elements; `count` and `copy_count` are
/// multiples of kPackSize. Unused buffers are null: `copies` if there are no bf16 weights,
/// `averages` and `average_weight` if there is no moving average, and `check` if the weights are
/// not checked.
struct Weights {
  float* values;
  const float* gradients;
  int64 count;
  const float* learning_rate;
  bf16* copies;  // of the first `copy_count` values
  int64 copy_count;
  float* averages;
  const float* average_weight;  // r
  float* check;                 // set to NaN if a new weight is not finite
};

struct Sgd {
  float* first;   // the momentum buffer; null without momentum
  float* second;  // null
  float learning_rate;
  float momentum;
  float weight_decay;
  bool nesterov;

  __device__ float apply(float value, float gradient, float& buffer, float&) const {
    if (weight_decay != 0) gradient += weight_decay * value;
    buffer = momentum * buffer + gradient;
    return value - learning_rate * (nesterov ? gradient + momentum * buffer : buffer);
  }
};

struct Adam {
  float* first;   // average of the gradients
  float* second;  // average of the squared gradients
  float learning_rate;
  float one_minus_beta1;
  float one_minus_beta2;
  float epsilon;
  float weight_decay;
  bool decoupled;   // AdamW
  float step_size;  // learning rate / (1 - b1^t)
  float root;       // sqrt(1 - b2^t)

  __device__ float apply(float value, float gradient, float& average, float& squares) const {
    if (weight_decay != 0) {
      if (decoupled) {
        value -= learning_rate * weight_decay * value;
      } else {
        gradient += weight_decay * value;
      }
    }
    average = (1 - one_minus_beta1) * average + one_minus_beta1 * gradient;
    squares = (1 - one_minus_beta2) * squares + one_minus_beta2 * gradient * gradient;
    return value - step_size * average / (sqrtf(squares) / root + epsilon);
  }
};

/// Returns 1 - b^t for `fraction` = 1 - b and `step` = t.
__device__ inline float bias_correction(float fraction, float step) {
  return -expm1f(step * log1pf(-fraction));
}

/// Updates a pack of weights starting at index `begin`. Returns whether they are finite.
template <class Rule>
__device__ inline bool update_pack(const Weights& weights, const Rule& rule, int64 begin) {
  constexpr int size = kPackSize;
  auto value = load<size>(weights.values + begin);
  const auto gradient = load<size>(weights.gradients + begin);
  Pack<float, size> first{};
  Pack<float, size> second{};
  bool finite = true;
  if (rule.first != nullptr) first = load<size>(rule.first + begin);
  if (rule.second != nullptr) second = load<size>(rule.second + begin);
  for (int i = 0; i < size; ++i) {
    value.values[i] =
        rule.apply(value.values[i], gradient.values[i], first.values[i], second.values[i]);
    finite = finite && is_finite(value.values[i]);
  }
  store(weights.values + begin, value);
  if (rule.first != nullptr) store(rule.first + begin, first);
  if (rule.second != nullptr) store(rule.second + begin, second);
  if (begin < weights.copy_count) {
    Pack<bf16, size> copy;
    for (int i = 0; i < size; ++i) copy.values[i] = from_float<bf16>(value.values[i]);
    store(weights.copies + begin, copy);
  }
  if (weights.averages == nullptr) return finite;
  auto average = load<size>(weights.averages + begin);
  const float weight = *weights.average_weight;
  for (int i = 0; i < size; ++i) {
    const float distance = value.values[i] - average.values[i];
    average.values[i] = weight < 0.5F ? average.values[i] + weight * distance
                                      : value.values[i] - distance * (1 - weight);
  }
  store(weights.averages + begin, average);
  return finite;
}

/// Updates all weights.
template <class Rule>
__device__ inline void update(const Weights& weights, const Rule& rule) {
  bool finite = true;
  for (int64 i = global_thread(); i < weights.count / kPackSize; i += grid_threads()) {
    finite = update_pack(weights, rule, i * kPackSize) && finite;
  }
  if (!finite && weights.check != nullptr) *weights.check = not_a_number();
}

/// `buffer` is null without momentum.
extern "C" __global__ void update_by_sgd(float* values, const float* gradients, int64 count,
                                         const float* learning_rate, bf16* copies, int64 copy_count,
                                         float* averages, const float* average_weight, float* check,
                                         float* buffer, float momentum, float weight_decay,
                                         int nesterov) {
  const Weights weights{values,     gradients, count,          learning_rate, copies,
                        copy_count, averages,  average_weight, check};
  update(weights, Sgd{buffer, nullptr, *learning_rate, momentum, weight_decay, nesterov != 0});
}
EXPORT_KERNEL(update_by_sgd)

/// `steps` is the number of previous steps; the kernel increments it.
extern "C" __global__ void update_by_adam(float* values, const float* gradients, int64 count,
                                          const float* learning_rate, bf16* copies,
                                          int64 copy_count, float* averages,
                                          const float* average_weight, float* check, float* first,
                                          float* second, float one_minus_beta1,
                                          float one_minus_beta2, float epsilon, float weight_decay,
                                          int decoupled, float* steps, unsigned* arrived) {
  const Weights weights{values,     gradients, count,          learning_rate, copies,
                        copy_count, averages,  average_weight, check};
  const float step = *steps + 1;
  const float rate = *learning_rate;
  update(weights, Adam{first, second, rate, one_minus_beta1, one_minus_beta2, epsilon, weight_decay,
                       decoupled != 0, rate / bias_correction(one_minus_beta1, step),
                       sqrtf(bias_correction(one_minus_beta2, step))});
  if (is_last_block(arrived) && threadIdx.x == 0) *steps = step;  // all blocks have read `steps`
}
EXPORT_KERNEL(update_by_adam)
