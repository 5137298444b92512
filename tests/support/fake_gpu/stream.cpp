#include "support/fake_gpu/stream.h"

#include <signal.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "support/fake_gpu/message.h"
#include "support/fake_gpu/settings.h"

namespace mnist_train::fake_gpu {

namespace {

/// Every stream of this process, including the default streams.
struct Streams {
  std::mutex mutex;
  std::vector<std::unique_ptr<Stream>> all;
  std::vector<Stream*> legacy;  // per device
};

Streams& streams() {
  static auto& streams = *[] {
    auto* made = new Streams();
    for (int device = 0; device < device_count(); ++device) {
      made->all.push_back(std::make_unique<Stream>(Stream::Kind::kLegacy, device, 0));
      made->legacy.push_back(made->all.back().get());
    }
    return made;
  }();
  return streams;
}

std::atomic<long>& started_launches(int device) {
  static auto& counts = *new std::vector<std::atomic<long>>(visible_devices().size());
  return counts.at(static_cast<std::size_t>(device));
}

bool may_hang(int device) {
  const int physical = visible_devices().at(static_cast<std::size_t>(device));
  return counts_started_launches() &&
         (settings().hang_device < 0 || settings().hang_device == physical);
}

/// Never returns if the settings make this device hang and it has reached the configured number of
/// launches, so neither that launch nor any other work on the device completes.
void hang_if_told(int device) {
  if (!may_hang(device) || started_launches(device) < settings().hang_after_launches) return;
  say("device ", device, " hangs because of FAKE_GPU_HANG_AFTER_LAUNCHES");
  while (true) std::this_thread::sleep_for(std::chrono::hours(1));
}

/// Starts a thread with all signals blocked, because they are meant for the program's threads.
void start_thread(Operation work) {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread(std::move(work)).detach();
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

Stream::Position Stream::enqueue(Operation operation) {
  const std::lock_guard lock(mutex_);
  if (!has_thread_) {
    has_thread_ = true;
    start_thread([this] { run(); });
  }
  operations_.push_back(std::move(operation));
  changed_.notify_all();
  return ++enqueued_;
}

void Stream::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return !operations_.empty(); });
    Operation operation = std::move(operations_.front());
    operations_.pop_front();
    lock.unlock();
    operation();
    operation = nullptr;
    hang_if_told(device_);
    lock.lock();
    ++completed_;
    changed_.notify_all();
  }
}

Stream& create_stream(unsigned flags) {
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  all.all.push_back(std::make_unique<Stream>(Stream::Kind::kCreated, current_device(), flags));
  return *all.all.back();
}

Stream& stream_of(cudaStream_t handle) {
  if (handle != nullptr && handle != cudaStreamLegacy && handle != cudaStreamPerThread) {
    return *reinterpret_cast<Stream*>(handle);
  }
  return *streams().legacy.at(static_cast<std::size_t>(current_device()));
}

cudaStream_t handle_of(Stream& stream) { return reinterpret_cast<cudaStream_t>(&stream); }

void wait_for_device(int device) {
  std::vector<Stream*> of_device;
  {
    Streams& all = streams();
    const std::lock_guard lock(all.mutex);
    for (const auto& stream : all.all) {
      if (stream->device() == device) of_device.push_back(stream.get());
    }
  }
  for (Stream* stream : of_device) stream->wait(stream->end());
}

void count_started_launch(int device) { ++started_launches(device); }

bool counts_started_launches() { return settings().hang_after_launches > 0; }

}  // namespace mnist_train::fake_gpu
