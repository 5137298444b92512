// By what clipping multiplies gradients g, as torch.nn.utils.clip_grad_norm_ does:
//     scale = min(1, max_norm / (sqrt(sum_i g_i^2) + 1e-6)).
// A norm that is not finite makes the scale a NaN.

/// Reads `gradients` [count] once and writes `scale`. `partial_sums` is [blocks].
extern "C" __global__ void clipping_scale(const float* gradients, int64 count, float max_norm,
                                          float* scale, float* partial_sums, unsigned* arrived) {
  constexpr int size = 4;
  const int64 packs = is_aligned(gradients, sizeof(float) * size) ? count / size : 0;
  float sum = 0;
  for (int64 i = thread_of_grid(); i < packs; i += threads_of_grid()) {
    const auto pack = load<size>(gradients + i * size);
    for (int j = 0; j < size; ++j) sum += pack.values[j] * pack.values[j];
  }
  for (int64 i = packs * size + thread_of_grid(); i < count; i += threads_of_grid()) {
    sum += gradients[i] * gradients[i];
  }
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) partial_sums[blockIdx.x] = sum;
  if (!is_last_block(arrived)) return;
  // In an order that does not depend on which block came last.
  float total = 0;
  for (unsigned i = threadIdx.x; i < gridDim.x; i += blockDim.x) total += partial_sums[i];
  total = sum_of_block(total);
  if (threadIdx.x != 0) return;
  const float ratio = max_norm / (sqrtf(total) + 1e-6F);
  *scale = !is_finite(total) ? not_a_number() : ratio > 1 ? 1 : ratio;
}
EXPORT_KERNEL(clipping_scale)
