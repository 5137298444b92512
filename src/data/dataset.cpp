#include "data/dataset.h"

#include <bit>
#include <cstring>
#include <map>
#include <set>
#include <unordered_map>

#include "base/hash.h"
#include "base/print.h"
#include "base/system.h"

namespace mnist_train::data {

namespace {

/// Splits the samples in `pool` by whether the files assign them to `part`.
SampleSplit take_part(const SampleView& samples, const std::vector<std::int64_t>& pool, Part part) {
  const std::vector<Part>& parts = samples.sources().front()->parts();
  SampleSplit split;
  for (const std::int64_t position : pool) {
    const bool belongs =
        position < std::ssize(parts) && parts[static_cast<std::size_t>(position)] == part;
    (belongs ? split.taken : split.remaining).push_back(position);
  }
  return split;
}

/// Returns the positions of a run's test files. Files that are missing are errors.
std::vector<std::int64_t> recorded_test(const SampleView& samples, const DatasetRecord& record) {
  std::unordered_map<std::string, std::int64_t> wanted;  // key -> index in the record
  for (const std::string& path : record.test) {
    wanted.emplace(samples.sources().front()->key_of(path), wanted.size());
  }
  std::vector<std::int64_t> positions(record.test.size(), -1);
  for (std::int64_t position = 0; position < samples.count(); ++position) {
    const auto found = wanted.find(samples.draw_key(position));
    if (found == wanted.end()) continue;
    positions[static_cast<std::size_t>(found->second)] = position;
  }
  const auto missing = std::ranges::count(positions, -1);
  if (missing == 0) return positions;
  const auto first = std::ranges::find(positions, -1) - positions.begin();
  fail_data("{}: {} of the run's {} {} missing; the first is {}", samples.name(), missing,
            counted(std::ssize(positions), "test file"), missing == 1 ? "is" : "are",
            record.test[static_cast<std::size_t>(first)]);
}

void hash_pixels(Hasher& hasher, const ImageSet& set) {
  for (const std::int64_t number : {set.count, set.channels, set.height, set.width}) {
    hasher.update(&number, sizeof number);
  }
  hasher.update(set.images.data(), set.images.size());
  hasher.update(set.labels.data(), set.labels.size_bytes());
}

}  // namespace

std::vector<std::uint8_t> ImageSet::image(std::int64_t sample) const {
  const auto size = static_cast<std::size_t>(bytes_per_image());
  if (!encoded) {
    const auto bytes = images.subspan(static_cast<std::size_t>(sample) * size, size);
    return {bytes.begin(), bytes.end()};
  }
  Buffer planes(size);
  Buffer buffer;
  encoded->samples.decode(sample, encoded->geometry, planes.data(), buffer);
  return planes;
}

std::string ImageSet::path(std::int64_t sample) const {
  if (encoded) return encoded->samples.path(sample);
  return paths.empty() ? "" : paths[static_cast<std::size_t>(sample)];
}

std::vector<std::int64_t> ImageSet::class_sizes() const {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(classes));
  for (const auto label : labels) ++sizes[label];
  return sizes;
}

DatasetReader::DatasetReader(const settings::DataOptions& options, Splits splits,
                             const fs::path& record, const std::atomic<bool>* cancelled)
    : options_(options),
      cancelled_(cancelled),
      bad_(options.on_bad_sample == settings::OnBadSample::kSkip) {
  std::optional<DatasetRecord> run;
  const bool is_drawn = splits == Splits::kTest && options.test_fraction > 0;
  if (splits == Splits::kTest && !record.empty()) {
    run = read_dataset_record(record, options.format);
    if (!is_drawn) run->test.clear();  // a run with a drawn test set is tested on another one
  }
  if (is_drawn && options.has_picture_files() && (!run || run->test.empty())) {
    notes_.emplace_back(
        "no dataset.json lists the run's test set: it is drawn again from the current files");
  }
  try {
    open(splits, run ? &*run : nullptr);
  } catch (const Error& error) {  // unusable samples, if any, are the likely cause
    if (error.code() == ExitCode::kData) bad_.refuse();
    throw;
  }
}

void DatasetReader::open(Splits splits, const DatasetRecord* record) {
  Sources sources = open_sources(options_, splits != Splits::kTrain, record, bad_);
  geometry_ = sources.geometry;
  class_names_ = std::move(sources.class_names);
  if (record != nullptr) classes_ = record->classes;
  for (const auto& source : sources.train_sources) classes_ = std::max(classes_, source->classes());
  train_ = SampleView(std::move(sources.train_sources));
  if (sources.test_source) test_ = SampleView({sources.test_source});
  for (const SampleView* samples : {&train_, &test_}) {
    for (const auto& source : samples->sources()) {
      const LeftOut& left_out = source->left_out();
      for (const auto& [extension, count] : left_out.files) left_out_.files[extension] += count;
      left_out_.folders.insert(left_out.folders.begin(), left_out.folders.end());
      left_out_.duplicates += left_out.duplicates;
      notes_.insert(notes_.end(), source->notes().begin(), source->notes().end());
    }
  }
  if (record == nullptr) check_part_classes();
  std::vector<std::int64_t> remaining = positions({0, train_.count()});
  draw_test(remaining, record);
  if (splits == Splits::kTest) {
    train_ = train_.select({});
  } else {
    draw_validation(std::move(remaining));
  }
  if (splits == Splits::kTrain) {
    test_ = {};
  } else {
    std::optional<std::int64_t> limit = options_.limit_test;
    // The recorded test set already reflects the limit, but lacks any samples that were unusable.
    if (limit && record != nullptr && !record->test.empty()) {
      limit = std::min(*limit, test_.count());
    }
    test_ = limited(test_, limit, "limit_test", left_out_.limit_test);
    for (std::int64_t position = 0; position < test_.count(); ++position) {
      if (test_.label(position) >= 0) continue;
      fail_data("{} has a class that the network was not trained on; its classes: {}",
                test_.sample_name(position), first_names(class_names_, /*max_names=*/10));
    }
  }
  const auto& stored = train_.sources().front()->geometry();
  const bool grows = !stored || !stored->same_shape(geometry_);
  // Decoded or resized images fill memory gradually, so a shortage would only show up later.
  if (grows && options_.decode == settings::Decode::kOnce) require_memory();
}

/// Rejects held-out rows of a list if their class has no training rows, and warns about classes
/// without test rows.
void DatasetReader::check_part_classes() {
  const ImageSource& list = *train_.sources().front();
  std::map<Part, std::set<std::int32_t>> labels;
  for (std::size_t i = 0; i < list.parts().size(); ++i) {
    labels[list.parts()[i]].insert(list.labels()[i]);
  }
  const auto only_in = [&](Part part, Part other) {
    std::vector<std::string> names;
    for (const std::int32_t label : labels[part]) {
      if (labels[other].contains(label)) continue;
      names.push_back(name_or_number(class_names_, static_cast<std::size_t>(label)));
    }
    return names.empty()
               ? ""
               : (names.size() == 1 ? "class " : "classes ") + first_names(names, /*max_names=*/10);
  };
  for (const auto& [part, word] :
       {std::pair(Part::kTest, "test"), {Part::kValidation, "validation"}}) {
    const std::string untrained = only_in(part, Part::kTrain);
    if (untrained.empty()) continue;
    fail_data("{}: has {} rows, but no training rows, of {}", list.name(), word, untrained);
  }
  if (labels[Part::kTest].empty()) return;
  const std::string untested = only_in(Part::kTrain, Part::kTest);
  if (!untested.empty()) notes_.push_back(list.name() + ": has no test rows of " + untested);
}

/// Limits the training set to `remaining` and limit_train, then splits off the validation samples.
void DatasetReader::draw_validation(std::vector<std::int64_t> remaining) {
  SampleSplit part = take_part(train_, remaining, Part::kValidation);
  if (!part.taken.empty()) validation_ = train_.select(part.taken);
  remaining = std::move(part.remaining);
  if (remaining.empty()) fail_data("{}: no samples are left to train on", train_.name());
  if (std::ssize(remaining) < train_.count()) train_ = train_.select(remaining);
  train_ = limited(train_, options_.limit_train, "limit_train", left_out_.limit_train);
  if (options_.validation == 0) return;
  const SampleSplit split = draw_fraction(train_, positions({0, train_.count()}),
                                          options_.validation, options_.holdout_seed);
  note_drawn(split, "validation");
  validation_ = train_.select(split.taken);
  train_ = train_.select(split.remaining);
}

/// Warns about classes that a drawn set lacks, and rejects an empty set.
void DatasetReader::note_drawn(const SampleSplit& split, const char* key) {
  if (split.taken.empty()) {
    fail_data("{}: data.{} holds out no samples, because every class has only one sample",
              train_.name(), key);
  }
  if (split.single_classes.empty()) return;
  std::vector<std::string> names;
  for (const std::int32_t label : split.single_classes) {
    names.push_back(name_or_number(class_names_, static_cast<std::size_t>(label)));
  }
  notes_.push_back(fmt::format("data.{}: {} with a single sample {} not in this set: {}", key,
                               counted(std::ssize(names), "class"),
                               names.size() == 1 ? "is" : "are",
                               first_names(names, /*max_names=*/10)));
}

/// Selects the test samples unless the test set has its own files and the training set was opened.
/// Removes them from `remaining`, except for a recorded test set.
void DatasetReader::draw_test(std::vector<std::int64_t>& remaining, const DatasetRecord* record) {
  if (record != nullptr && has_test_files(options_)) {
    test_ = train_;
    return;
  }
  if (record != nullptr && !record->test.empty()) {
    test_ = train_.select(recorded_test(train_, *record));
    const std::int64_t found = train_.count() + std::ssize(bad_.skipped());
    left_out_.added = std::max<std::int64_t>(0, found - record->samples);
    return;
  }
  SampleSplit split = take_part(train_, remaining, Part::kTest);
  if (options_.test_fraction > 0) {
    split = draw_fraction(train_, remaining, options_.test_fraction, options_.holdout_seed);
    note_drawn(split, "test");
  }
  if (split.taken.empty()) return;
  test_ = train_.select(split.taken);
  remaining = std::move(split.remaining);
}

SampleView DatasetReader::limited(const SampleView& samples, std::optional<std::int64_t> limit,
                                  const char* key, std::int64_t& left_out) const {
  if (!limit) return samples;
  if (*limit > samples.count()) {
    fail_data("{}: data.{} is {}, but the set has only {}", samples.name(), key, *limit,
              counted(samples.count(), "image"));
  }
  left_out = samples.count() - *limit;
  if (!options_.has_picture_files()) return samples.select(positions({0, *limit}));
  return samples.select(draw_limit(samples, *limit, options_.holdout_seed));
}

void DatasetReader::require_memory() const {
  const SystemMemory memory = system_memory();
  const auto available = static_cast<std::int64_t>(memory.available);
  if (static_cast<std::int64_t>(bytes()) <= available) return;
  fail_data(
      "{}: decoded to {}, the images need {} MiB, but only {} MiB of memory is free{}; {}set a "
      "smaller data.size or data.limit_train",
      train_.name(), geometry_.text(), bytes() >> 20U, available >> 20,
      memory.limited ? ", of the " + memory_text(memory.total) + " that the cgroup allows" : "",
      options_.is_encoded() ? "decode during training with data.decode \"stream\", or " : "");
}

std::size_t DatasetReader::bytes() const {
  std::size_t sum = 0;
  for (const SampleView* samples : {&train_, &validation_, &test_}) {
    const auto count = static_cast<std::size_t>(samples->count());
    sum += cache_aligned(count * image_bytes()) + cache_aligned(count * sizeof(std::uint16_t));
  }
  return sum;
}

Dataset DatasetReader::read() {
  const auto memory = reserve_memory(bytes() + 1, train_.name());
  return read_into({memory.get(), bytes()}, memory);
}

Dataset DatasetReader::read_into(std::span<std::uint8_t> memory,
                                 const std::shared_ptr<const void>& owner) {
  const auto block = [&memory](std::size_t bytes) {
    const auto first = memory.first(bytes);
    memory = memory.subspan(cache_aligned(bytes));
    return first;
  };
  const auto read = [&](SampleView& samples) {
    const auto count = static_cast<std::size_t>(samples.count());
    const auto images = block(count * image_bytes());
    const auto labels = block(count * sizeof(std::uint16_t));
    if (count > 0 && !bad_.is_full()) skip(samples, decode(samples, images.data()), 0, images);
    ImageSet set = labelled(samples, reinterpret_cast<std::uint16_t*>(labels.data()), owner);
    set.images = images.first(static_cast<std::size_t>(set.count) * image_bytes());
    return set;
  };
  return finish({read(train_), read(validation_), read(test_), /*hash=*/""});
}

std::shared_ptr<EncodedImages> DatasetReader::encoded(const SampleView& samples) const {
  return std::make_shared<EncodedImages>(
      EncodedImages{samples, geometry_, options_.decode, options_.decode_threads});
}

/// Writes the pixels of all samples to `images` and returns the failures. Unless bad samples are
/// skipped, stops once there are more failures than an error message names.
std::vector<SampleFailure> DatasetReader::decode(const SampleView& samples,
                                                 std::uint8_t* images) const {
  constexpr std::int64_t kBatchPerThread = 64;    // failures and cancellation are checked per batch
  constexpr std::int64_t kSamplesPerThread = 16;  // minimum
  for (const auto& source : samples.sources()) source->load();
  const auto threads = std::min<std::int64_t>(
      usable_cores(), (samples.count() + kSamplesPerThread - 1) / kSamplesPerThread);
  const auto pool =
      make_image_decoder({std::make_shared<EncodedImages>(EncodedImages{samples, geometry_}),
                          static_cast<int>(threads), /*gpu=*/std::nullopt, images});
  const auto failed = pool->decode_range(
      {0, samples.count()}, kBatchPerThread * threads, [this](const auto& failures) {
        return (bad_.skips() || failures.size() <= BadSamples::kMaxNamed) && !is_cancelled();
      });
  if (is_cancelled()) throw Error(ExitCode::kRunFailed, "the samples are no longer needed");
  return failed;
}

std::vector<SampleFailure> DatasetReader::check(int part, int parts, int threads,
                                                const std::function<void()>& progress) {
  constexpr std::int64_t kBatch = 256;
  std::vector<SampleFailure> failed;
  std::int64_t first = 0;
  for (const SampleView* samples : {&train_, &validation_, &test_}) {
    const Range range = shard({0, samples->count()}, part, parts);
    if (range.size() > 0) {
      const auto decoder = make_image_decoder({encoded(*samples), threads});
      const auto failures = decoder->decode_range(range, kBatch, [&](const auto&) {
        progress();
        return true;
      });
      for (const auto& each : failures) failed.push_back({first + each.sample, each.message});
    }
    first += samples->count();
  }
  return failed;
}

Dataset DatasetReader::stream(const std::vector<SampleFailure>& failed) {
  std::int64_t first = 0;
  auto begin = failed.begin();
  const auto open = [&](SampleView& samples) {
    const std::int64_t next = first + samples.count();
    const auto end =
        std::find_if(begin, failed.end(), [&](const auto& each) { return each.sample >= next; });
    skip(samples, {begin, end}, first, {});
    first = next;
    begin = end;
    const auto labels =
        std::make_shared<std::vector<std::uint16_t>>(static_cast<std::size_t>(samples.count()));
    ImageSet set = labelled(samples, labels->data(), labels);
    if (set.count > 0) set.encoded = encoded(samples);
    return set;
  };
  return finish({open(train_), open(validation_), open(test_), /*hash=*/""});
}

/// Adds the failures to `bad_`. If bad samples are skipped, removes them, and their pixels from
/// `images` unless that is empty. `first`: number of the first sample, as counted in `failed`.
void DatasetReader::skip(SampleView& samples, std::span<const SampleFailure> failed,
                         std::int64_t first, std::span<std::uint8_t> images) {
  for (const SampleFailure& each : failed) bad_.add(each.message);
  if (!bad_.skips() || samples.count() == 0) return;
  const std::size_t size = image_bytes();
  std::vector<std::int64_t> good;
  auto next = failed.begin();
  for (std::int64_t position = 0; position < samples.count(); ++position) {
    if (next != failed.end() && next->sample == first + position) {
      ++next;
      skipped_labels_.emplace(&samples, samples.label(position));
      continue;
    }
    if (!images.empty()) {
      const std::uint8_t* pixels = &images[static_cast<std::size_t>(position) * size];
      std::memmove(&images[good.size() * size], pixels, size);
    }
    good.push_back(position);
  }
  if (good.empty()) {
    fail_data("{}: none of its images can be used, for example: {}", samples.name(),
              failed.front().message);
  }
  samples = samples.select(good);
}

/// Returns the samples as a set and writes their labels to `labels` [count], owned by `owner`.
ImageSet DatasetReader::labelled(const SampleView& samples, std::uint16_t* labels,
                                 std::shared_ptr<const void> owner) const {
  ImageSet set = empty_image_set(geometry_, classes_);
  set.count = samples.count();
  if (set.count == 0) return set;
  for (std::int64_t i = 0; i < set.count; ++i) {
    labels[i] = static_cast<std::uint16_t>(samples.label(i));
  }
  set.labels = {labels, static_cast<std::size_t>(set.count)};
  set.owner = std::move(owner);
  set.source = samples.name();
  return set;
}

/// Adds notes about classes without training samples, unless a limit may have excluded them, and
/// about classes that have no samples left in a split because all were skipped.
void DatasetReader::note_empty_classes(Dataset& dataset) const {
  const auto note = [&](const char* split, const SampleView& samples, const ImageSet& set,
                        bool needs_all) {
    const std::vector<std::int64_t> sizes = set.class_sizes();
    std::vector<std::string> empty;
    for (std::size_t label = 0; set.count > 0 && label < sizes.size(); ++label) {
      const bool was_skipped =
          skipped_labels_.contains({&samples, static_cast<std::int32_t>(label)});
      if (sizes[label] > 0 || (!needs_all && !was_skipped)) continue;
      empty.push_back(name_or_number(class_names_, label));
    }
    if (empty.empty()) return;
    dataset.notes.push_back(fmt::format("{}: no usable {} samples of {} {}", set.source, split,
                                        empty.size() == 1 ? "class" : "classes",
                                        first_names(empty, /*max_names=*/10)));
    if (class_names_.empty()) {
      dataset.notes.back() += fmt::format(" (of {} classes, numbered from 0)", set.classes);
    }
  };
  note("training", train_, dataset.train, !options_.limit_train);
  note("validation", validation_, dataset.validation, false);
  const bool is_test_alone = train_.count() == 0 && has_test_files(options_);
  note("test", test_, dataset.test, is_test_alone && !options_.limit_test);
}

void DatasetReader::note_repeated_files(Dataset& dataset) const {
  if (dataset.train.count == 0) return;
  const std::array views{&train_, &validation_, &test_};
  // Only files of equal size, or with equal pixels if already decoded, are compared.
  const auto for_each = [&](std::size_t begin, const auto& visit) {
    for (std::size_t split = begin; split < views.size(); ++split) {
      const ImageSet& set = dataset.*kSplits.at(split).second;
      const std::size_t size = set.encoded ? 0 : image_bytes();
      for (std::int64_t i = 0; i < set.count; ++i) {
        const auto pixels = set.images.subspan(static_cast<std::size_t>(i) * size, size);
        visit(split, i, set.encoded ? std::to_string(views.at(split)->bytes(i)) : hash_hex(pixels));
      }
    }
  };
  std::unordered_map<std::string, unsigned> splits_of;  // key of a held-out file -> bits
  for_each(1, [&](std::size_t split, std::int64_t, const std::string& key) {
    splits_of[key] |= 1U << split;
  });
  splits_of.erase("0");  // samples without a file
  const auto name_of = [&](std::size_t split, std::int64_t i) {
    return fmt::format("{} ({})", views.at(split)->sample_name(i), kSplits.at(split).first);
  };
  Buffer buffer;
  std::unordered_map<std::string, std::pair<std::size_t, std::int64_t>> known;  // by hash
  std::vector<std::string> repeated;
  for_each(0, [&](std::size_t split, std::int64_t i, const std::string& key) {
    const auto found = splits_of.find(key);
    if (found == splits_of.end()) return;
    found->second |= 1U << split;
    if (std::has_single_bit(found->second)) return;
    try {
      const Bytes bytes = views.at(split)->read(i, buffer);
      (void)imaging::read_header(bytes, /*name=*/"", geometry_.decode.max_pixels);
      const auto [same, is_new] = known.emplace(hash_hex(bytes), std::pair(split, i));
      const auto [other, sample] = same->second;
      if (other != split) repeated.push_back(name_of(split, i) + " = " + name_of(other, sample));
    } catch (const Error&) {  // unusable, so reported or skipped when it is decoded
    }
  });
  if (repeated.empty()) return;
  dataset.notes.push_back(
      "identical files are in two sets, so results look better than they are: " +
      first_names(repeated, /*max_names=*/5));
}

Dataset DatasetReader::finish(Dataset dataset) const {
  bad_.refuse();
  Hasher files;
  Hasher pixels;
  for (auto [set, samples] : {std::pair(&dataset.train, &train_),
                              {&dataset.validation, &validation_},
                              {&dataset.test, &test_}}) {
    if (set->count == 0) continue;
    const std::string text = samples->hash() + ' ' + geometry_.hash_input() + '\n';
    files.update(text.data(), text.size());
    if (!set->encoded) hash_pixels(pixels, *set);
  }
  dataset.files_hash = options_.is_encoded() ? files.named_digest() : "";
  dataset.hash =
      dataset.train.encoded || dataset.test.encoded ? dataset.files_hash : pixels.named_digest();
  for (auto [set, samples] :
       {std::pair(&dataset.validation, &validation_), {&dataset.test, &test_}}) {
    if (set->encoded || !options_.has_picture_files()) continue;
    for (std::int64_t i = 0; i < set->count; ++i) set->paths.push_back(samples->path(i));
  }
  dataset.class_names = class_names_;
  dataset.skipped = bad_.skipped();
  if (train_.sources().size() > 1) dataset.train_parts = train_.source_sizes();
  dataset.left_out = left_out_;
  dataset.left_out.unusable = std::ssize(bad_.skipped());
  dataset.notes = notes_;
  dataset.notes.insert(dataset.notes.end(), bad_.notes().begin(), bad_.notes().end());
  note_empty_classes(dataset);
  if (!dataset.train.encoded && options_.has_picture_files()) note_repeated_files(dataset);
  return dataset;
}

ImageSet empty_image_set(const ImageGeometry& geometry, std::int64_t classes) {
  ImageSet set;
  set.channels = geometry.channels;
  set.height = geometry.height;
  set.width = geometry.width;
  set.classes = classes;
  return set;
}

ImageSet read_image_shape(settings::DataOptions options, const fs::path& record) {
  options.decode = settings::Decode::kStream;  // needs no memory for decoded images
  const DatasetReader reader(options, record.empty() ? Splits::kBoth : Splits::kTest, record);
  return empty_image_set(reader.geometry(), reader.classes());
}

}  // namespace mnist_train::data
