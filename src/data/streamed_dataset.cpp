#include "data/streamed_dataset.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "data/encoded_source.h"
#include "data/hold_out.h"
#include "data/image_decoder.h"
#include "data/sampler.h"
#include "data/sources.h"

namespace mnist_train::data {

namespace {

SelectedSet limited(const SelectedSet& set, std::optional<std::int64_t> limit, const char* key) {
  require_classes_fit(set);
  if (!limit) return set;
  if (*limit > set.count()) {
    throw Error(ExitCode::kData, set.source() + ": data." + key + " is " + std::to_string(*limit) +
                                     ", but there are " + std::to_string(set.count()) + " images");
  }
  return set.select(positions({0, *limit}));
}

/// Those whose marks are `wanted`.
SelectedSet marked(const SelectedSet& set, const std::vector<bool>& marks, bool wanted) {
  std::vector<std::int64_t> samples;
  for (std::size_t i = 0; i < marks.size(); ++i) {
    if (marks[i] == wanted) samples.push_back(static_cast<std::int64_t>(i));
  }
  return set.select(samples);
}

void hash_split(Hasher& hasher, const ImageSet& set) {
  const std::string text =
      set.encoded->set->hash() + ' ' + geometry_text(set.channels, set.height, set.width) + '\n';
  hasher.update(text.data(), text.size());
}

}  // namespace

StreamedDataset::StreamedDataset(const settings::DataOptions& options, std::int64_t seed,
                                 Splits splits)
    : options_(options),
      seed_(seed),
      splits_(splits),
      bad_(options.on_bad_sample == settings::OnBadSample::kSkip) {
  EncodedSplits opened = open_encoded(options, splits != Splits::kTrain, bad_);
  geometry_ = geometry_of(*opened.train.front(), options, bad_);
  train_ = limited(SelectedSet(std::move(opened.train)), options.limit_train, "limit_train");
  if (opened.test) test_ = limited(SelectedSet({opened.test}), options.limit_test, "limit_test");
  if (splits != Splits::kTest) held_out_count(train_->count(), options.validation);
}

std::shared_ptr<const EncodedImages> StreamedDataset::images_of(SelectedSet set) const {
  return std::make_shared<EncodedImages>(
      EncodedImages{std::make_shared<SelectedSet>(std::move(set)), geometry_, options_.decode,
                    options_.decode_threads});
}

std::vector<StreamedDataset::Bad> StreamedDataset::check(int part, int parts, int threads,
                                                         const std::function<void()>& progress) {
  constexpr std::int64_t kAtOnce = 256;
  std::vector<Bad> bad;
  std::int64_t before = 0;
  for (const std::optional<SelectedSet>* half : {&train_, &test_}) {
    if (!*half) continue;
    const std::int64_t count = (*half)->count();
    const bool unused = half == &train_ && splits_ == Splits::kTest;
    const Range mine = unused ? Range{} : shard({0, count}, part, parts);
    const auto decoder = make_image_decoder({images_of(**half), threads});
    for (std::int64_t begin = mine.begin; begin < mine.end; begin += kAtOnce) {
      decoder->begin(positions({begin, std::min(begin + kAtOnce, mine.end)}));
      for (SampleFailure& failure : decoder->take().failures) {
        const auto place = static_cast<std::int64_t>(failure.place);
        bad.push_back({before + begin + place, std::move(failure.message)});
      }
      progress();
    }
    before += count;
  }
  return bad;
}

void StreamedDataset::leave_out(const std::vector<Bad>& bad) {
  std::int64_t before = 0;
  for (std::optional<SelectedSet>* half : {&train_, &test_}) {
    if (!*half) continue;
    const std::int64_t count = (*half)->count();
    std::vector<bool> marks(static_cast<std::size_t>(count));
    for (const Bad& each : bad) {
      if (each.sample < before || each.sample >= before + count) continue;
      marks[static_cast<std::size_t>(each.sample - before)] = true;
      bad_.note(each.message);
    }
    *half = marked(**half, marks, false);
    if ((*half)->count() == 0) {
      throw Error(ExitCode::kData, (*half)->source() + ": none of its images can be used");
    }
    before += count;
  }
}

ImageSet StreamedDataset::image_set(SelectedSet set) const {
  ImageSet result;
  result.count = set.count();
  result.channels = geometry_.channels;
  result.height = geometry_.height;
  result.width = geometry_.width;
  result.classes = std::max(train_->classes(), test_ ? test_->classes() : 0);
  result.source = set.source();
  auto labels =
      std::make_shared<std::vector<std::uint8_t>>(set.labels().begin(), set.labels().end());
  result.labels = *labels;
  result.owner = std::move(labels);
  result.encoded = images_of(std::move(set));
  return result;
}

Dataset StreamedDataset::dataset() const {
  Dataset dataset;
  Hasher hasher;
  const double validation = splits_ == Splits::kTest ? 0 : options_.validation;
  const std::vector<bool> marks = held_out(train_->count(), validation, seed_);
  dataset.train = image_set(marked(*train_, marks, false));
  hash_split(hasher, dataset.train);
  if (validation > 0) {
    dataset.validation = image_set(marked(*train_, marks, true));
    hash_split(hasher, dataset.validation);
  }
  dataset.validation.classes = dataset.train.classes;
  if (test_) {
    dataset.test = image_set(*test_);
    hash_split(hasher, dataset.test);
  }
  dataset.hash = hasher.named_digest();
  dataset.class_names = train_->class_names();
  dataset.skipped = bad_.skipped();
  if (!options_.train_per_process.empty()) dataset.train_parts = train_->parts();
  return dataset;
}

}  // namespace mnist_train::data
