#pragma once

// Only for sources compiled with AVX-512, like lanes_avx512.h.

#include "cpu_kernels/lanes_avx512.h"
#include "cpu_kernels/layer_kernels.h"

namespace mnist_train::cpu_kernels::avx512 {

/// Up to 16 words of an image, along a row or along channels: where they begin, and their steps.
template <class Element>
struct PlainRun {
  std::int64_t plain, block;
  WordSteps steps;
  std::int64_t block_step;
  std::int64_t count;
  WordMask<Element> mask;
};

/// Calls `action(run)` for all words of an image.
template <class Element, class Action>
void for_each_run(const ValueShape& shape, const PlainStrides& strides, const Action& action) {
  constexpr std::int64_t kD = kDepth<Element>;
  constexpr std::int64_t kFewChannels = 8;
  const std::int64_t pixel_size = words<Element>(shape.channels) * kWordSize<Element>;
  const bool along_channels =
      strides.channel == 1 && (shape.pixels() == 1 || shape.channels > kFewChannels);
  for (std::int64_t y = 0; y < shape.height; ++y) {
    for (std::int64_t x = 0; x < shape.width; x += along_channels ? 1 : kLanes) {
      const std::int64_t plain = y * strides.row + x * strides.column;
      const std::int64_t block = (y * shape.width + x) * pixel_size;
      for (std::int64_t c = 0; c < shape.channels; c += along_channels ? kLanes * kD : kD) {
        const std::int64_t channels = shape.channels - c;
        PlainRun<Element> run{plain + c * strides.channel,
                              block + c * kImages,
                              {kD, 1},
                              kWordSize<Element>,
                              smaller(kLanes, words<Element>(channels)),
                              channel_mask<Element>(channels)};
        if (!along_channels) {
          run.steps = {strides.column, strides.channel};
          run.block_step = pixel_size;
          run.count = smaller(kLanes, shape.width - x);
          run.mask = word_mask<Element>(run.count, channels);
        }
        action(run);
      }
    }
  }
}

template <class Element>
void from_plain(const ValueShape& shape, const Element* images, const PlainStrides& strides,
                std::int64_t count, Element* block) {
  for_each_run<Element>(shape, strides, [&](const PlainRun<Element>& run) {
    for (int v = 0; v < kVectors; ++v) {
      Block rows;
      for (std::int64_t i = 0; i < kLanes; ++i) {
        const std::int64_t image = v * kLanes + i;
        rows[i] = image < count
                      ? load_plain(images + image * strides.image + run.plain, run.steps, run.mask)
                      : _mm512_setzero_si512();
      }
      transpose(rows);
      Element* const to = block + run.block + v * kVectorSize<Element>;
      for (std::int64_t i = 0; i < run.count; ++i) {
        _mm512_storeu_si512(to + i * run.block_step, rows[i]);
      }
    }
  });
}

template <class Element>
void to_plain(const ValueShape& shape, const Element* block, const PlainStrides& strides,
              std::int64_t count, Element* images) {
  for_each_run<Element>(shape, strides, [&](const PlainRun<Element>& run) {
    for (int v = 0; v < kVectors; ++v) {
      Block rows = {};
      const Element* const from = block + run.block + v * kVectorSize<Element>;
      for (std::int64_t i = 0; i < run.count; ++i) {
        rows[i] = _mm512_loadu_si512(from + i * run.block_step);
      }
      transpose(rows);
      for (std::int64_t i = 0; i < smaller(kLanes, count - v * kLanes); ++i) {
        store_plain(rows[i], images + (v * kLanes + i) * strides.image + run.plain, run.steps,
                    run.mask);
      }
    }
  });
}

/// Copies a channel of all images from a word to another one. The first channel of a word clears
/// the second.
inline void copy_channel(const float* from, std::int64_t, float* to, std::int64_t) {
  __builtin_memcpy(to, from, sizeof(float) * kImages);
}
inline void copy_channel(const Bf16Bits* from, std::int64_t from_channel, Bf16Bits* to,
                         std::int64_t to_channel) {
  for (int v = 0; v < kVectors; ++v, from += 2 * kLanes, to += 2 * kLanes) {
    const __m512i words = _mm512_loadu_si512(from);
    if (to_channel == 1) {
      _mm512_mask_storeu_epi16(to, 0xaaaaaaaa,
                               from_channel == 1 ? words : _mm512_slli_epi32(words, 16));
    } else {
      _mm512_storeu_si512(to, from_channel == 1
                                  ? _mm512_srli_epi32(words, 16)
                                  : _mm512_and_si512(words, _mm512_set1_epi32(0xffff)));
    }
  }
}

/// Copies one channel of a pixel, which has the index `channel * pixels + pixel` in a vector.
template <class Element, bool Back>
void reorder(const ValueShape& shape, std::int64_t channel, std::int64_t pixel, const Element* from,
             Element* to) {
  constexpr std::int64_t kD = kDepth<Element>;
  const std::int64_t index = channel * shape.pixels() + pixel;
  const std::int64_t vector = index / kD * kWordSize<Element>;
  const std::int64_t image =
      (pixel * words<Element>(shape.channels) + channel / kD) * kWordSize<Element>;
  if constexpr (Back) {
    copy_channel(from + vector, index % kD, to + image, channel % kD);
  } else {
    copy_channel(from + image, channel % kD, to + vector, index % kD);
  }
}

template <class Element>
void flatten(const ValueShape& shape, const Element* images, Element* vectors) {
  for (std::int64_t c = 0; c < shape.channels; ++c) {
    for (std::int64_t pixel = 0; pixel < shape.pixels(); ++pixel) {
      reorder<Element, false>(shape, c, pixel, images, vectors);
    }
  }
}

template <class Element>
void unflatten(const ValueShape& shape, const Element* vectors, Element* images) {
  for (std::int64_t pixel = 0; pixel < shape.pixels(); ++pixel) {
    for (std::int64_t c = 0; c < shape.channels; ++c) {
      reorder<Element, true>(shape, c, pixel, vectors, images);
    }
  }
}

}  // namespace mnist_train::cpu_kernels::avx512
