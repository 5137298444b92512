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

/// NVIDIA DALI's decoders, fed by a thread that reads the files and that alone deals with the
/// pipeline. Headers are checked before DALI sees a file, as for our own decoders.
class Decoder : public data::ImageDecoder {
 public:
  explicit Decoder(const data::ImageDecoderSetup& setup);
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
  ~Decoder() override;

  void begin(std::vector<std::int64_t> samples) override;
  Batch take() override;

 private:
  struct Job {
    std::vector<std::int64_t> samples;
    std::vector<std::vector<std::uint8_t>> buffers{};  // of files that are not mapped
    std::vector<std::span<const std::uint8_t>> files{};
    std::promise<Batch> result{};
  };
  using Jobs = std::deque<std::unique_ptr<Job>>;

  void work();
  std::unique_ptr<Job> next_job();
  void start(std::unique_ptr<Job> job);
  void finish_first();
  void settle_singly(Job& job);
  bool read(Job& job);
  void read_sample(Job& job, std::size_t place) const;
  Batch decode_singly(const Job& job);
  std::string why_not(std::int64_t sample) const;
  Pipeline& pipeline_for(std::size_t samples);

  data::ImageDecoderSetup setup_;
  std::deque<std::future<Batch>> results_;  // of batches begun and not taken
  std::unique_ptr<Pipeline> pipeline_;
  Jobs fed_;
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  Jobs waiting_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace mnist_train::dali
