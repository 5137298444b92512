#pragma once

// Only for sources compiled with AVX-512, like lanes_avx512.h.

#include "cpu_kernels/amx.h"
#include "cpu_kernels/convolution_kernels.h"
#include "cpu_kernels/lanes_avx512.h"
#include "cpu_kernels/register_sums_avx512.h"

/// Convolutions, forward and with respect to their input.
namespace mnist_train::cpu_kernels::avx512 {

inline __m512i load_channels(const float* from, std::int64_t count) {
  return _mm512_maskz_loadu_epi32(first_lanes(count), from);
}
inline __m512i load_channels(const Bf16Bits* from, std::int64_t count) {
  const std::int64_t most = smaller(count, 2 * kLanes);
  return _mm512_maskz_loadu_epi16(static_cast<__mmask32>((std::uint64_t{1} << most) - 1), from);
}
/// Returns a word for each of `rows` adjacent elements; its channels, `channels` of them, are
/// `step` elements apart.
inline __m512i load_rows(const float* from, std::int64_t rows, std::int64_t /*step*/,
                         std::int64_t /*channels*/) {
  return _mm512_maskz_loadu_epi32(first_lanes(rows), from);
}
inline __m512i load_rows(const Bf16Bits* from, std::int64_t rows, std::int64_t step,
                         std::int64_t channels) {
  const __m256i first = _mm256_maskz_loadu_epi16(first_lanes(rows), from);
  const __mmask16 mask = channels > 1 ? first_lanes(rows) : __mmask16{0};
  const __m256i second = _mm256_maskz_loadu_epi16(mask, from + step);
  return _mm512_or_si512(_mm512_cvtepu16_epi32(first),
                         _mm512_slli_epi32(_mm512_cvtepu16_epi32(second), 16));
}

/// Loads 16 words for 32 adjacent elements; a word's channels are `step` elements apart.
inline void load_row_pairs(const Bf16Bits* from, std::int64_t step, std::int64_t channels,
                           Block& first, Block& second) {
  const __m512i counts = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i lower = _mm512_or_si512(
      counts, _mm512_slli_epi32(_mm512_add_epi32(counts, _mm512_set1_epi32(32)), 16));
  const __m512i upper = _mm512_add_epi16(lower, _mm512_set1_epi16(16));
  for (std::int64_t k = 0; k < kLanes; ++k, from += 2 * step, channels -= 2) {
    const __m512i even = load_channels(from, channels > 0 ? 2 * kLanes : std::int64_t{0});
    const __m512i odd = load_channels(from + step, channels > 1 ? 2 * kLanes : std::int64_t{0});
    first[k] = _mm512_permutex2var_epi16(even, lower, odd);
    second[k] = _mm512_permutex2var_epi16(even, upper, odd);
    __builtin_prefetch(from + 2 * kLanes * step, 0, 2);
    __builtin_prefetch(from + (2 * kLanes + 1) * step, 0, 2);
  }
}
inline void load_row_pairs(const float*, std::int64_t, std::int64_t, Block&, Block&) {}

/// Packs weights in blocks, with vector loads if channels or rows are adjacent in memory.
template <class Element>
class Packer {
 public:
  Packer(const GatherView& view, const WeightsView<Element>& weights)
      : view_(view), weights_(weights), merges_groups_(view.group_out != weights.layer_rows) {}

  void pack(const PackPart& part, Element* packed) const {
    const std::int64_t size = view_.positions * view_.panel_rows * kDepth<Element>;
    const std::int64_t tap_words = words<Element>(view_.group_in);
    // Panels whose weights share pages are packed side by side.
    const std::int64_t together = weights_.row == 1 ? kPanels : 1;
    for (std::int64_t begin = part.begin; begin < part.end; begin += together) {
      const std::int64_t end = smaller(begin + together, part.end);
      for (std::int64_t i = begin; i < end && view_.by_amx && tap_words % kLanes != 0; ++i) {
        clear(packed + (i - part.begin) * size, first_word(i, part));
      }
      for (std::int64_t word = 0; word < tap_words; word += kLanes) {
        for (std::int64_t i = begin; i < end; ++i) {
          if (word < first_word(i, part)) continue;
          if (can_pack_pair(i, end)) {
            pack_pair(i / view_.panels, i % view_.panels * view_.panel_rows, word,
                      packed + (i - part.begin) * size);
            ++i;
            continue;
          }
          pack_words(i / view_.panels, i % view_.panels * view_.panel_rows, word,
                     packed + (i - part.begin) * size);
        }
      }
    }
  }

 private:
  static constexpr std::int64_t kPanels = 16;

  /// Returns the first word of a panel that is not read in place.
  std::int64_t first_word(std::int64_t panel, const PackPart& part) const {
    if (!part.in_place || panel % view_.panels >= view_.complete_panels()) return 0;
    const std::int64_t tap_words = words<Element>(view_.group_in);
    return view_.by_amx ? tap_words / kLanes * kLanes : tap_words;
  }
  void clear(Element* panel, std::int64_t first) const {
    const std::int64_t position_size = view_.panel_rows * kDepth<Element>;
    __builtin_memset(panel + first * position_size, 0,
                     sizeof(Element) * (view_.positions - first) * position_size);
  }

  bool can_pack_pair(std::int64_t panel, std::int64_t end) const {
    return view_.by_amx && !merges_groups_ && weights_.row == 1 && panel + 1 < end &&
           panel % view_.panels + 2 <= view_.complete_panels();
  }
  /// Like pack_words, for two panels for AMX whose rows are adjacent in memory.
  void pack_pair(std::int64_t group, std::int64_t row, std::int64_t word, Element* panel) const {
    const std::int64_t channel = word * kDepth<Element>;
    const std::int64_t count = smaller(kLanes, words<Element>(view_.group_in) - word);
    for (std::int64_t ky = 0; ky < view_.kernel_height; ++ky) {
      for (std::int64_t kx = 0; kx < view_.kernel_width; ++kx) {
        const Element* const tap =
            weights_.data + ky * weights_.kernel_row + kx * weights_.kernel_column;
        Block first;
        Block second;
        load_row_pairs(first_weight(group, row, channel, tap), weights_.channel,
                       view_.group_in - channel, first, second);
        transpose(first);
        store_tap(first, ky, kx, word, count, panel);
        transpose(second);
        store_tap(second, ky, kx, word, count,
                  panel + view_.positions * view_.panel_rows * kDepth<Element>);
      }
    }
  }

  /// Packs up to 16 words of all taps.
  void pack_words(std::int64_t group, std::int64_t row, std::int64_t word, Element* panel) const {
    const std::int64_t taps = view_.kernel_height * view_.kernel_width;
    const std::int64_t count = smaller(kLanes, words<Element>(view_.group_in) - word);
    for (std::int64_t first = 0; first < taps; first += kLanes) {
      const std::int64_t last = smaller(first + kLanes, taps);
      Block of_tap[kLanes];
      if (taps_are_adjacent()) {
        load_taps(group, row, word * kDepth<Element>, first, last - first, of_tap);
      }
      for (std::int64_t tap = first; tap < last; ++tap) {
        Block& block = of_tap[tap - first];
        const std::int64_t ky = tap / view_.kernel_width;
        const std::int64_t kx = tap % view_.kernel_width;
        if (!taps_are_adjacent()) {
          load(group, row, word * kDepth<Element>,
               weights_.data + ky * weights_.kernel_row + kx * weights_.kernel_column, block);
        }
        store_tap(block, ky, kx, word, count, panel);
      }
    }
  }

  /// Stores a block to all sequences that have the column.
  void store_tap(const Block& block, std::int64_t ky, std::int64_t kx, std::int64_t word,
                 std::int64_t count, Element* panel) const {
    const std::int64_t tap_words = words<Element>(view_.group_in);
    for (std::int64_t i = 0; i < view_.sequence_count; ++i) {
      const Sequence& sequence = view_.sequences[i];
      for (std::int64_t t = 0; t < sequence.count; ++t) {
        if (view_.columns[sequence.first + t] != kx) continue;
        store(block, count, panel, sequence.start + ky * sequence.step + t * tap_words + word);
      }
    }
  }

  bool taps_are_adjacent() const {
    return !merges_groups_ && weights_.channel != 1 && weights_.row != 1 &&
           weights_.kernel_column == 1 && weights_.kernel_row == view_.kernel_width;
  }

  /// Loads blocks of up to 16 taps that are adjacent in memory, in the order of the panel.
  void load_taps(std::int64_t group, std::int64_t row, std::int64_t channel, std::int64_t first,
                 std::int64_t taps, Block* of_tap) const {
    const std::int64_t rows = smaller(view_.panel_rows, view_.group_out - row);
    const Element* const from = first_weight(group, row, channel, weights_.data + first);
    for (std::int64_t m = 0; m < kLanes; ++m) {
      Block block;
      for (std::int64_t k = 0; k < kLanes; ++k) {
        const std::int64_t left = view_.group_in - channel - k * kDepth<Element>;
        block[k] = load_rows(from + m * weights_.row + k * kDepth<Element> * weights_.channel,
                             m < rows && left > 0 ? taps : std::int64_t{0}, weights_.channel, left);
      }
      transpose(block);
      for (std::int64_t tap = 0; tap < taps; ++tap) of_tap[tap][m] = block[tap];
    }
    for (std::int64_t tap = 0; tap < taps && !view_.by_amx; ++tap) transpose(of_tap[tap]);
  }

  const Element* first_weight(std::int64_t group, std::int64_t row, std::int64_t channel,
                              const Element* tap) const {
    const std::int64_t first_row = row + (weights_.rows_are_out ? group * view_.group_out : 0);
    const std::int64_t first_channel =
        channel + (weights_.rows_are_out ? 0 : group * view_.group_in);
    return tap + first_row * weights_.row + first_channel * weights_.channel;
  }

  /// Loads a block in the order of the panel: of rows, or of words.
  void load(std::int64_t group, std::int64_t row, std::int64_t channel, const Element* tap,
            Block& block) const {
    const std::int64_t rows = smaller(view_.panel_rows, view_.group_out - row);
    const std::int64_t channels = view_.group_in - channel;
    const Element* const from = first_weight(group, row, channel, tap);
    bool by_row = true;
    if (merges_groups_ || (weights_.channel != 1 && weights_.row != 1)) {
      load_one_by_one(row, channel, tap, from, block);
    } else if (weights_.channel == 1) {
      for (std::int64_t m = 0; m < kLanes; ++m) {
        block[m] = load_channels(from + m * weights_.row, m < rows ? channels : 0);
      }
    } else {
      by_row = false;
      for (std::int64_t k = 0; k < kLanes; ++k) {
        const std::int64_t left = channels - k * kDepth<Element>;
        block[k] = load_rows(from + k * kDepth<Element> * weights_.channel, left > 0 ? rows : 0,
                             weights_.channel, left);
      }
    }
    if (by_row != view_.by_amx) transpose(block);
  }

  void load_one_by_one(std::int64_t row, std::int64_t channel, const Element* tap,
                       const Element* from, Block& block) const {
    alignas(64) Element elements[kLanes][kLanes * kDepth<Element>] = {};
    for (std::int64_t m = 0; m < smaller(view_.panel_rows, view_.group_out - row); ++m) {
      for (std::int64_t c = 0; c < smaller(kLanes * kDepth<Element>, view_.group_in - channel);
           ++c) {
        elements[m][c] = merges_groups_ ? weight_of_groups(row + m, channel + c, tap)
                                        : from[m * weights_.row + c * weights_.channel];
      }
    }
    for (int m = 0; m < kLanes; ++m) block[m] = _mm512_load_si512(elements[m]);
  }

  /// Returns the weight of a row and a channel of a view that has all groups of the layer.
  Element weight_of_groups(std::int64_t row, std::int64_t channel, const Element* tap) const {
    if (row / weights_.layer_rows != channel / weights_.layer_channels) return Element{0};
    const std::int64_t r = weights_.rows_are_out ? row : row % weights_.layer_rows;
    const std::int64_t c = weights_.rows_are_out ? channel % weights_.layer_channels : channel;
    return tap[r * weights_.row + c * weights_.channel];
  }

  void store(const Block& block, std::int64_t count, Element* panel, std::int64_t position) const {
    if (!view_.by_amx) {
      for (std::int64_t k = 0; k < count; ++k) {
        _mm512_mask_storeu_epi32(panel + (position + k) * view_.panel_rows * kDepth<Element>,
                                 first_lanes(view_.panel_rows), block[k]);
      }
      return;
    }
    // A row may continue in the next register.
    const std::int64_t column = position % kLanes;
    const std::int64_t here = smaller(count, kLanes - column);
    const __mmask16 later = first_lanes(count) & ~first_lanes(here);
    Element* to = panel + (position / kLanes * kLanes * kLanes + column) * kDepth<Element>;
    for (int m = 0; m < kLanes; ++m, to += kLanes * kDepth<Element>) {
      _mm512_mask_storeu_epi32(to, first_lanes(here), block[m]);
      if (later != 0) {
        _mm512_mask_storeu_epi32(to + (kLanes - 1) * kLanes * kDepth<Element>, later, block[m]);
      }
    }
  }

  const GatherView& view_;
  const WeightsView<Element>& weights_;
  bool merges_groups_;
};

/// Destination and epilogue of consecutive rows of panels.
template <class Element>
struct Results {
  const Element* addend;
  bool relu;
  Element* out;
  std::int64_t rows;  // of results

  /// Stores the sums of the word that begins at `row`.
  [[gnu::always_inline]] void store(std::int64_t row, int vector, Values<Element> sums) const {
    const std::int64_t at = row * kImages + vector * kWordSize<Element> / kVectors;
    if (addend != nullptr) {
      const Values<Element> added = load_words(addend + at);
      for (int d = 0; d < kDepth<Element>; ++d) sums.of[d] = _mm512_add_ps(sums.of[d], added.of[d]);
    }
    if (relu) {
      for (auto& sum : sums.of) sum = _mm512_max_ps(_mm512_setzero_ps(), sum);
    }
    store_words(out + at, sums);
  }
};

/// Weights of a panel as kernels read them: packed, or rows of a matrix. Steps are in elements.
template <class Element>
struct PanelWeights {
  const Element* data;
  std::int64_t row_step, position_step;
  std::int64_t panel_step;  // to the next panel
};

/// The results of M rows, as sums in registers. The steps of packed weights are constants.
template <class Element, int M, bool IsPacked>
struct RegisterResults {
  static constexpr int kRows = M;
  static constexpr bool kHasTails = false;

  [[gnu::always_inline]] void set_to(const float* bias) {
    // Unknown to the compiler, which would otherwise keep the vectors of all pixels in registers.
    asm volatile("" : "+r"(bias));
    sums.for_each([&](int m, int, __m512& sum) { sum = _mm512_set1_ps(bias[m]); });
  }
  /// Adds the products of `count` words from a position of the panel on.
  [[gnu::always_inline]] void add(const Element* in, const PanelWeights<Element>& weights,
                                  std::int64_t position, std::int64_t count) {
    const std::int64_t row_step = IsPacked ? kDepth<Element> : weights.row_step;
    const std::int64_t step = IsPacked ? M * kDepth<Element> : weights.position_step;
    sums.add(
        Factors<Element>{weights.data + position * step, row_step, step, in, kWordSize<Element>},
        count);
  }
  [[gnu::always_inline]] void finish(const Results<Element>& results) const {
#pragma GCC unroll 14
    for (int m = 0; m < M; m += kDepth<Element>) {
      if (m >= results.rows) break;
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        Values<Element> values;
        for (int d = 0; d < kDepth<Element>; ++d) values.of[d] = sums.of[m + d][v];
        results.store(m, v, values);
      }
    }
  }

  RegisterSums<M, kVectors> sums;
};

#ifdef __AVX512BF16__
/// The results of one or two panels of 16 rows by AMX.
template <int Panels>
struct AmxResults {
  static constexpr int kRows = Panels * kLanes;
  static constexpr bool kHasTails = true;

  void set_to(const float* from) {
    bias = from;
    amx::Sums<Panels, 2>::set_to_zero();
  }
  void add(const Bf16Bits* in, const PanelWeights<Bf16Bits>& weights, std::int64_t position,
           std::int64_t count) {
    const Bf16Bits* from = weights.data + position * weights.position_step;
    for (; count > 0; count -= kLanes, in += kLanes * kWordSize<Bf16Bits>,
                      from += kLanes * weights.position_step) {
      amx::Sums<Panels, 2>::add(from, from + weights.panel_step, 2 * weights.row_step, in,
                                2 * kWordSize<Bf16Bits>);
    }
  }
  void finish(const Results<Bf16Bits>& results) {
    amx::Sums<Panels, 2>::store_sums(sums, kImages);
    for (std::int64_t m = 0; m < results.rows; m += 2) {
      for (int v = 0; v < kVectors; ++v) {
        const float* const from = sums + m * kImages + v * kLanes;
        results.store(
            m, v,
            {{_mm512_add_ps(_mm512_load_ps(from), _mm512_set1_ps(bias[m])),
              _mm512_add_ps(_mm512_load_ps(from + kImages), _mm512_set1_ps(bias[m + 1]))}});
      }
    }
  }

  const float* bias = nullptr;
  alignas(64) float sums[kRows * kImages];
};

#endif

template <class Element>
PanelWeights<Element> packed_weights(const GatherView& view,
                                     const GatherOperands<Element>& operands, std::int64_t panel) {
  const std::int64_t position = view.panel_rows * kDepth<Element>;
  const std::int64_t size = view.positions * position;
  const std::int64_t row = view.by_amx ? kLanes * kDepth<Element> : kDepth<Element>;
  return {operands.packed + (panel - operands.packed_begin) * size, row, position, size};
}

/// Computes a part of the results of one or two panels.
template <class Element, class Sums>
void gather_panel(const GatherView& view, const GatherOperands<Element>& operands,
                  const GatherPart& part, std::int64_t group, std::int64_t panel) {
  const std::int64_t first = panel * view.panel_rows;
  const std::int64_t channel = group * view.group_out + first;
  const std::int64_t rows = smaller(Sums::kRows, view.group_out - first);
  alignas(64) float bias[Sums::kRows] = {};
  for (std::int64_t m = 0; m < rows && operands.bias != nullptr; ++m) {
    bias[m] = operands.bias[channel + m];
  }
  const PanelWeights<Element> packed = packed_weights(view, operands, group * view.panels + panel);
  PanelWeights<Element> weights = packed;
  std::int64_t tail = 0;  // words that fill no register and are packed, unlike the others
  if (operands.rows != nullptr && first + Sums::kRows <= view.group_out) {
    weights = {operands.rows + first * operands.row_step, operands.row_step, kDepth<Element>,
               view.panel_rows * operands.row_step};
    if (view.by_amx) tail = words<Element>(view.group_in) % kLanes;
  }
  const std::int64_t in_pixel = words<Element>(view.in.channels) * kWordSize<Element>;
  const std::int64_t out_pixel = words<Element>(view.out.channels) * kWordSize<Element>;
  for (std::int64_t y = part.row_begin; y < part.row_end; ++y) {
    for (std::int64_t x = 0; x < view.out.width; ++x) {
      Sums sums;  // a local variable, so that it can be in registers
      sums.set_to(bias);
      for (std::int32_t r = view.row_begin[y]; r < view.row_begin[y + 1]; ++r) {
        const Tap& row = view.rows[r];
        const Element* const in_row =
            operands.in + row.in * view.in.width * in_pixel + group * view.group_in * kImages;
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
      const std::int64_t at = (y * view.out.width + x) * out_pixel + channel * kImages;
      sums.finish(Results<Element>{operands.addend == nullptr ? nullptr : operands.addend + at,
                                   operands.relu, operands.out + at, rows});
    }
  }
}

template <class Element, int M>
void gather_panels(const GatherView& view, const GatherOperands<Element>& operands,
                   const GatherPart& part, std::int64_t group) {
  for (std::int64_t panel = part.panel_begin; panel < part.panel_end; ++panel) {
    const bool is_packed = operands.rows == nullptr || panel >= view.complete_panels();
    const auto compute = is_packed ? &gather_panel<Element, RegisterResults<Element, M, true>>
                                   : &gather_panel<Element, RegisterResults<Element, M, false>>;
    compute(view, operands, part, group, panel);
  }
}

#ifdef __AVX512BF16__
inline void gather_by_amx(const GatherView& view, const GatherOperands<Bf16Bits>& operands,
                          const GatherPart& part, std::int64_t group) {
  const amx::Registers registers;
  std::int64_t panel = part.panel_begin;
  while (panel < part.panel_end) {
    // A pair is read in place as a whole or not at all.
    const bool is_last = panel + 1 == part.panel_end ||
                         (operands.rows != nullptr && panel + 1 == view.complete_panels());
    if (is_last) {
      gather_panel<Bf16Bits, AmxResults<1>>(view, operands, part, group, panel);
      ++panel;
    } else {
      gather_panel<Bf16Bits, AmxResults<2>>(view, operands, part, group, panel);
      panel += 2;
    }
  }
}
#endif

template <class Element>
void pack(const GatherView& view, const WeightsView<Element>& weights, const PackPart& part,
          Element* packed) {
  Packer<Element>(view, weights).pack(part, packed);
}

template <class Element>
void gather(const GatherView& view, const GatherOperands<Element>& operands,
            const GatherPart& part) {
  for (std::int64_t group = 0; group < view.groups; ++group) {
    if constexpr (kDepth<Element> == 2) {
      if (view.by_amx) {
        gather_by_amx(view, operands, part, group);
        continue;
      }
    }
    constexpr decltype(&gather_panels<Element, 2>) kByRows[] = {
        &gather_panels<Element, 2>,  &gather_panels<Element, 4>,  &gather_panels<Element, 6>,
        &gather_panels<Element, 8>,  &gather_panels<Element, 10>, &gather_panels<Element, 12>,
        &gather_panels<Element, 14>,
    };
    kByRows[view.panel_rows / 2 - 1](view, operands, part, group);
  }
}

}  // namespace mnist_train::cpu_kernels::avx512
