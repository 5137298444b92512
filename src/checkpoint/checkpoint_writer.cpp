#include "checkpoint/checkpoint_writer.h"

#include <spdlog/spdlog.h>

#include "base/system.h"

namespace mnist_train::checkpoint {

CheckpointWriter::~CheckpointWriter() {
  try {
    wait();
  } catch (const std::exception& error) {
    spdlog::error("{}", error.what());
  }
}

void CheckpointWriter::start(TensorFile snapshot, std::int64_t step, bool best) {
  wait();
  thread_ = start_thread(
      [this, snapshot = std::move(snapshot), step, best] { save(snapshot, step, best); });
}

void CheckpointWriter::save(const TensorFile& snapshot, std::int64_t step, bool best) noexcept {
  try {
    folder_.save(snapshot, step);
    if (best) folder_.mark_best(step);
  } catch (...) {
    failure_ = std::current_exception();
    failed_ = true;
  }
}

void CheckpointWriter::check() {
  if (failed_) wait();
}

void CheckpointWriter::wait() {
  if (thread_.joinable()) thread_.join();
  failed_ = false;
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

}  // namespace mnist_train::checkpoint
