#include "checkpoint/checkpoint_writer.h"

#include <pthread.h>
#include <signal.h>
#include <spdlog/spdlog.h>

#include <utility>

namespace mnist_train::checkpoint {

namespace {

/// The thread leaves signals to the others, so that none interrupts a write.
void block_all_signals() {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

}  // namespace

CheckpointWriter::~CheckpointWriter() {
  try {
    wait();
  } catch (const std::exception& error) {
    spdlog::error("{}", error.what());
  }
}

void CheckpointWriter::start(TensorFile snapshot, std::int64_t step, bool best) {
  wait();
  thread_ = std::thread([this, snapshot = std::move(snapshot), step, best] {
    block_all_signals();
    run(snapshot, step, best);
  });
}

void CheckpointWriter::run(const TensorFile& snapshot, std::int64_t step, bool best) noexcept {
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
