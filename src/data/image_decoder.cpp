#include "data/image_decoder.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/shared_library.h"
#include "data/decoder_pool.h"

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

void ImageDecoder::prefetch(const std::vector<std::vector<std::int64_t>>& batches) {
  std::size_t place = 0;
  for (const std::vector<std::int64_t>& batch : batches) {
    if (batch.empty()) continue;
    if (place == kBatchesAhead) return;
    if (place == begun_.size()) {
      begun_.push_back(batch);
      begin(batch);
    }
    // What was announced wrongly goes when it comes to the front.
    if (begun_[place] != batch) return;
    ++place;
  }
}

DecodedBatch ImageDecoder::take(const std::vector<std::int64_t>& samples) {
  while (!begun_.empty() && begun_.front() != samples) {
    begun_.pop_front();
    (void)finish();
  }
  if (begun_.empty()) {
    begin(samples);
  } else {
    begun_.pop_front();
  }
  DecodedBatch batch = finish();
  std::sort(batch.failures.begin(), batch.failures.end(),
            [](const SampleFailure& a, const SampleFailure& b) { return a.sample < b.sample; });
  return batch;
}

std::vector<SampleFailure> ImageDecoder::decode_range(
    Range range, std::int64_t batch_size,
    const std::function<bool(const std::vector<SampleFailure>&)>& progress) {
  std::vector<std::vector<std::int64_t>> batches;
  for (std::int64_t begin = range.begin; begin < range.end; begin += batch_size) {
    batches.push_back(positions({begin, std::min(begin + batch_size, range.end)}));
  }
  std::vector<SampleFailure> failures;
  for (auto batch = batches.begin(); batch != batches.end(); ++batch) {
    const auto ahead = std::min<std::ptrdiff_t>(kBatchesAhead, batches.end() - batch);
    prefetch({batch, batch + ahead});
    DecodedBatch decoded = take(*batch);
    failures.insert(failures.end(), decoded.failures.begin(), decoded.failures.end());
    if (!progress(failures)) break;
  }
  return failures;
}

void require_decoder(settings::Decode decode) {
  if (decode != settings::Decode::kDali || !find_program_file(kModule).empty()) return;
  throw Error(ExitCode::kConfig,
              "data.decode is \"dali\", but this build is without NVIDIA DALI; ./scripts/setup "
              "--dali installs it and builds what uses it (\"stream\" decodes without it)");
}

std::unique_ptr<ImageDecoder> make_image_decoder(const ImageDecoderSetup& setup) {
  if (setup.images->decode != settings::Decode::kDali) {
    return std::make_unique<DecoderPool>(setup.images, setup.threads);
  }
  static Make* const kMake = load();
  return std::unique_ptr<ImageDecoder>(kMake(setup));
}

}  // namespace mnist_train::data
