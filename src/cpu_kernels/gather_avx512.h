#pragma once

// Only for sources compiled with AVX-512; see lanes_avx512.h.

#include "cpu_kernels/depthwise_avx512.h"
#include "cpu_kernels/lanes_avx512.h"
#include "cpu_kernels/winograd_avx512.h"

/// Forward pass and input gradient of convolutions.
namespace mnist_train::cpu_kernels::avx512 {

/// Loads 16 words of each of 32 adjacent rows into two blocks. Channels are `step` elements apart.
inline void load_row_pairs(const Bf16Bits* from, std::int64_t step, std::int64_t channels,
                           Block& first, Block& second) {
  const __m512i indices = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i lower = _mm512_or_si512(
      indices, _mm512_slli_epi32(_mm512_add_epi32(indices, _mm512_set1_epi32(32)), 16));
  const __m512i upper = _mm512_add_epi16(lower, _mm512_set1_epi16(16));
  const auto load = [](const Bf16Bits* rows, bool is_valid) {
    return _mm512_maskz_loadu_epi16(is_valid ? ~__mmask32{0} : __mmask32{0}, rows);
  };
  for (std::int64_t k = 0; k < kLanes; ++k, from += 2 * step, channels -= 2) {
    const __m512i even = load(from, channels > 0);
    const __m512i odd = load(from + step, channels > 1);
    first[k] = _mm512_permutex2var_epi16(even, lower, odd);
    second[k] = _mm512_permutex2var_epi16(even, upper, odd);
    __builtin_prefetch(from + 2 * kLanes * step, 0, 2);
    __builtin_prefetch(from + (2 * kLanes + 1) * step, 0, 2);
  }
}
inline void load_row_pairs(const float*, std::int64_t, std::int64_t, Block&, Block&) {}

/// Packs weights in blocks of up to 16 rows by 16 words.
template <class Element>
class Packer {
 public:
  Packer(const GatherView& view, const Element* weights) : view_(view), weights_(weights) {}

  void pack(const PackedPanels<Element>& panels) const {
    // Panels whose weights share pages are packed together.
    const std::int64_t group_size = view_.backward ? kGroupSize : 1;
    for (std::int64_t begin = panels.begin; begin < panels.end; begin += group_size) {
      const std::int64_t end = smaller(begin + group_size, panels.end);
      for (std::int64_t i = begin; i < end && view_.uses_amx && tap_words_ % kLanes != 0; ++i) {
        clear(panels.data + (i - panels.begin) * panel_size_, first_word(i, panels));
      }
      for (std::int64_t word = 0; word < tap_words_; word += kLanes) {
        for (std::int64_t i = begin; i < end; ++i) {
          if (word < first_word(i, panels)) continue;
          const std::int64_t row = i * view_.panel_rows;
          Element* const panel = panels.data + (i - panels.begin) * panel_size_;
          if (can_pack_pair(i, end)) {
            pack_pair(row, word, panel);
            ++i;
          } else {
            pack_words(row, word, panel);
          }
        }
      }
    }
  }

 private:
  static constexpr std::int64_t kGroupSize = 16;
  static constexpr std::int64_t kD = kDepth<Element>;

  /// Returns the index of the first word to pack in a panel; earlier words are read in place.
  std::int64_t first_word(std::int64_t panel, const PackedPanels<Element>& panels) const {
    if (!panels.in_place || panel >= view_.complete_panels()) return 0;
    return view_.uses_amx ? tap_words_ / kLanes * kLanes : tap_words_;
  }
  void clear(Element* panel, std::int64_t first) const {
    const std::int64_t position_size = view_.panel_rows * kD;
    __builtin_memset(panel + first * position_size, 0,
                     sizeof(Element) * (view_.positions - first) * position_size);
  }

  bool can_pack_pair(std::int64_t panel, std::int64_t end) const {
    return view_.uses_amx && view_.backward && panel + 1 < end &&
           panel + 2 <= view_.complete_panels();
  }
  /// Like `pack_words`, for two AMX panels whose rows are adjacent in memory.
  void pack_pair(std::int64_t row, std::int64_t word, Element* panel) const {
    for (std::int64_t tap = 0; tap < taps_; ++tap) {
      Block first;
      Block second;
      load_row_pairs(weight(row, word * kD, tap), channel_, view_.in.channels - word * kD, first,
                     second);
      transpose(first);
      store_tap(first, tap, word, panel);
      transpose(second);
      store_tap(second, tap, word, panel + panel_size_);
    }
  }

  /// Packs up to 16 words of all taps.
  void pack_words(std::int64_t row, std::int64_t word, Element* panel) const {
    Block blocks[kLanes];
    for (std::int64_t tap = 0; tap < taps_; ++tap) {
      Block& block = blocks[tap % kLanes];
      load(row, word * kD, tap, block);
      store_tap(block, tap, word, panel);
    }
    if (view_.winograd.tiles_per_pass > 0) store_transformed(blocks, word, panel);
  }
  /// Transforms up to 16 words, given one block per tap, for Winograd's algorithm, and stores them.
  void store_transformed(const Block* taps, std::int64_t word, Element* panel) const {
    constexpr std::int64_t kSide = kTileSide<Element>;
    const __mmask16 rows = first_lanes(view_.panel_rows);
    for (std::int64_t i = 0; i < smaller(kLanes, tap_words_ - word); ++i) {
      transform_square<Element, 3, 3, kSide, kSide>(
          [&](int y, int x) {
            const int tap = 3 * y + x;
            return to_values<Element>(taps[view_.backward ? 8 - tap : tap][i]);
          },
          [](const auto& weights, auto& positions) {
            TileAxis<Element>::weights(weights, positions);
          },
          [&](int y, int x, int d, __m512 position) {
            const std::int64_t channel = (word + i) * kD + d;
            if (channel >= view_.in.channels) return;
            const std::int64_t to = (y * kSide + x) * view_.padded_channels() + channel;
            _mm512_mask_storeu_ps(reinterpret_cast<float*>(panel) + to * view_.panel_rows, rows,
                                  position);
          });
    }
  }

  /// Stores a tap's block in every sequence that contains the tap's kernel column.
  void store_tap(const Block& block, std::int64_t tap, std::int64_t word, Element* panel) const {
    const std::int64_t ky = tap / view_.kernel_width;
    const std::int64_t kx = tap % view_.kernel_width;
    for (std::int64_t i = 0; i < view_.sequence_count; ++i) {
      const Sequence& sequence = view_.sequences[i];
      for (std::int64_t t = 0; t < sequence.count; ++t) {
        if (sequence.first + t * view_.tap_kernel != kx) continue;
        store(block, smaller(kLanes, tap_words_ - word),
              sequence.start + ky * sequence.step + t * tap_words_ + word, panel);
      }
    }
  }

  /// Loads a block in the panel's order: by words, or by rows for AMX.
  void load(std::int64_t row, std::int64_t channel, std::int64_t tap, Block& block) const {
    const std::int64_t rows = smaller(view_.panel_rows, view_.out.channels - row);
    const std::int64_t channels = view_.in.channels - channel;
    const Element* from = weight(row, channel, tap);
    if (view_.backward) {
      const std::int64_t step = channel_;
      for (std::int64_t i = 0; i < kLanes; ++i, from += kD * step) {
        for (int d = 0; d < kD; ++d) __builtin_prefetch(from + (kLanes * kD + d) * step, 0, 2);
        block[i] = load_columns(from, step, rows, channels - i * kD);
      }
    } else {
      const std::int64_t step = row_;
      for (std::int64_t i = 0; i < kLanes; ++i, from += step) {
        block[i] = i < rows ? load_channels(from, channels) : _mm512_setzero_si512();
      }
    }
    if (view_.backward == view_.uses_amx) transpose(block);
  }

  const Element* weight(std::int64_t row, std::int64_t channel, std::int64_t tap) const {
    return weights_ + tap * view_.layer_inputs() + row * row_ + channel * channel_;
  }

  void store(const Block& block, std::int64_t count, std::int64_t position, Element* panel) const {
    if (!view_.uses_amx) {
      const std::int64_t step = view_.panel_rows * kD;
      const __mmask16 rows = first_lanes(view_.panel_rows);
      Element* to = panel + position * step;
      for (std::int64_t k = 0; k < count; ++k, to += step) {
        _mm512_mask_storeu_epi32(to, rows, block[k]);
      }
      return;
    }
    // A row may continue in the next tile.
    const std::int64_t column = position % kLanes;
    const std::int64_t first = smaller(count, kLanes - column);
    const __mmask16 spill = first_lanes(count) & ~first_lanes(first);
    Element* to = panel + (position / kLanes * kLanes * kLanes + column) * kD;
    for (int m = 0; m < kLanes; ++m, to += kLanes * kD) {
      _mm512_mask_storeu_epi32(to, first_lanes(first), block[m]);
      if (spill != 0) {
        _mm512_mask_storeu_epi32(to + (kLanes - 1) * kLanes * kD, spill, block[m]);
      }
    }
  }

  const GatherView& view_;
  const Element* weights_;
  std::int64_t taps_ = view_.kernel_height * view_.kernel_width;
  std::int64_t output_size_ = taps_ * view_.layer_inputs();  // weights per output channel
  // Strides of rows and of the summed channels.
  std::int64_t row_ = view_.backward ? 1 : output_size_;
  std::int64_t channel_ = view_.backward ? output_size_ : 1;
  std::int64_t tap_words_ = words<Element>(view_.in.channels);
  std::int64_t panel_size_ = view_.positions * view_.panel_rows * kD;
};

/// Weights of a panel, either packed or as rows of a matrix. Steps are in elements.
template <class Element>
struct PanelWeights {
  const Element* data;
  std::int64_t row_step, position_step;
  std::int64_t panel_step;  // to the next panel
};

/// Sums of M rows of V vectors in registers; the other vectors of a block contain only padding
/// images, and their sums are 0. If the weights are packed, the steps are compile-time constants.
template <class Element, int M, bool IsPacked, int V>
struct RegisterResults {
  static constexpr int kRows = M;
  static constexpr bool kHasTails = false;

  [[gnu::always_inline]] void set_to(const float* bias) {
    // Hides the value from the compiler, which would keep bias vectors in registers for all pixels.
    asm volatile("" : "+r"(bias));
    sums.for_each([&](int m, int, __m512& sum) { sum = _mm512_set1_ps(bias[m]); });
    terms = 0;
    has_total = false;
  }
  /// Adds the products of `count` words, starting at a position of the panel.
  [[gnu::always_inline]] void add(const Element* in, const PanelWeights<Element>& weights,
                                  std::int64_t position, std::int64_t count) {
    const std::int64_t row_step = IsPacked ? kDepth<Element> : weights.row_step;
    const std::int64_t step = IsPacked ? M * kDepth<Element> : weights.position_step;
    Factors<Element> factors{weights.data + position * step, row_step, step, in,
                             kWordSize<Element>};
    while (terms + count > kMaxTerms<Element>) {
      const std::int64_t part = kMaxTerms<Element> - terms;
      sums.add(factors, part);
      factors.a += part * factors.a_step;
      factors.b += part * factors.b_step;
      count -= part;
      sums.store_total(total, V * kLanes, !has_total);
      sums.set_to_zero();
      has_total = true;
      terms = 0;
    }
    sums.add(factors, count);
    terms += count;
  }
  [[gnu::always_inline]] void finish(const Results<Element>& results) {
    if (has_total) sums.store_total(total, V * kLanes, /*overwrites=*/false);
#pragma GCC unroll 14
    for (int m = 0; m < M; m += kDepth<Element>) {
      if (m >= results.rows) break;
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        Values<Element> values;
        for (int d = 0; d < kDepth<Element>; ++d) {
          values.v[d] = v < V ? sums.rows[m + d][v] : _mm512_setzero_ps();
        }
        results.store(m, v, values);
      }
    }
  }

  RegisterSums<M, V> sums;
  std::int64_t terms;  // in `sums`
  bool has_total;
  alignas(64) float total[kLanes * M * V];
};

/// The results of one or two panels of 16 rows, computed with AMX.
template <class Element, int Panels>
struct AmxResults {
  static constexpr int kRows = Panels * kLanes;
  static constexpr bool kHasTails = true;

  void set_to(const float* from) {
    bias = from;
    amx::Sums<Panels, 2>::set_to_zero();
  }
  void add(const Element* in, const PanelWeights<Element>& weights, std::int64_t position,
           std::int64_t count) {
    const Element* from = weights.data + position * weights.position_step;
    for (; count > 0; count -= kLanes, in += kLanes * kWordSize<Element>,
                      from += kLanes * weights.position_step) {
      amx::Sums<Panels, 2>::add(from, from + weights.panel_step, 2 * weights.row_step, in,
                                2 * kWordSize<Element>);
    }
  }
  void finish(const Results<Element>& results) {
    amx::Sums<Panels, 2>::store_sums(sums, kImages);
    for (std::int64_t m = 0; m < results.rows; m += 2) {
      for (int v = 0; v < kVectors; ++v) {
        const float* const from = sums + m * kImages + v * kLanes;
        results.store(
            m, v, {{_mm512_load_ps(from) + bias[m], _mm512_load_ps(from + kImages) + bias[m + 1]}});
      }
    }
  }

  const float* bias = nullptr;
  alignas(64) float sums[kRows * kImages];
};

/// Computes a part's results for one or two panels.
template <class Element, class Sums>
[[gnu::noinline]] void gather_panel(const GatherView& view, const BatchOperands<Element>& operands,
                                    const PackedPanels<Element>& panels, const GatherPart& part,
                                    std::int64_t panel, bool in_place) {
  constexpr std::int64_t kD = kDepth<Element>;
  const std::int64_t channel = panel * view.panel_rows;
  const std::int64_t rows = smaller(Sums::kRows, view.out.channels - channel);
  alignas(64) float bias[Sums::kRows] = {};
  for (std::int64_t m = 0; m < rows && operands.bias != nullptr; ++m) {
    bias[m] = to_float(operands.bias[channel + m]);
  }
  const std::int64_t size = view.positions * view.panel_rows * kD;
  const PanelWeights<Element> packed{panels.data + (panel - panels.begin) * size,
                                     view.uses_amx ? kLanes * kD : kD, view.panel_rows * kD, size};
  PanelWeights<Element> weights = packed;
  std::int64_t tail = 0;  // last words, which do not fill a register: read from the packed copy
  if (in_place) {
    const std::int64_t row = view.in.channels;
    weights = {operands.weights + channel * row, row, kD, view.panel_rows * row};
    if (view.uses_amx) tail = words<Element>(view.in.channels) % kLanes;
  }
  const std::int64_t in_pixel = view.in.pixel_size<Element>();
  const std::int64_t out_pixel = view.out.pixel_size<Element>();
  const Element* const in_block = operands.in + part.block * view.in.pixels() * in_pixel;
  for (std::int64_t y = part.row_begin; y < part.row_end; ++y) {
    for (std::int64_t x = 0; x < view.out.width; ++x) {
      Sums sums;  // local, so that it can be kept in registers
      sums.set_to(bias);
      for (std::int32_t r = view.row_begin[y]; r < view.row_begin[y + 1]; ++r) {
        const Tap& row = view.rows[r];
        const Element* const in_row = in_block + row.in * view.in.width * in_pixel;
        for (std::int32_t i = view.run_begin[x]; i < view.run_begin[x + 1]; ++i) {
          const Run& run = view.runs[i];
          const Element* const in = in_row + run.in * in_pixel;
          const std::int64_t position = run.start + row.kernel * run.step;
          const std::int64_t count = run.words - tail;
          sums.add(in, weights, position, count);
          if constexpr (Sums::kHasTails) {
            if (tail > 0) sums.add(in + count * kWordSize<Element>, packed, position + count, tail);
          }
        }
      }
      const std::int64_t offset =
          ((part.block * view.out.height + y) * view.out.width + x) * out_pixel + channel * kImages;
      sums.finish(Results<Element>{operands.addend == nullptr ? nullptr : operands.addend + offset,
                                   operands.relu, operands.out + offset, rows});
    }
  }
}

template <class Element>
void gather_amx(const GatherView& view, const BatchOperands<Element>& operands,
                const PackedPanels<Element>& panels, const GatherPart& part) {
  const amx::Registers registers;
  for (std::int64_t panel = part.panel_begin; panel < part.panel_end;) {
    const std::int64_t in_place =
        panels.in_place ? view.complete_panels() - panel : std::int64_t{0};  // number of panels
    // A pair is read in place either entirely or not at all.
    const bool is_pair = panel + 1 < part.panel_end && in_place != 1;
    const auto compute = is_pair ? &gather_panel<Element, AmxResults<Element, 2>>
                                 : &gather_panel<Element, AmxResults<Element, 1>>;
    compute(view, operands, panels, part, panel, in_place > 0);
    panel += is_pair ? 2 : 1;
  }
}

template <class Element>
void pack(const GatherView& view, const BatchOperands<Element>& operands,
          const PackedPanels<Element>& panels) {
  Packer<Element>(view, operands.weights).pack(panels);
}

template <class Element>
void gather(const GatherView& view, const BatchOperands<Element>& operands,
            const PackedPanels<Element>& panels, const GatherPart& part) {
  if (view.depthwise.count > 0) return sum_depthwise(view, operands, panels.data, part);
  if (view.winograd.tiles_per_pass > 0) return gather_winograd(view, operands, panels.data, part);
  if constexpr (kDepth<Element> == 2) {
    if (view.uses_amx) return gather_amx(view, operands, panels, part);
  }
  const std::int64_t vectors = ceil_divide(samples(operands, part.block), kLanes);
  with_constant<kDepth<Element>, kDepth<Element>, kMaxRows>(view.panel_rows, [&]<int M>() {
    with_constant<1, 1, kVectors>(vectors, [&]<int V>() {
      for (std::int64_t panel = part.panel_begin; panel < part.panel_end; ++panel) {
        const bool in_place = panels.in_place && panel < view.complete_panels();
        const auto compute = in_place
                                 ? &gather_panel<Element, RegisterResults<Element, M, false, V>>
                                 : &gather_panel<Element, RegisterResults<Element, M, true, V>>;
        compute(view, operands, panels, part, panel, in_place);
      }
    });
  });
}

}  // namespace mnist_train::cpu_kernels::avx512
