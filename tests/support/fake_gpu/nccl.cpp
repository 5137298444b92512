/// NCCL: communicators, collectives, and messages from one rank to another. A collective is a
/// kernel that exchanges bytes with the other ranks while it runs.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "support/fake_gpu/bfloat16.h"
#include "support/fake_gpu/message.h"
#include "support/fake_gpu/nccl_communicator.h"

namespace mnist_train::fake_gpu {

namespace {

using Handle = std::shared_ptr<Communicator>;

thread_local const char* last_error = "";

/// Returns the communicator behind a handle of the program. Work of a stream or of a graph keeps it
/// alive after the program has destroyed it.
const Handle& communicator_of(ncclComm_t handle) { return *reinterpret_cast<Handle*>(handle); }

/// Launches an operation of NCCL's as a kernel of the stream.
ncclResult_t launch_nccl(cudaStream_t stream, const char* name, Operation operation) {
  const cudaError_t error = launch_library_kernel(stream, name, std::move(operation));
  return error == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

/// Returns ncclInvalidArgument, and says so, unless both addresses are of a device's memory, as an
/// all-reduce of the host's memory would be refused or crash.
ncclResult_t check_buffers(const char* call, const void* from, const void* to) {
  if (device_of(from) >= 0 && device_of(to) >= 0) return ncclSuccess;
  say_misuse(call, "a buffer is not memory of a device");
  return ncclInvalidArgument;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  constexpr std::array kTexts{"no error",
                              "unhandled cuda error",
                              "unhandled system error",
                              "internal error",
                              "invalid argument",
                              "invalid usage",
                              "remote process exited or there was a network error"};
  const auto index = static_cast<std::size_t>(result);
  return index < kTexts.size() ? kTexts.at(index) : "unknown result code";
}

const char* ncclGetLastError(ncclComm_t) { return last_error; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) { return Communicator::make_unique_id(*id); }

ncclResult_t ncclCommInitRankConfig(ncclComm_t* handle, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t*) {
  if (check_unsafe_call("ncclCommInitRank") != cudaSuccess) return ncclUnhandledCudaError;
  ncclResult_t result = ncclSuccess;
  Handle communicator = Communicator::join(id, rank, size, result);
  if (result == ncclInvalidUsage) last_error = "Duplicate GPU detected";
  if (communicator == nullptr) return result;
  *handle = reinterpret_cast<ncclComm_t>(new Handle(std::move(communicator)));
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  delete reinterpret_cast<Handle*>(handle);
  return ncclSuccess;
}

/// Ends all waits for other ranks on the streams of this process.
ncclResult_t ncclCommAbort(ncclComm_t handle) {
  say("NCCL: abort of rank ", communicator_of(handle)->rank());
  communicator_of(handle)->abort();
  return ncclCommDestroy(handle);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) {
  *error = ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t handle, int* size) {
  *size = communicator_of(handle)->size();
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t handle, int* rank) {
  *rank = communicator_of(handle)->rank();
  return ncclSuccess;
}

}  // extern "C"

namespace {

/// `Element` is the stored type, `Sum` the type of the computation.
template <class Element, class Sum>
void reduce_as(std::span<const std::byte* const> inputs, std::byte* output, std::size_t count,
               ncclRedOp_t operation) {
  const auto element_of = [&](const std::byte* input, std::size_t index) {
    Element element;
    std::memcpy(&element, input + index * sizeof element, sizeof element);
    return static_cast<Sum>(element);
  };
  for (std::size_t i = 0; i < count; ++i) {
    Sum sum = element_of(inputs.front(), i);
    for (const std::byte* input : inputs.subspan(1)) {
      const Sum value = element_of(input, i);
      if (operation == ncclMax) {
        sum = std::max(sum, value);
      } else if (operation == ncclMin) {
        sum = std::min(sum, value);
      } else {
        sum = static_cast<Sum>(sum + value);
      }
    }
    if (operation == ncclAvg) sum = static_cast<Sum>(sum / static_cast<Sum>(inputs.size()));
    const auto result = static_cast<Element>(sum);
    std::memcpy(output + i * sizeof result, &result, sizeof result);
  }
}

/// A type of elements, and the function that combines `count` elements of each of `inputs` into
/// `output`, in the order of the inputs.
struct ElementType {
  ncclDataType_t type;
  std::size_t bytes;
  void (*reduce)(std::span<const std::byte* const> inputs, std::byte* output, std::size_t count,
                 ncclRedOp_t operation);
};

template <class Element, class Sum = Element>
constexpr ElementType element_type(ncclDataType_t type) {
  return {type, sizeof(Element), &reduce_as<Element, Sum>};
}

constexpr std::array kElementTypes{
    element_type<float>(ncclFloat32),           element_type<double>(ncclFloat64),
    element_type<_Float16, float>(ncclFloat16), element_type<BFloat16, float>(ncclBfloat16),
    element_type<std::int8_t>(ncclInt8),        element_type<std::uint8_t>(ncclUint8),
    element_type<std::int32_t>(ncclInt32),      element_type<std::uint32_t>(ncclUint32),
    element_type<std::int64_t>(ncclInt64),      element_type<std::uint64_t>(ncclUint64)};

/// Returns null for a type that the mock cannot send.
const ElementType* find_type(ncclDataType_t type) {
  const auto found = std::ranges::find(kElementTypes, type, &ElementType::type);
  return found == kElementTypes.end() ? nullptr : &*found;
}

/// Returns the size of an element in bytes; 0 for a type that the mock cannot send.
std::size_t bytes_of(ncclDataType_t type) {
  const ElementType* found = find_type(type);
  return found == nullptr ? 0 : found->bytes;
}

const std::byte* readable(const void* address) {
  return static_cast<const std::byte*>(host_address(address));
}

std::byte* writable(void* address) { return static_cast<std::byte*>(host_address(address)); }

}  // namespace

extern "C" {

ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t operation, ncclComm_t handle, cudaStream_t stream) {
  constexpr const char* kCall = "ncclAllReduce";
  if (const auto error = check_buffers(kCall, from, to)) return error;
  const ElementType* element = find_type(type);
  if (element == nullptr || (operation != ncclSum && operation != ncclMax && operation != ncclMin &&
                             operation != ncclAvg)) {
    say_misuse(kCall, "the mock cannot reduce this type, or not in this way");
    return ncclInvalidArgument;
  }
  return launch_nccl(stream, kCall, [=, communicator = communicator_of(handle)] {
    communicator->exchange(
        readable(from), count * element->bytes, [&](std::size_t offset, std::size_t bytes) {
          std::vector<const std::byte*> inputs;
          for (int rank = 0; rank < communicator->size(); ++rank) {
            inputs.push_back(communicator->shown(rank));
          }
          element->reduce(inputs, writable(to) + offset, bytes / element->bytes, operation);
        });
  });
}

ncclResult_t ncclBroadcast(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           int root, ncclComm_t handle, cudaStream_t stream) {
  constexpr const char* kCall = "ncclBroadcast";
  const bool is_root = communicator_of(handle)->rank() == root;
  if (const auto error = check_buffers(kCall, is_root ? from : to, to)) return error;
  const std::size_t total_bytes = count * bytes_of(type);
  return launch_nccl(stream, kCall, [=, communicator = communicator_of(handle)] {
    communicator->exchange(is_root ? readable(from) : nullptr, total_bytes,
                           [&](std::size_t offset, std::size_t bytes) {
                             std::memcpy(writable(to) + offset, communicator->shown(root), bytes);
                           });
  });
}

ncclResult_t ncclBcast(void* buffer, std::size_t count, ncclDataType_t type, int root,
                       ncclComm_t handle, cudaStream_t stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, handle, stream);
}

ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           ncclComm_t handle, cudaStream_t stream) {
  constexpr const char* kCall = "ncclAllGather";
  if (const auto error = check_buffers(kCall, from, to)) return error;
  const std::size_t bytes_per_rank = count * bytes_of(type);
  return launch_nccl(stream, kCall, [=, communicator = communicator_of(handle)] {
    communicator->exchange(
        readable(from), bytes_per_rank, [&](std::size_t offset, std::size_t bytes) {
          for (int rank = 0; rank < communicator->size(); ++rank) {
            std::byte* place = writable(to) + static_cast<std::size_t>(rank) * bytes_per_rank;
            std::memcpy(place + offset, communicator->shown(rank), bytes);
          }
        });
  });
}

}  // extern "C"

namespace {

/// A message that this rank sends or receives.
struct Transfer {
  enum class Direction { kSend, kReceive };

  Direction direction;
  std::byte* buffer;  // where the mock can reach it
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

/// Launches the transfers of the group as one kernel of its first stream.
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

}  // extern "C"

}  // namespace mnist_train::fake_gpu
