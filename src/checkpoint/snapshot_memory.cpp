#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <span>

#include "accelerator/device.h"
#include "base/system.h"
#include "checkpoint/checkpoint.h"

namespace mnist_train::checkpoint {

namespace {

constexpr int kSlots = 3;
constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kMaxFactsBytes = std::size_t{1} << 20U;

constexpr const char* kMemory = "the snapshot memory";

std::size_t whole_pages(std::size_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

/// Calls `visit` with each tensor and its offset in a slot. A slot begins with the facts; the
/// tensors follow, aligned to cache lines. Returns the size of a slot.
template <class Visit>
std::size_t lay_out(const StateTensors& state, const Visit& visit) {
  std::size_t offset = kMaxFactsBytes;
  for (const auto* tensors : {&state.flat, &state.buffers}) {
    for (const at::Tensor& tensor : *tensors) {
      visit(tensor, offset, /*is_flat=*/tensors == &state.flat);
      offset += cache_aligned(tensor.nbytes());
    }
  }
  return whole_pages(offset);
}

}  // namespace

struct alignas(64) SnapshotMemory::Plan {
  // A rank may read the plan for one moment when rank 0 has already written that for the next.
  std::atomic<std::int64_t> moments[2];
};

struct alignas(64) SnapshotMemory::Seal {
  std::atomic<std::int64_t> step;          // 0: not completely written
  std::atomic<std::uint64_t> facts_bytes;  // only rank 0's is read, as with is_checkpoint
  std::atomic<bool> is_checkpoint;
};

SnapshotMemory::SnapshotMemory(int fd, const train::Trainer& trainer,
                               const comm::Communicator& communicator)
    : fd_(fd),
      rank_(communicator.rank()),
      world_size_(communicator.world_size()),
      head_bytes_(whole_pages(sizeof(Plan) +
                              sizeof(Seal) * kSlots * static_cast<std::size_t>(world_size_))),
      slot_bytes_(lay_out(state_tensors(trainer), [](const auto&...) {})) {
  const std::size_t bytes = head_bytes_ + kSlots * slot_bytes_;
  struct stat file {};
  if (::fstat(fd_, &file) != 0) throw_errno(std::string("find ") + kMemory);
  const bool is_new = static_cast<std::size_t>(file.st_size) != bytes;
  if (rank_ == 0 && is_new &&
      (::ftruncate(fd_, 0) != 0 || ::ftruncate(fd_, static_cast<off_t>(bytes)) != 0)) {
    throw_errno(std::string("reserve ") + kMemory);
  }
  communicator.barrier();
  head_ = map_shared(fd_, head_bytes_, PROT_READ | PROT_WRITE, kMemory);
  plan_ = reinterpret_cast<Plan*>(head_.get());
  for (const std::int64_t step : steps()) {
    newest_slot_ = slot_of(step);
    if (is_checkpoint(step)) checkpoint_slot_ = newest_slot_;
  }
  communicator.barrier();
}

SnapshotMemory::Seal& SnapshotMemory::seal(int slot, int rank) const {
  return reinterpret_cast<Seal*>(plan_ + 1)[slot * world_size_ + rank];
}

/// Returns the step with which all ranks have sealed the slot; 0 if they have not.
std::int64_t SnapshotMemory::step_in(int slot) const {
  const std::int64_t step = seal(slot, 0).step;
  for (int rank = 1; rank < world_size_; ++rank) {
    if (seal(slot, rank).step != step) return 0;
  }
  return step;
}

int SnapshotMemory::slot_of(std::int64_t step) const {
  int slot = 0;
  while (slot < kSlots && step_in(slot) != step) ++slot;
  return slot;
}

std::vector<std::int64_t> SnapshotMemory::steps() const {
  std::vector<std::int64_t> steps;
  for (int slot = 0; slot < kSlots; ++slot) {
    if (step_in(slot) > 0) steps.push_back(step_in(slot));
  }
  std::ranges::sort(steps);
  return steps;
}

bool SnapshotMemory::is_checkpoint(std::int64_t step) const {
  return seal(slot_of(step), 0).is_checkpoint;
}

void SnapshotMemory::plan(std::int64_t moment) { plan_->moments[moment % 2] = moment; }

bool SnapshotMemory::is_planned(std::int64_t moment) const {
  return plan_->moments[moment % 2] == moment;
}

void SnapshotMemory::take(const train::Trainer& trainer, const LogPositions& positions,
                          bool is_checkpoint) {
  const at::NoGradGuard no_grad;
  int slot = 0;
  while (slot == newest_slot_ || slot == checkpoint_slot_) ++slot;
  newest_slot_ = slot;
  if (is_checkpoint) checkpoint_slot_ = slot;
  Seal& local_seal = seal(slot, rank_);
  local_seal.step = 0;
  local_seal.is_checkpoint = is_checkpoint;
  const auto write = [&](const void* bytes, std::size_t size, std::size_t offset) {
    if (!write_all(fd_, bytes, size, static_cast<off_t>(begin_of(slot) + offset))) {
      throw_errno(std::string("write to ") + kMemory);
    }
  };
  if (rank_ == 0) {
    // MessagePack, because writing thousands of epochs' accuracies as text would take too long.
    const std::vector<std::uint8_t> bytes =
        nlohmann::json::to_msgpack({{"progress", progress_to_json(trainer.progress())},
                                    {"metrics_bytes", positions.metrics_bytes},
                                    {"event_bytes", positions.event_bytes}});
    if (bytes.size() > kMaxFactsBytes) return;  // no seal: the run continues without this snapshot
    write(bytes.data(), bytes.size(), 0);
    local_seal.facts_bytes = bytes.size();
  }
  // Each rank writes its share of each flat tensor; rank 0 also writes all buffers.
  lay_out(state_tensors(trainer), [&](const at::Tensor& tensor, std::size_t offset, bool is_flat) {
    if (!is_flat && rank_ != 0) return;
    const at::Tensor bytes = tensor.contiguous().view(-1).view(at::kByte);
    const std::int64_t begin = is_flat ? bytes.numel() * rank_ / world_size_ : 0;
    const std::int64_t end = is_flat ? bytes.numel() * (rank_ + 1) / world_size_ : bytes.numel();
    const at::Tensor share = accelerator::to_host(bytes.slice(0, begin, end));
    write(share.data_ptr(), share.nbytes(), offset + static_cast<std::size_t>(begin));
  });
  local_seal.step = trainer.progress().step;
}

LogPositions SnapshotMemory::restore(train::Trainer& trainer, std::int64_t step) const {
  const int slot = slot_of(step);
  const auto mapped = map_shared(fd_, slot_bytes_, PROT_READ, kMemory, begin_of(slot));
  const std::span<const std::uint8_t> packed(mapped.get(), seal(slot, 0).facts_bytes);
  const auto facts = nlohmann::json::from_msgpack(packed);
  const at::NoGradGuard no_grad;
  lay_out(state_tensors(trainer), [&](const at::Tensor& tensor, std::size_t offset, bool) {
    tensor.copy_(at::from_blob(mapped.get() + offset, tensor.sizes(), tensor.scalar_type()));
  });
  trainer.progress() = progress_from_json(facts.at("progress"));
  trainer.optimizer().restored(trainer.progress().step);
  return {facts.at("metrics_bytes"), facts.at("event_bytes")};
}

}  // namespace mnist_train::checkpoint
