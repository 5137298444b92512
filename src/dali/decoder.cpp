#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/system.h"
#include "dali/pipeline.h"
#include "data/image_decoder.h"
#include "imaging/codec.h"

namespace mnist_train::dali {

namespace {

// While one is decoded, the next one waits inside DALI.
constexpr std::size_t kMostFed = 2;

std::int64_t channels_of(const imaging::Header& header, const std::string& name) {
  if (header.format == imaging::Format::kPng) return header.components < 3 ? 1 : 3;
  if (header.components != 1 && header.components != 3) {
    imaging::fail_at(name, 0,
                     "a JPEG image of " + std::to_string(header.components) +
                         " colour components (CMYK?); gray and RGB are read");
  }
  return header.components;
}

/// Decodes by NVIDIA DALI. A thread of its own reads the files and alone uses the pipeline. Headers
/// are checked before DALI sees a file, as for our own decoders.
class DaliDecoder : public data::ImageDecoder {
 public:
  explicit DaliDecoder(const data::ImageDecoderSetup& setup) : setup_(setup) {
    (void)pipeline_for(1);  // says at once what is wrong with the installation
    thread_ = start_thread([this] { work(); });
  }
  DaliDecoder(const DaliDecoder&) = delete;
  DaliDecoder& operator=(const DaliDecoder&) = delete;
  ~DaliDecoder() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  bool decodes_to_gpu() const override { return setup_.gpu.has_value(); }

 protected:
  void begin(std::vector<std::int64_t> samples) override {
    auto batch = std::make_unique<FileBatch>(std::move(samples));
    results_.push_back(batch->result.get_future());
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      waiting_.push_back(std::move(batch));
    }
    changed_.notify_all();
  }

  data::DecodedBatch finish() override {
    std::future<data::DecodedBatch> result = std::move(results_.front());
    results_.pop_front();
    return result.get();
  }

 private:
  struct FileBatch {
    explicit FileBatch(std::vector<std::int64_t> wanted)
        : samples(std::move(wanted)), buffers(samples.size()), files(samples.size()) {}

    std::vector<std::int64_t> samples;
    std::vector<std::vector<std::uint8_t>> buffers;  // of files that are not mapped
    std::vector<std::span<const std::uint8_t>> files;
    std::promise<data::DecodedBatch> result{};
  };
  using FileBatches = std::deque<std::unique_ptr<FileBatch>>;

  void work() {
    for (;;) {
      std::unique_ptr<FileBatch> batch = next_batch();
      if (!batch && fed_.empty()) break;
      try {
        if (batch) {
          start(std::move(batch));
        } else {
          finish_first();
        }
      } catch (...) {
        // Nothing of a pipeline that failed can be relied on.
        for (const auto& each : fed_) each->result.set_exception(std::current_exception());
        fed_.clear();
        pipeline_.reset();
      }
    }
  }

  /// The next batch to feed; null where none waits or enough are fed, and, with none fed, in the
  /// end.
  std::unique_ptr<FileBatch> next_batch() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (fed_.size() == kMostFed) return nullptr;
    if (fed_.empty()) changed_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
    if (ending_) waiting_.clear();
    if (waiting_.empty()) return nullptr;
    std::unique_ptr<FileBatch> batch = std::move(waiting_.front());
    waiting_.pop_front();
    return batch;
  }

  void start(std::unique_ptr<FileBatch> batch) {
    const bool usable = read(*batch);
    if (!usable || !pipeline_ || pipeline_->max_batch() < batch->samples.size()) {
      while (!fed_.empty()) finish_first();
    }
    if (!usable) return settle_singly(*batch);
    fed_.push_back(std::move(batch));
    pipeline_for(fed_.back()->samples.size()).feed(fed_.back()->files);
  }

  void finish_first() {
    std::optional<data::DecodedBatch> decoded;
    try {
      decoded = pipeline_->pop();
    } catch (const Error&) {
      pipeline_.reset();  // and with it what else was fed
    }
    const std::unique_ptr<FileBatch> batch = std::move(fed_.front());
    fed_.pop_front();
    if (decoded) return batch->result.set_value(std::move(*decoded));
    settle_singly(*batch);
    if (fed_.empty()) return;
    std::size_t most = 0;
    for (const auto& each : fed_) most = std::max(most, each->samples.size());
    for (const auto& each : fed_) pipeline_for(most).feed(each->files);
  }

  void settle_singly(FileBatch& batch) {
    try {
      batch.result.set_value(decode_singly(batch));
    } catch (...) {
      batch.result.set_exception(std::current_exception());
    }
  }

  /// Returns false where a file cannot be read, or its header says that it cannot be used.
  bool read(FileBatch& batch) {
    try {
      for (std::size_t place = 0; place < batch.samples.size(); ++place) read_sample(batch, place);
    } catch (const Error&) {
      return false;
    }
    return true;
  }

  void read_sample(FileBatch& batch, std::size_t place) const {
    const data::EncodedImages& images = *setup_.images;
    const std::int64_t sample = batch.samples[place];
    const std::string name = images.samples.sample_name(sample);
    batch.files[place] = images.samples.read(sample, batch.buffers[place]);
    const imaging::Header header = imaging::read_header(batch.files[place], name);
    data::require_geometry({channels_of(header, name), header.height, header.width},
                           images.geometry, name);
  }

  /// Finds the failures of a batch that holds something bad.
  data::DecodedBatch decode_singly(const FileBatch& batch) {
    data::DecodedBatch decoded;
    for (const std::int64_t sample : batch.samples) {
      FileBatch single({sample});
      try {
        read_sample(single, 0);
      } catch (const Error& error) {
        decoded.failures.push_back({sample, error.what()});
        continue;
      }
      try {
        pipeline_for(1).feed(single.files);
        (void)pipeline_->pop();
      } catch (const Error&) {
        pipeline_.reset();
        decoded.failures.push_back({sample, why_not(sample)});
      }
    }
    if (decoded.failures.empty()) {
      throw Error(ExitCode::kRunFailed,
                  "NVIDIA DALI failed on a batch whose images it decodes one by one, the first " +
                      setup_.images->samples.sample_name(batch.samples.front()));
    }
    return decoded;
  }

  /// Why a sample fails, in the words of our decoder: DALI's name neither file nor place.
  std::string why_not(std::int64_t sample) const {
    const data::EncodedImages& images = *setup_.images;
    try {
      std::vector<std::uint8_t> planes(static_cast<std::size_t>(images.geometry.bytes()));
      std::vector<std::uint8_t> buffer;
      images.samples.decode(sample, images.geometry, planes.data(), buffer);
    } catch (const Error& error) {
      return error.what();
    }
    return images.samples.sample_name(sample) + ": NVIDIA DALI cannot decode it";
  }

  /// A pipeline for so many samples; nothing may be fed where it has to be built again.
  Pipeline& pipeline_for(std::size_t samples) {
    if (!pipeline_ || pipeline_->max_batch() < samples) {
      pipeline_.reset();
      pipeline_ = std::make_unique<Pipeline>(setup_, samples);
    }
    return *pipeline_;
  }

  data::ImageDecoderSetup setup_;
  std::deque<std::future<data::DecodedBatch>> results_;  // of batches begun and not finished
  std::unique_ptr<Pipeline> pipeline_;
  FileBatches fed_;
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  FileBatches waiting_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace
}  // namespace mnist_train::dali

// What data/image_decoder.cpp looks up in this module.
extern "C" __attribute__((visibility("default"))) mnist_train::data::ImageDecoder*
mnist_train_make_dali_decoder(const mnist_train::data::ImageDecoderSetup& setup) {
  return new mnist_train::dali::DaliDecoder(setup);
}
