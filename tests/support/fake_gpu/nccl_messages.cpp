/// NCCL: messages from one rank to another, and groups of them.
#include <algorithm>
#include <cstring>
#include <vector>

#include "support/fake_gpu/message.h"
#include "support/fake_gpu/nccl_communicator.h"
#include "support/fake_gpu/nccl_reduction.h"

namespace mnist_train::fake_gpu {

namespace {

/// A message that this rank sends or receives.
struct Transfer {
  enum class Direction { kSend, kReceive };

  Direction direction;
  std::byte* buffer;  // where the stand-in can reach it
  std::size_t bytes;
  int peer;
  std::shared_ptr<Communicator> communicator;
  cudaStream_t stream;
  std::size_t done = 0;  // bytes

  bool is_finished() const { return done == bytes; }
};

/// Moves the next part of a message, if the other rank is ready for it; returns whether it was.
bool advance(Transfer& transfer) {
  const int own = transfer.communicator->rank();
  if (transfer.direction == Transfer::Direction::kSend) {
    MessageSlot& slot = transfer.communicator->slot(own, transfer.peer);
    if (slot.waiting != 0) return false;
    const std::size_t part = std::min(MessageSlot::kCapacity_bytes, transfer.bytes - transfer.done);
    std::memcpy(slot.part, transfer.buffer + transfer.done, part);
    slot.message = transfer.bytes;
    slot.waiting = part;
    transfer.done += part;
    return true;
  }
  MessageSlot& slot = transfer.communicator->slot(transfer.peer, own);
  if (slot.waiting == 0) return false;
  if (slot.message != transfer.bytes) {
    say_misuse("ncclRecv", "the sizes of the message that was sent and the one received differ");
    transfer.communicator->abort();
    return false;
  }
  std::memcpy(transfer.buffer + transfer.done, slot.part, slot.waiting);
  transfer.done += slot.waiting;
  slot.waiting = 0;
  return true;
}

/// Moves all messages of a group at the same time. Those between the same ranks keep their order.
void run_group(std::vector<Transfer> transfers) {
  Backoff backoff;
  while (!transfers.empty()) {
    bool moved = false;
    for (auto transfer = transfers.begin(); transfer != transfers.end(); ++transfer) {
      if (transfer->communicator->aborted()) return;
      const bool is_first = std::none_of(transfers.begin(), transfer, [&](const Transfer& earlier) {
        return earlier.communicator == transfer->communicator && earlier.peer == transfer->peer &&
               earlier.direction == transfer->direction;
      });
      if (is_first && advance(*transfer)) moved = true;
    }
    std::erase_if(transfers, [](const Transfer& transfer) { return transfer.is_finished(); });
    if (moved) {
      backoff = {};
    } else {
      backoff.pause();
    }
  }
}

thread_local int group_depth = 0;
thread_local std::vector<Transfer> group;

/// Launches what was gathered since the group began, as one kernel of its first stream.
ncclResult_t launch_group() {
  std::vector<Transfer> transfers;
  transfers.swap(group);
  std::erase_if(transfers, [](const Transfer& transfer) { return transfer.is_finished(); });
  if (transfers.empty()) return ncclSuccess;
  const cudaStream_t stream = transfers.front().stream;
  return launch_nccl(stream, "ncclSendRecv",
                     [transfers = std::move(transfers)] { run_group(transfers); });
}

ncclResult_t add_transfer(Transfer::Direction direction, const void* buffer, std::size_t bytes,
                          int peer, ncclComm_t handle, cudaStream_t stream) {
  const char* call = direction == Transfer::Direction::kSend ? "ncclSend" : "ncclRecv";
  if (const auto error = check_buffers(call, buffer, buffer)) return error;
  group.push_back({direction, static_cast<std::byte*>(host_address(buffer)), bytes, peer,
                   communicator_of(handle), stream});
  return group_depth == 0 ? launch_group() : ncclSuccess;
}

}  // namespace

extern "C" {

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() { return --group_depth == 0 ? launch_group() : ncclSuccess; }

ncclResult_t ncclSend(const void* buffer, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t handle, cudaStream_t stream) {
  return add_transfer(Transfer::Direction::kSend, buffer, count * bytes_of(type), peer, handle,
                      stream);
}

ncclResult_t ncclRecv(void* buffer, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t handle, cudaStream_t stream) {
  return add_transfer(Transfer::Direction::kReceive, buffer, count * bytes_of(type), peer, handle,
                      stream);
}

ncclResult_t ncclAlltoAll(const void* from, void* to, std::size_t count, ncclDataType_t type,
                          ncclComm_t handle, cudaStream_t stream) {
  const std::size_t bytes = count * bytes_of(type);
  ncclGroupStart();
  ncclResult_t result = ncclSuccess;
  for (int peer = 0; peer < communicator_of(handle)->size(); ++peer) {
    const std::size_t offset = static_cast<std::size_t>(peer) * bytes;
    const auto* sent = static_cast<const std::byte*>(from) + offset;
    auto* received = static_cast<std::byte*>(to) + offset;
    for (const ncclResult_t one : {ncclSend(sent, count, type, peer, handle, stream),
                                   ncclRecv(received, count, type, peer, handle, stream)}) {
      if (one != ncclSuccess) result = one;
    }
  }
  const ncclResult_t launched = ncclGroupEnd();
  return result == ncclSuccess ? launched : result;
}

}  // extern "C"

}  // namespace mnist_train::fake_gpu
