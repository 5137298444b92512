#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <future>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/system.h"
#include "launch/job.h"
#include "launch/status_board.h"

namespace mnist_train::comm {

/// A rank's input to the rendezvous: its identity, and values to compare or share with other ranks.
struct RendezvousOptions {
  launch::WorkerIdentity identity;
  double timeout_s = 60;
  int listen_fd = -1;               // the bound socket, on rank 0 under our own launcher
  std::string build{};              // version and commit; must be the same on all ranks
  std::string fingerprint{};        // hash of the config; must be the same on all ranks
  std::string backend{};            // "gloo" or "nccl"; must be the same on all ranks
  std::vector<std::string> gpus{};  // PCI addresses of the GPUs that this rank may use
};

/// The result of the rendezvous: the store, and how the ranks share hosts and GPUs.
struct RendezvousResult {
  c10::intrusive_ptr<c10d::Store> store;
  bool one_host = true;        // all ranks share 127.0.0.1 and /dev/shm
  launch::GpuAssignment gpus;  // which of `RendezvousOptions::gpus` each rank uses
};

/// Connects to the run's key-value store (served by rank 0 or torchrun's agent) and waits until
/// every rank has joined. Collective. Throws Error(kDistributed) naming the missing ranks, or the
/// store's address and the cause; throws Error(kConfig) if a rank's build, config, backend or world
/// size differs, or if another process has the same rank. If rank 0 finds such an error as ranks
/// join, it first waits until the others have read it from the store; they throw the same error.
/// With one rank, the store is null.
RendezvousResult rendezvous(const RendezvousOptions& options);

/// Reports to the other ranks that rank 0 cannot start the run; their `rendezvous` throws an Error
/// with this code and a message that ends with `message`. Returns when all ranks have received it
/// or the timeout expires. Called on rank 0 instead of `rendezvous`. Throws Error(kDistributed) if
/// the address is in use or unreachable.
void publish_refusal(const RendezvousOptions& options, ExitCode code, const std::string& message);

enum class BackendKind { kGloo, kNccl };

/// This rank's connection to the others. Methods marked "Collective" must be called by all ranks in
/// the same order. If another rank is gone or does not arrive before the timeout, they throw
/// PeerError, or NCCL's watchdog ends the process. With one rank, they return immediately.
class Communicator {
 public:
  /// Creates a world of one rank.
  Communicator() = default;
  /// Connects the ranks after `rendezvous`. NCCL uses the calling thread's GPU. Collective.
  /// `timeout_s` bounds every later collective until `disable_timeouts`.
  Communicator(const launch::WorkerIdentity& identity, const RendezvousResult& joined,
               BackendKind backend, double timeout_s);

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  bool alone() const { return world_size_ == 1; }
  bool one_host() const { return one_host_; }
  /// Returns whether collectives run on the GPU, which they do with NCCL.
  bool reduces_on_device() const { return backend_ == BackendKind::kNccl; }

  /// Replaces `tensor` with its sum over all ranks. Collective.
  void all_reduce_sum(at::Tensor& tensor) const;
  /// Fills `gathered` [ranks * n, …] with the tensors [n, …] of all ranks, in rank order; both
  /// tensors are contiguous. Requires several ranks. Collective.
  void all_gather(const at::Tensor& local, at::Tensor& gathered) const;
  /// Returns the sum of `number` over all ranks; exact for integers. Collective; with NCCL, also
  /// waits for all earlier GPU work.
  double sum_over_ranks(double number) const;
  /// Replaces `tensor`, which is contiguous and of any type, with rank 0's. Collective.
  void broadcast(at::Tensor& tensor) const;
  /// Returns when all ranks have arrived and, with NCCL, all earlier GPU work is done. Collective.
  void barrier() const { (void)sum_over_ranks(0); }
  /// Sends `local` to the previous rank and returns that of the next (rank + 1 modulo the world
  /// size): `count` rows of the same shape and type. A single rank gets `local` back. Collective.
  at::Tensor receive_from_next(const at::Tensor& local, std::int64_t count) const;
  /// Returns rank 0's string, which may have any size. Collective.
  std::string broadcast_text(const std::string& text);
  /// On rank 0, returns all ranks' strings, which may have any size, in rank order. On other ranks,
  /// returns an empty list without waiting until rank 0 has read their string. Collective.
  std::vector<std::string> gather_text(const std::string& text);

  /// Ends the communication of a successful run, so that ranks may exit in any order: an early exit
  /// would close connections and, on rank 0, the store, which others still need. Rank
  /// 0 returns with a warning if another rank does not leave within ten seconds. Collective.
  void leave();

  /// Checks whether the store still answers, at most once per quarter of the timeout. Training
  /// itself does not need the store, so without this check, a run that has lost it would fail only
  /// at the end. Not collective; call it at every step. Throws PeerError.
  void require_store();

  /// Call it after a collective has failed on this rank because it timed out or, if `timed_out` is
  /// false, because it lost a connection. Reports to the store that this rank is alive, and returns
  /// the ranks that do not report within a second; returns an empty list if no rank timed out or
  /// the store does not answer. Not collective.
  std::vector<int> silent_ranks(bool timed_out) noexcept;

  /// Removes the timeouts of all collectives. The launcher, or a thread of this rank, monitors
  /// waits instead, because timeouts also count the time for which the whole job was suspended.
  void disable_timeouts();

  /// From now on, records in `status` what this rank waits for; `status` must outlive this object.
  void report_to(launch::RankStatus& status) { status_ = &status; }
  /// Returns the status passed to `report_to`, or null.
  launch::RankStatus* status() const { return status_; }

  /// Returns c10d's process group, for c10d::Reducer and the averagers; null with one rank.
  const c10::intrusive_ptr<c10d::ProcessGroup>& process_group() const { return group_; }

 private:
  std::string next_key(const char* what, int rank);

  int rank_ = 0;
  int world_size_ = 1;
  BackendKind backend_ = BackendKind::kGloo;
  bool one_host_ = true;
  double timeout_s_ = 0;
  std::int64_t exchanges_ = 0;  // makes the store's keys unique
  double checked_store_s_ = 0;
  launch::RankStatus* status_ = nullptr;
  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
};

/// Signature of `mnist_train_make_nccl_backend`, exported by the CUDA module.
using MakeNcclBackend = c10::intrusive_ptr<c10d::Backend> (*)(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size, double timeout_s);

/// Sets environment variables of NCCL and c10d's watchdog, unless the user has set them. The flight
/// recorder keeps the latest collectives and writes them to `dump_folder` after a timeout, to show
/// in which collective the ranks first differ. On one host, NCCL's sockets use only loopback.
void set_nccl_defaults(bool one_host, const std::filesystem::path& dump_folder);

// Failures of collectives.

/// Returns whether a GPU or the host (for which LibTorch has no exception type) ran out of memory.
inline bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  const std::string_view text = error.what();
  return dynamic_cast<const c10::Error*>(&error) != nullptr &&
         text.substr(0, text.find('\n')).find("DefaultCPUAllocator: ") != std::string_view::npos;
}

/// Returns whether a backend or the store timed out; the awaited rank may still be alive.
inline bool is_timeout(const std::exception& error) {
  const std::string_view text = error.what();
  return text.find("imed out") != std::string_view::npos ||
         text.find("timeout") != std::string_view::npos;  // from NCCL's watchdog
}

/// Runs a collective. Unless this rank ran out of memory or its GPU failed, an exception from c10d
/// or a backend means that another rank is gone or late; it becomes a PeerError naming `operation`.
template <class Function>
auto translate_failures(const char* operation, Function&& function) {
  try {
    return function();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const bool is_gpu_error = dynamic_cast<const c10::AcceleratorError*>(&error) != nullptr;
    if (is_gpu_error || is_out_of_memory(error)) throw;
    throw PeerError(std::string("lost another rank during ") + operation + ": " +
                    short_message(error));
  }
}

/// A timeout that does not count the time for which this process (or the job) was suspended.
class Deadline {
 public:
  explicit Deadline(double timeout_s) : left_s_(timeout_s) {}

  /// Returns the remaining seconds. Must be called at intervals of about `next_wait()`.
  double left_s() {
    const double now_s = monotonic_seconds();
    left_s_ -= std::min(now_s - polled_at_s_, 2 * kPollInterval_s);
    polled_at_s_ = now_s;
    return left_s_;
  }

  /// Returns the maximum time to wait before the next call to `left_s`.
  std::chrono::milliseconds next_wait() {
    return to_milliseconds(std::clamp(left_s(), 0.001, kPollInterval_s));
  }

 private:
  static constexpr double kPollInterval_s = 0.5;

  double left_s_;
  double polled_at_s_ = monotonic_seconds();
};

/// Runs `work` on its own thread and returns its result or throws its exception. Returns nullopt if
/// the deadline passes first: the thread is then abandoned in a call that cannot be cancelled, so
/// `work` must own everything it uses.
template <class Work>
auto finish_before(Deadline& deadline, Work work) -> std::optional<std::invoke_result_t<Work>> {
  auto task = std::make_shared<std::packaged_task<std::invoke_result_t<Work>()>>(std::move(work));
  auto result = task->get_future();
  start_thread([task] { (*task)(); }).detach();
  while (result.wait_for(deadline.next_wait()) != std::future_status::ready) {
    if (deadline.left_s() <= 0) return std::nullopt;
  }
  return result.get();
}

}  // namespace mnist_train::comm
