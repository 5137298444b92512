#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/encoded_images.h"

namespace mnist_train::data {

/// One sample of a batch that cannot be used.
struct SampleFailure {
  std::size_t place = 0;  // in the batch
  std::string message;    // begins with the sample's name
};

/// Decodes batches of samples on threads of its own, in the order in which they are begun, ahead of
/// the one who takes them.
class ImageDecoder {
 public:
  virtual ~ImageDecoder() = default;

  /// Begins with a batch of at least one sample, and returns at once.
  virtual void begin(std::vector<std::int64_t> samples) = 0;

  struct Batch {
    const std::uint8_t* pixels = nullptr;  // [n, channels, height, width] u8
    std::shared_ptr<const void> owner{};   // keeps them
    std::vector<SampleFailure> failures{};
  };
  /// Waits for the earliest batch that was begun and not taken. Where a sample failed, the pixels
  /// of the others need not be there, but all failures are.
  virtual Batch take() = 0;
};

struct ImageDecoderSetup {
  std::shared_ptr<const EncodedImages> images;
  int threads = 1;
  std::optional<int> gpu{};  // where pixels are wanted, if the decoder can put them there
};

/// Whether the batches of such a decoder lie on the GPU that it was asked for.
bool decodes_to_gpu(const ImageDecoderSetup& setup);

/// By images->decode. Throws Error(kConfig) where DALI is wanted and does not load.
std::unique_ptr<ImageDecoder> make_image_decoder(const ImageDecoderSetup& setup);

/// Throws Error(kConfig), with what to type, where `decode` needs the DALI module and it is not
/// there. Loads nothing.
void require_decoder(settings::Decode decode);

}  // namespace mnist_train::data
