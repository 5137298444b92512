#include "dali/decoder.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/error.h"
#include "base/system.h"
#include "imaging/header.h"

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

}  // namespace

Decoder::Decoder(const data::ImageDecoderSetup& setup) : setup_(setup) {
  (void)pipeline_for(1);  // says at once what is wrong with the installation
  thread_ = start_thread([this] { work(); });
}

Decoder::~Decoder() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Decoder::begin(std::vector<std::int64_t> samples) {
  auto job = std::make_unique<Job>();
  job->samples = std::move(samples);
  results_.push_back(job->result.get_future());
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    waiting_.push_back(std::move(job));
  }
  changed_.notify_all();
}

data::ImageDecoder::Batch Decoder::take() {
  std::future<Batch> result = std::move(results_.front());
  results_.pop_front();
  return result.get();
}

void Decoder::work() {
  for (;;) {
    std::unique_ptr<Job> job = next_job();
    if (!job && fed_.empty()) break;
    try {
      if (job) {
        start(std::move(job));
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

/// Null: nothing is waiting, or enough is fed; or, with nothing fed, the end.
std::unique_ptr<Decoder::Job> Decoder::next_job() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (fed_.size() == kMostFed) return nullptr;
  if (fed_.empty()) changed_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
  if (ending_) waiting_.clear();
  if (waiting_.empty()) return nullptr;
  std::unique_ptr<Job> job = std::move(waiting_.front());
  waiting_.pop_front();
  return job;
}

void Decoder::start(std::unique_ptr<Job> job) {
  const bool usable = read(*job);
  if (!usable || !pipeline_ || pipeline_->max_batch() < job->samples.size()) {
    while (!fed_.empty()) finish_first();
  }
  if (!usable) return settle_singly(*job);
  fed_.push_back(std::move(job));
  pipeline_for(fed_.back()->samples.size()).feed(fed_.back()->files);
}

void Decoder::finish_first() {
  std::optional<Batch> batch;
  try {
    batch = pipeline_->pop();
  } catch (const Error&) {
    pipeline_.reset();  // and with it what else was fed
  }
  const std::unique_ptr<Job> job = std::move(fed_.front());
  fed_.pop_front();
  if (batch) return job->result.set_value(std::move(*batch));
  settle_singly(*job);
  if (fed_.empty()) return;
  std::size_t most = 0;
  for (const auto& each : fed_) most = std::max(most, each->samples.size());
  for (const auto& each : fed_) pipeline_for(most).feed(each->files);
}

void Decoder::settle_singly(Job& job) {
  try {
    job.result.set_value(decode_singly(job));
  } catch (...) {
    job.result.set_exception(std::current_exception());
  }
}

/// False where a file cannot be read or its header says that it is no use.
bool Decoder::read(Job& job) {
  job.buffers.resize(job.samples.size());
  job.files.resize(job.samples.size());
  try {
    for (std::size_t place = 0; place < job.samples.size(); ++place) read_sample(job, place);
  } catch (const Error&) {
    return false;
  }
  return true;
}

void Decoder::read_sample(Job& job, std::size_t place) const {
  const data::EncodedImages& images = *setup_.images;
  const std::int64_t sample = job.samples[place];
  const std::string name = images.set->name(sample);
  job.files[place] = images.set->read(sample, job.buffers[place]);
  const imaging::Header header = imaging::read_header(job.files[place], name);
  data::require_geometry(channels_of(header, name), header.height, header.width, images.geometry,
                         name);
}

/// A batch that holds something bad, for its failures alone.
data::ImageDecoder::Batch Decoder::decode_singly(const Job& job) {
  Batch batch;
  for (std::size_t place = 0; place < job.samples.size(); ++place) {
    Job single;
    single.samples = {job.samples[place]};
    single.buffers.resize(1);
    single.files.resize(1);
    try {
      read_sample(single, 0);
    } catch (const Error& error) {
      batch.failures.push_back({place, error.what()});
      continue;
    }
    try {
      pipeline_for(1).feed(single.files);
      (void)pipeline_->pop();
    } catch (const Error&) {
      pipeline_.reset();
      batch.failures.push_back({place, why_not(job.samples[place])});
    }
  }
  if (batch.failures.empty()) {
    throw Error(ExitCode::kRunFailed,
                "NVIDIA DALI failed on a batch whose images it decodes one by one, the first " +
                    setup_.images->set->name(job.samples.front()));
  }
  return batch;
}

/// DALI's own words name neither file nor place; our decoder's do.
std::string Decoder::why_not(std::int64_t sample) const {
  try {
    std::vector<std::uint8_t> planes(static_cast<std::size_t>(setup_.images->geometry.bytes()));
    std::vector<std::uint8_t> buffer;
    setup_.images->decode_to(planes.data(), sample, buffer);
  } catch (const Error& error) {
    return error.what();
  }
  return setup_.images->set->name(sample) + ": NVIDIA DALI cannot decode it";
}

/// Nothing may be fed where it has to be made anew.
Pipeline& Decoder::pipeline_for(std::size_t samples) {
  if (!pipeline_ || pipeline_->max_batch() < samples) {
    pipeline_.reset();
    pipeline_ = std::make_unique<Pipeline>(setup_, samples);
  }
  return *pipeline_;
}

}  // namespace mnist_train::dali
