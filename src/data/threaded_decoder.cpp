#include "data/threaded_decoder.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/system.h"

namespace mnist_train::data {

ThreadedDecoder::ThreadedDecoder(const ImageDecoderSetup& setup) : images_(setup.images) {
  for (int i = 0; i < setup.threads; ++i) {
    threads_.push_back(start_thread([this] { work(); }));
  }
}

ThreadedDecoder::~ThreadedDecoder() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
  }
  begun_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadedDecoder::begin(std::vector<std::int64_t> samples) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto bytes = samples.size() * static_cast<std::size_t>(images_->geometry.bytes());
  jobs_.push_back({std::move(samples), free_pixels(bytes), {}});
  begun_.notify_all();
}

/// Memory that nobody holds any more, or more of it.
ThreadedDecoder::Pixels ThreadedDecoder::free_pixels(std::size_t bytes) {
  for (Pixels& pixels : pixels_) {
    if (pixels.use_count() > 1) continue;
    if (pixels->size() < bytes) pixels->resize(bytes);
    return pixels;
  }
  pixels_.push_back(std::make_shared<std::vector<std::uint8_t>>(bytes));
  return pixels_.back();
}

ThreadedDecoder::Job* ThreadedDecoder::job_with_work() {
  const auto job = std::find_if(jobs_.begin(), jobs_.end(),
                                [](const Job& each) { return each.next < each.samples.size(); });
  return job == jobs_.end() ? nullptr : &*job;
}

void ThreadedDecoder::work() {
  const std::int64_t size = images_->geometry.bytes();
  std::vector<std::uint8_t> buffer;
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    Job* job = nullptr;  // stays where it is while one of its samples is not done
    begun_.wait(lock, [&] { return ending_ || (job = job_with_work()) != nullptr; });
    if (ending_) return;
    const std::size_t place = job->next++;
    const std::int64_t sample = job->samples[place];
    std::uint8_t* out = job->pixels->data() + static_cast<std::int64_t>(place) * size;
    lock.unlock();
    std::string failure;
    try {
      images_->decode_to(out, sample, buffer);
    } catch (const std::exception& error) {
      failure = error.what();
    }
    lock.lock();
    if (!failure.empty()) job->failures.push_back({place, std::move(failure)});
    if (++job->done == job->samples.size()) done_.notify_all();
  }
}

ImageDecoder::Batch ThreadedDecoder::take() {
  std::unique_lock<std::mutex> lock(mutex_);
  done_.wait(lock, [this] { return jobs_.front().done == jobs_.front().samples.size(); });
  Job job = std::move(jobs_.front());
  jobs_.pop_front();
  std::sort(job.failures.begin(), job.failures.end(),
            [](const SampleFailure& a, const SampleFailure& b) { return a.place < b.place; });
  const std::uint8_t* pixels = job.pixels->data();
  return {pixels, std::move(job.pixels), std::move(job.failures)};
}

}  // namespace mnist_train::data
