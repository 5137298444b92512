#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "comm/rendezvous.h"
#include "launch/status_board.h"

namespace mnist_train::comm {

enum class BackendKind { kGloo, kNccl };

/// This rank's connection to the others. Every method marked "collective" must be called by all
/// ranks in the same order; each throws PeerError when another rank is gone or does not come within
/// the timeout. With one rank there is neither a store nor a process group, and collectives return
/// at once.
class Communicator {
 public:
  /// A world of one.
  Communicator() = default;
  /// Collective. `timeout_s` bounds every later collective.
  Communicator(const RendezvousOptions& options, BackendKind backend, double timeout_s);

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  bool alone() const { return world_size_ == 1; }
  bool one_host() const { return one_host_; }
  /// Whether collectives are launched on the device, as NCCL's are.
  bool reduces_on_device() const { return backend_ == BackendKind::kNccl; }
  double timeout_s() const { return timeout_s_; }

  /// Collective: `tensor` becomes the sum over all ranks, in place.
  void all_reduce_sum(at::Tensor& tensor) const;
  /// Collective: `tensor` becomes rank 0's.
  void broadcast(at::Tensor& tensor) const;
  /// Collective, for ranks that compute on CPUs: returns when all have come.
  void barrier() const;
  /// Collective, for ranks that reduce on their devices, and nothing for others: launches a small
  /// all-reduce behind all that was launched before, under the time-out of every collective.
  void barrier_on_device() const;
  /// Collective: sends `mine` to the previous rank, and gives the tensor that the next one, rank +
  /// 1 modulo their number, sends: `count` rows of the same shape and type. One rank gets its own.
  at::Tensor receive_from_next(const at::Tensor& mine, std::int64_t count) const;
  /// Collective: rank 0's text.
  std::string broadcast_text(const std::string& text);
  /// Collective: on rank 0 every rank's text, by rank; nothing on the others, which do not wait.
  std::vector<std::string> gather_text(const std::string& text);

  /// Collective, the last one of a run that ends well: from here on ranks may exit in any order.
  /// Without it one that leaves early takes connections, and rank 0 the store, away from others
  /// that still read from them.
  void leave();

  /// Not a collective. Looks a few times within the timeout whether the store is still served,
  /// which training itself does not need: without it a run would only fail when it is over. To be
  /// called at every step. Throws PeerError.
  void require_store();

  /// Not a collective; for a rank whose collective was not over in time. Tells the store that it is
  /// there, and gives the ranks that do not tell it within a second: those that the others
  /// waited for. None where the store does not answer.
  std::vector<int> silent_ranks() noexcept;

  /// From now on `status`, which must live as long, says what this rank waits for.
  void report_to(launch::RankStatus& status) { status_ = &status; }
  /// Null: nobody looks.
  launch::RankStatus* status() const { return status_; }

  /// For c10d::Reducer and the averagers; null with one rank.
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

}  // namespace mnist_train::comm
