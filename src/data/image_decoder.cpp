#include "data/image_decoder.h"

#include <dlfcn.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "base/error.h"
#include "base/file.h"
#include "data/threaded_decoder.h"

namespace mnist_train::data {

namespace {

constexpr const char* kModule = "libmnist-train-dali.so";

using Make = ImageDecoder* (*)(const ImageDecoderSetup&);

/// Beside the worker, which may lie where an installed front end looks for it; empty: nowhere.
std::filesystem::path find_module() {
  const std::filesystem::path folder = executable_folder();
  for (const auto& place : {folder, folder.parent_path() / "libexec" / "mnist-train"}) {
    std::error_code ignored;
    if (std::filesystem::exists(place / kModule, ignored)) return place / kModule;
  }
  return {};
}

Make load() {
  require_decoder(settings::Decode::kDali);
  const std::filesystem::path path = find_module();
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw Error(ExitCode::kConfig, std::string("cannot use NVIDIA DALI: ") + ::dlerror() +
                                       "; ./scripts/setup --dali installs it");
  }
  const auto make = reinterpret_cast<Make>(::dlsym(library, "mnist_train_make_dali_decoder"));
  if (make == nullptr) {
    throw Error(ExitCode::kConfig, path.string() + ": is not mnist-train's DALI module");
  }
  return make;
}

}  // namespace

void require_decoder(settings::Decode decode) {
  if (decode != settings::Decode::kDali || !find_module().empty()) return;
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
  static const Make kMake = load();
  return std::unique_ptr<ImageDecoder>(kMake(setup));
}

}  // namespace mnist_train::data
