#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <string>
#include <thread>

#include "base/file.h"
#include "data/dataset.h"
#include "data/dataset_reader.h"
#include "settings/data_options.h"

namespace mnist_train::data {

/// What a worker inherits of a SharedDataset. Both descriptors are close-on-exec in the launcher,
/// which lets them through with dup2 in the child.
struct SharedDatasetHandle {
  int memory_fd = -1;  // an unnamed file in memory, where the samples will be
  int ready_fd = -1;   // a pipe: readable once they are there, hung up when they never will be
};

/// One host's samples, read once by the launcher while its workers start, and mapped by all of
/// them. The launcher makes it before it spawns and calls `publish`; each worker calls `attach`.
class SharedDataset {
 public:
  /// Throws Error(kRunFailed) when the system gives no descriptors.
  SharedDataset();
  SharedDataset(const SharedDataset&) = delete;
  SharedDataset& operator=(const SharedDataset&) = delete;
  /// Ends the reading and waits for its thread.
  ~SharedDataset();

  SharedDatasetHandle handle() const { return {memory_fd_.get(), ready_read_fd_.get()}; }

  /// Starts to find, read and check the data set, on a thread of its own that takes no signals. In
  /// the end `handle().ready_fd` becomes readable, or hangs up where that failed. Called once.
  void publish(const settings::DataOptions& options, std::int64_t seed = 1,
               Splits splits = Splits::kBoth);

  /// Waits for `publish` and throws its failure.
  void wait();

 private:
  void run(const settings::DataOptions& options, std::int64_t seed, Splits splits);

  UniqueFd memory_fd_;
  UniqueFd ready_read_fd_;
  UniqueFd ready_write_fd_;
  std::atomic<bool> cancelled_{false};
  std::thread thread_;
  std::exception_ptr failure_;
};

/// Waits until the samples are there, with a call of `while_waiting` every second, and maps them,
/// read-only and without a copy. Takes the descriptors over. Throws PeerError when the launcher
/// ended or gave up before, or after `timeout`, and Error(kRunFailed) when the memory does not hold
/// what a launcher of this program puts there.
Dataset attach(const SharedDatasetHandle& handle, std::chrono::milliseconds timeout,
               const std::function<void()>& while_waiting = {});

}  // namespace mnist_train::data
