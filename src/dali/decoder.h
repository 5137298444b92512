#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "dali/pipeline.h"
#include "data/image_decoder.h"

namespace mnist_train::dali {

/// Decodes by NVIDIA DALI. A thread of its own reads the files and alone uses the pipeline. Headers
/// are checked before DALI sees a file, as for our own decoders.
class DaliDecoder : public data::ImageDecoder {
 public:
  explicit DaliDecoder(const data::ImageDecoderSetup& setup);
  DaliDecoder(const DaliDecoder&) = delete;
  DaliDecoder& operator=(const DaliDecoder&) = delete;
  ~DaliDecoder() override;

  bool decodes_to_gpu() const override { return setup_.gpu.has_value(); }

 protected:
  void begin(std::vector<std::int64_t> samples) override;
  data::DecodedBatch finish() override;

 private:
  struct FileBatch {
    std::vector<std::int64_t> samples;
    std::vector<std::vector<std::uint8_t>> buffers{};  // of files that are not mapped
    std::vector<std::span<const std::uint8_t>> files{};
    std::promise<data::DecodedBatch> result{};
  };
  using FileBatches = std::deque<std::unique_ptr<FileBatch>>;

  void work();
  std::unique_ptr<FileBatch> next_batch();
  void start(std::unique_ptr<FileBatch> batch);
  void finish_first();
  void settle_singly(FileBatch& batch);
  bool read(FileBatch& batch);
  void read_sample(FileBatch& batch, std::size_t place) const;
  data::DecodedBatch decode_singly(const FileBatch& batch);
  std::string why_not(std::int64_t sample) const;
  Pipeline& pipeline_for(std::size_t samples);

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

}  // namespace mnist_train::dali
