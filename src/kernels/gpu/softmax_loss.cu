// Softmax cross entropy with its gradient and the number of correct predictions. For a sample with
// logits x of C classes, label y, other label z, weight w of y (1 unless samples are mixed) and
// label smoothing s, the target is
//     t_j = (1 - s) * (w * [j = y] + (1 - w) * [j = z]) + s / C
// and with lse = log sum_j exp(x_j), computed relative to the largest logit,
//     loss = lse - sum_j t_j x_j        d loss / d x_j = exp(x_j - lse) - t_j.
// The prediction is the first class with the largest logit. Sources: torch.nn.CrossEntropyLoss;
// Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018), for the use of one
// warp per sample.

/// The largest logit that a lane has seen, and its class.
struct MaxLogit {
  float value;
  int64 index;
};

__device__ inline MaxLogit larger(MaxLogit a, MaxLogit b) {
  const bool takes_b = b.value > a.value || (b.value == a.value && b.index < a.index);
  return takes_b ? b : a;
}

__device__ inline MaxLogit warp_largest(MaxLogit largest) {
  for (unsigned distance = kWarp / 2; distance > 0; distance /= 2) {
    const int mask = static_cast<int>(distance);
    largest = larger(largest, {__shfl_xor_sync(kAllLanes, largest.value, mask),
                               __shfl_xor_sync(kAllLanes, largest.index, mask)});
  }
  return largest;
}

/// Each warp processes one sample. `other_labels` and `weights` are null unless samples are mixed;
/// `gradient` [samples, classes], which is multiplied by `scale`, is null if not needed. Adds the
/// summed loss, the number of correct predictions (each label counts with its weight) and the
/// number of samples to `sums` [3]. `partial_sums` is [blocks, 2].
template <class T>
__device__ inline void softmax_loss(const T* logits, const int64* labels, const int64* other_labels,
                                    const float* weights, int64 samples, int64 classes,
                                    float smoothing, float scale, T* gradient, float* sums,
                                    float* partial_sums, unsigned* arrived) {
  const unsigned lane = threadIdx.x % kWarp;
  const int64 sample = global_thread() / kWarp;
  float loss = 0;
  float correct = 0;
  if (sample < samples) {
    const T* x = logits + sample * classes;
    MaxLogit largest{-infinity(), classes};
    for (int64 j = lane; j < classes; j += kWarp) largest = larger(largest, {to_float(x[j]), j});
    largest = warp_largest(largest);
    float exp_sum = 0;
    float logit_sum = 0;
    for (int64 j = lane; j < classes; j += kWarp) {
      exp_sum += expf(to_float(x[j]) - largest.value);
      logit_sum += to_float(x[j]) - largest.value;
    }
    exp_sum = warp_sum(exp_sum);
    logit_sum = warp_sum(logit_sum);
    const int64 label = labels[sample];
    const int64 other = other_labels == nullptr ? label : other_labels[sample];
    const float weight = weights == nullptr ? 1.0F : weights[sample];
    const float uniform = smoothing / static_cast<float>(classes);
    const float log_sum = logf(exp_sum);
    const bool is_valid = label >= 0 && label < classes && other >= 0 && other < classes;
    for (int64 j = lane; gradient != nullptr && j < classes; j += kWarp) {
      const float target = (j == label ? weight : 0.0F) + (j == other ? 1.0F - weight : 0.0F);
      const float probability = expf(to_float(x[j]) - largest.value) / exp_sum;
      gradient[sample * classes + j] =
          from_float<T>(scale * (probability - (1.0F - smoothing) * target - uniform));
    }
    if (lane == 0 && !is_valid) loss = not_a_number();  // NaN ends the run
    if (lane == 0 && is_valid) {
      const float label_loss = log_sum - (to_float(x[label]) - largest.value);
      const float other_loss = log_sum - (to_float(x[other]) - largest.value);
      loss = (1.0F - smoothing) * (weight * label_loss + (1.0F - weight) * other_loss) +
             smoothing * (log_sum - logit_sum / static_cast<float>(classes));
      correct = (largest.index == label ? weight : 0.0F) +
                (largest.index == other ? 1.0F - weight : 0.0F);
    }
  }
  loss = block_sum(loss);
  correct = block_sum(correct);
  if (threadIdx.x == 0) {
    partial_sums[2 * blockIdx.x] = loss;
    partial_sums[2 * blockIdx.x + 1] = correct;
  }
  if (!is_last_block(arrived)) return;
  // The order of summation does not depend on which block arrived last.
  float total_loss = 0;
  float total_correct = 0;
  for (unsigned i = threadIdx.x; i < gridDim.x; i += blockDim.x) {
    total_loss += partial_sums[2 * i];
    total_correct += partial_sums[2 * i + 1];
  }
  total_loss = block_sum(total_loss);
  total_correct = block_sum(total_correct);
  if (threadIdx.x != 0) return;
  sums[0] += total_loss;
  sums[1] += total_correct;
  sums[2] += static_cast<float>(samples);
}

#define SOFTMAX_LOSS(suffix, T, size)                                                          \
  extern "C" __global__ void softmax_loss_##suffix(                                            \
      const T* logits, const int64* labels, const int64* other_labels, const float* weights,   \
      int64 samples, int64 classes, float smoothing, float scale, T* gradient, float* sums,    \
      float* partial_sums, unsigned* arrived) {                                                \
    softmax_loss<T>(logits, labels, other_labels, weights, samples, classes, smoothing, scale, \
                    gradient, sums, partial_sums, arrived);                                    \
  }                                                                                            \
  EXPORT_KERNEL(softmax_loss_##suffix)
FOR_EACH_TYPE(SOFTMAX_LOSS)
