#pragma once

#include <chrono>
#include <exception>
#include <thread>

#include "base/file.h"
#include "data/dataset.h"

namespace mnist_train::data {

/// The descriptors that a worker inherits of a SharedDataset. In the launcher both are
/// close-on-exec; it lets them through with dup2 in the child.
struct SharedDatasetHandle {
  int memory_fd = -1;  // an unnamed file in memory, for the samples
  int ready_fd = -1;   // a pipe: readable once they are there, hung up if they never will be
};

/// One host's samples, read once by the launcher while its workers start, and mapped by all of
/// them. The launcher makes it before it spawns and calls `publish`; each worker calls `attach`.
class SharedDataset {
 public:
  /// Throws Error(kRunFailed) if the system gives no descriptors.
  SharedDataset();
  SharedDataset(const SharedDataset&) = delete;
  SharedDataset& operator=(const SharedDataset&) = delete;
  /// Cancels reading and waits for its thread.
  ~SharedDataset();

  SharedDatasetHandle handle() const { return {memory_fd_.get(), ready_read_fd_.get()}; }

  /// Starts a thread, which takes no signals, that finds, reads and checks the data set. In the end
  /// `handle().ready_fd` becomes readable, or hangs up if that failed. Called once.
  /// `record`: as of DatasetReader.
  void publish(const settings::DataOptions& options, Splits splits = Splits::kBoth,
               const fs::path& record = {});

  /// Waits for `publish` and throws its failure.
  void wait();

 private:
  UniqueFd memory_fd_;
  UniqueFd ready_read_fd_;
  UniqueFd ready_write_fd_;
  std::atomic<bool> cancelled_{false};
  std::thread thread_;
  std::exception_ptr failure_;
};

/// Waits for the samples, calling `while_waiting` every second, and maps them, read-only and
/// without a copy. Takes ownership of the descriptors. Throws PeerError if the launcher ended or
/// gave up before, or after `timeout`, and Error(kRunFailed) if the memory was not written by a
/// launcher of this program.
Dataset attach(const SharedDatasetHandle& handle, std::chrono::milliseconds timeout,
               const std::function<void()>& while_waiting = {});

}  // namespace mnist_train::data
