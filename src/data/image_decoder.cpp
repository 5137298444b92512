#include "data/image_decoder.h"

#include <string>

#include "base/error.h"
#include "base/shared_library.h"
#include "data/threaded_decoder.h"

namespace mnist_train::data {

namespace {

constexpr const char* kModule = "libmnist-train-dali.so";

using Make = ImageDecoder*(const ImageDecoderSetup&);

Make* load() {
  require_decoder(settings::Decode::kDali);
  const std::string path = find_program_file(kModule).string();
  const SharedLibrary library(path);
  if (!library.loaded()) {
    throw Error(ExitCode::kConfig, "cannot use NVIDIA DALI: " + library.error() +
                                       "; ./scripts/setup --dali installs it");
  }
  Make* const make = library.find<Make>("mnist_train_make_dali_decoder");
  if (make == nullptr) {
    throw Error(ExitCode::kConfig, path + ": is not mnist-train's DALI module");
  }
  return make;
}

}  // namespace

void require_decoder(settings::Decode decode) {
  if (decode != settings::Decode::kDali || !find_program_file(kModule).empty()) return;
  throw Error(ExitCode::kConfig,
              "data.decode is \"dali\", but this build is without NVIDIA DALI; ./scripts/setup "
              "--dali installs it and builds what uses it (\"stream\" decodes without it)");
}

bool decodes_to_gpu(const ImageDecoderSetup& setup) {
  return setup.gpu && setup.images->decode == settings::Decode::kDali;
}

std::unique_ptr<ImageDecoder> make_image_decoder(const ImageDecoderSetup& setup) {
  if (setup.images->decode != settings::Decode::kDali) {
    return std::make_unique<ThreadedDecoder>(setup);
  }
  static Make* const kMake = load();
  return std::unique_ptr<ImageDecoder>(kMake(setup));
}

}  // namespace mnist_train::data
