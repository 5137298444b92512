#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/sources.h"

namespace mnist_train::data {

/// Returns options with a format and the location of the training set and, if given, the test set.
inline settings::DataOptions data_at(settings::DataFormat format,
                                     const std::filesystem::path& train,
                                     const std::filesystem::path& test = {}) {
  settings::DataOptions options;
  options.dataset.reset();
  options.format = format;
  options.train = settings::DataLocation{train, {}};
  if (!test.empty()) options.test = settings::DataLocation{test, {}};
  return options;
}

/// Reads a data set into memory, or opens it for streaming, depending on the options.
inline Dataset open_dataset(const settings::DataOptions& options, Splits splits = Splits::kBoth) {
  DatasetReader reader(options, splits);
  return options.decode == settings::Decode::kOnce ? reader.read() : reader.stream();
}

/// Opens a source with `open`, and throws the bad samples that it finds, as DatasetReader does.
template <typename Open>
std::shared_ptr<ImageSource> open_without_bad_samples(const Open& open) {
  BadSamples bad(/*skip=*/false);
  std::shared_ptr<ImageSource> source;
  try {
    source = open(bad);
  } catch (const Error&) {
    bad.refuse();
    throw;
  }
  bad.refuse();
  return source;
}

/// Opens a folder of pictures; a bad picture is an error.
inline std::shared_ptr<ImageSource> open_pictures(const std::filesystem::path& folder) {
  return open_without_bad_samples([&](BadSamples& bad) { return open_image_folder(folder, bad); });
}

/// Returns a copy of the bytes of a sample in a source or a view.
template <typename Samples>
std::vector<std::uint8_t> bytes_in(const Samples& samples, std::int64_t sample) {
  std::vector<std::uint8_t> buffer;
  const auto bytes = samples.read(sample, buffer);
  return {bytes.begin(), bytes.end()};
}

template <typename Samples>
std::string text_in(const Samples& samples, std::int64_t sample) {
  const auto bytes = bytes_in(samples, sample);
  return {bytes.begin(), bytes.end()};
}

}  // namespace mnist_train::data
