#include "dali/decoder.h"

// What data/image_decoder.cpp looks up.
extern "C" __attribute__((visibility("default"))) mnist_train::data::ImageDecoder*
mnist_train_make_dali_decoder(const mnist_train::data::ImageDecoderSetup& setup) {
  return new mnist_train::dali::Decoder(setup);
}
