/// NCCL: communicators, collectives and point-to-point messages. A collective is a kernel that
/// exchanges bytes with the other ranks while it runs.
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <nccl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support/fake_gpu/bfloat16.h"
#include "support/fake_gpu/device.h"
#include "support/fake_gpu/message.h"
#include "support/fake_gpu/settings.h"

namespace mnist_train::fake_gpu {

namespace {

constexpr int kMaxRanks = 16;

/// Header of the memory shared by the ranks; initially zero.
struct SharedHeader {
  struct RankPlace {
    char host[64];
    int device;  // index among the machine's devices
  };

  std::atomic<int> joined;
  std::atomic<int> at_barrier;
  std::atomic<unsigned> barriers;  // barriers that all ranks have passed
  std::array<RankPlace, kMaxRanks> places;
};

/// Shared memory for one part of a message between two ranks; full until the receiver reads it.
struct MessageSlot {
  static constexpr std::size_t kCapacity_bytes = 1 << 20;

  std::atomic<bool> is_full{false};
  std::byte part[kCapacity_bytes];
};

constexpr std::size_t kHeader_bytes = 1 << 16;
constexpr std::size_t kShown_bytes = 16 << 20;  // per rank and exchange
constexpr std::size_t kShared_bytes =
    kHeader_bytes + kMaxRanks * kShown_bytes + sizeof(MessageSlot[kMaxRanks][kMaxRanks]);
static_assert(sizeof(SharedHeader) <= kHeader_bytes);
static_assert(std::atomic<bool>::is_always_lock_free);

std::byte* map_shared(int fd) {
  void* memory =
      ::mmap(nullptr, kShared_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
}

/// The content of a unique id: the shared file, as a descriptor of the process that created it.
struct FilePlace {
  pid_t pid = 0;
  int fd = -1;
};

FilePlace place_in(const ncclUniqueId& id) {
  FilePlace place;
  std::memcpy(&place, id.internal, sizeof place);
  return place;
}

/// Opens the file of `make_unique_id`, in this process or another one; null if it is gone.
std::byte* open_shared(const ncclUniqueId& id) {
  const FilePlace place = place_in(id);
  const std::string path = "/proc/" + std::to_string(place.pid) + "/fd/" + std::to_string(place.fd);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) {
    say("ncclCommInitRank: ", path, ": ", std::strerror(errno),
        "; all ranks must run on one machine");
    return nullptr;
  }
  std::byte* memory = map_shared(fd);
  ::close(fd);
  return memory;
}

/// Closes the file if this process created it. All ranks must have mapped it.
void close_own_file(const ncclUniqueId& id) {
  const FilePlace place = place_in(id);
  if (place.pid == ::getpid()) ::close(place.fd);
}

int physical_device() { return visible_devices().at(static_cast<std::size_t>(current_device())); }

/// Polls another process with increasing pauses.
class Backoff {
 public:
  void pause() {
    constexpr int kShortPauses = 500;
    constexpr useconds_t kShort_us = 20;
    constexpr useconds_t kLong_us = 1000;
    ::usleep(++pauses_ < kShortPauses ? kShort_us : kLong_us);
  }

 private:
  int pauses_ = 0;
};

/// An NCCL communicator between processes on one machine. Its memory is an unnamed file, which the
/// process that creates the unique id keeps open until all ranks have mapped it, so no file is left
/// behind even if they are killed.
///
/// Its operations run on the ranks' streams and wait for the other ranks there, like NCCL's
/// kernels: if a rank is lost, the other ranks' streams wait until those ranks abort.
class Communicator {
 public:
  /// Creates the file and the id that lets other processes find it.
  static ncclResult_t make_unique_id(ncclUniqueId& id) {
    const int fd = ::memfd_create("fake-gpu-nccl", MFD_CLOEXEC);
    if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(kShared_bytes)) != 0) return ncclSystemError;
    const FilePlace place{::getpid(), fd};
    id = {};
    std::memcpy(id.internal, &place, sizeof place);
    return ncclSuccess;
  }

  /// Waits until all ranks have joined. Returns null and sets `result` if they cannot, for example
  /// because two ranks share a device and have the same NCCL_HOSTID.
  static std::shared_ptr<Communicator> join(const ncclUniqueId& id, int rank, int size,
                                            ncclResult_t& result) {
    result = ncclSystemError;
    std::byte* memory = size > kMaxRanks ? nullptr : open_shared(id);
    if (memory == nullptr) return nullptr;
    std::shared_ptr<Communicator> communicator(new Communicator(rank, size, memory));
    SharedHeader& header = communicator->header_;
    SharedHeader::RankPlace& place = header.places.at(static_cast<std::size_t>(rank));
    const char* host = std::getenv("NCCL_HOSTID");
    std::snprintf(place.host, sizeof place.host, "%s", host == nullptr ? "this host" : host);
    place.device = physical_device();
    ++header.joined;
    for (Backoff backoff; header.joined < size;) backoff.pause();
    communicator->barrier();
    close_own_file(id);
    result = communicator->is_on_device_of_another() ? ncclInvalidUsage : ncclSuccess;
    if (result != ncclSuccess) return nullptr;
    say("NCCL: rank ", rank, " of ", size, " on device ", place.device);
    return communicator;
  }

  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  ~Communicator() { ::munmap(memory_, kShared_bytes); }

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Ends all waits; later operations do nothing.
  void abort() { aborted_ = true; }
  bool aborted() const { return aborted_; }

  using UsePart = std::function<void(std::size_t offset, std::size_t bytes)>;
  /// Shows the `bytes` bytes at `from` to all ranks, one part at a time: `use` finds each rank's
  /// part at `shown(rank)`. `from` is null for a rank that has nothing to show. Collective; `bytes`
  /// must be the same on all ranks.
  void exchange(const std::byte* from, std::size_t bytes, const UsePart& use) {
    for (std::size_t offset = 0; offset < bytes; offset += kShown_bytes) {
      const std::size_t part = std::min(kShown_bytes, bytes - offset);
      if (from != nullptr) {
        std::memcpy(const_cast<std::byte*>(shown(rank_)), from + offset, part);
      }
      if (!barrier()) return;
      use(offset, part);
      if (!barrier()) return;
    }
  }
  /// Returns the part that a rank shows; valid within `use` of `exchange`.
  const std::byte* shown(int rank) const {
    return memory_ + kHeader_bytes + static_cast<std::size_t>(rank) * kShown_bytes;
  }

  MessageSlot& slot(int from_rank, int to_rank) {
    using SlotsOfRank = MessageSlot[kMaxRanks];
    std::byte* slots = memory_ + kHeader_bytes + kMaxRanks * kShown_bytes;
    return reinterpret_cast<SlotsOfRank*>(slots)[from_rank][to_rank];
  }

 private:
  Communicator(int rank, int size, std::byte* memory)
      : rank_(rank),
        size_(size),
        memory_(memory),
        header_(*reinterpret_cast<SharedHeader*>(memory)) {}

  /// Waits for all ranks. Returns false if this rank has aborted.
  bool barrier() {
    const unsigned passed = header_.barriers;
    if (++header_.at_barrier == size_) {
      header_.at_barrier = 0;
      ++header_.barriers;
      return !aborted_;
    }
    for (Backoff backoff; header_.barriers == passed && !aborted_;) backoff.pause();
    return !aborted_;
  }

  bool is_on_device_of_another() {
    const auto& own = header_.places.at(static_cast<std::size_t>(rank_));
    for (int other = 0; other < size_; ++other) {
      const auto& place = header_.places.at(static_cast<std::size_t>(other));
      if (other == rank_ || place.device != own.device) continue;
      if (std::strcmp(place.host, own.host) != 0) continue;
      say("NCCL: Duplicate GPU detected: rank ", rank_, " and rank ", other, " both on device ",
          own.device);
      return true;
    }
    return false;
  }

  const int rank_;
  const int size_;
  std::byte* memory_;
  SharedHeader& header_;
  std::atomic<bool> aborted_{false};
};

using Handle = std::shared_ptr<Communicator>;

thread_local const char* last_error = "";

/// Returns a handle's communicator. Even if destroyed, it lives while a stream or graph uses it.
const Handle& communicator_of(ncclComm_t handle) { return *reinterpret_cast<Handle*>(handle); }

/// Launches an NCCL operation as a kernel on the stream.
ncclResult_t launch_nccl(cudaStream_t stream, const char* name, Operation operation) {
  const cudaError_t error = launch_library_kernel(stream, name, std::move(operation));
  return error == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

/// Prints a message and returns ncclInvalidArgument unless both addresses are in device memory,
/// because NCCL would refuse host memory or crash.
ncclResult_t check_buffers(const char* call, const void* from, const void* to) {
  if (device_of(from) >= 0 && device_of(to) >= 0) return ncclSuccess;
  say_misuse(call, "a buffer is not in device memory");
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

/// `Element` is the stored type, and `Sum` the type of the accumulator.
template <class Element, class Sum>
void add_as(std::span<const std::byte* const> inputs, std::byte* output, std::size_t count) {
  const auto element_of = [&](const std::byte* input, std::size_t index) {
    Element element;
    std::memcpy(&element, input + index * sizeof element, sizeof element);
    return static_cast<Sum>(element);
  };
  for (std::size_t i = 0; i < count; ++i) {
    Sum sum = element_of(inputs.front(), i);
    for (const std::byte* input : inputs.subspan(1)) {
      sum = static_cast<Sum>(sum + element_of(input, i));
    }
    const auto result = static_cast<Element>(sum);
    std::memcpy(output + i * sizeof result, &result, sizeof result);
  }
}

/// An element type, and a function that adds up `count` elements of all `inputs`, in order.
struct ElementType {
  ncclDataType_t type;
  std::size_t bytes;
  void (*add)(std::span<const std::byte* const> inputs, std::byte* output, std::size_t count);
};

template <class Element, class Sum = Element>
constexpr ElementType element_type(ncclDataType_t type) {
  return {type, sizeof(Element), &add_as<Element, Sum>};
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
  if (element == nullptr || operation != ncclSum) {
    say_misuse(kCall, "the mock supports only sums of some types");
    return ncclInvalidArgument;
  }
  return launch_nccl(stream, kCall, [=, communicator = communicator_of(handle)] {
    communicator->exchange(readable(from), count * element->bytes,
                           [&](std::size_t offset, std::size_t bytes) {
                             std::vector<const std::byte*> inputs;
                             for (int rank = 0; rank < communicator->size(); ++rank) {
                               inputs.push_back(communicator->shown(rank));
                             }
                             element->add(inputs, writable(to) + offset, bytes / element->bytes);
                           });
  });
}

ncclResult_t ncclBcast(void* buffer, std::size_t count, ncclDataType_t type, int root,
                       ncclComm_t handle, cudaStream_t stream) {
  constexpr const char* kCall = "ncclBcast";
  if (const auto error = check_buffers(kCall, buffer, buffer)) return error;
  const bool is_root = communicator_of(handle)->rank() == root;
  const std::size_t total_bytes = count * bytes_of(type);
  return launch_nccl(stream, kCall, [=, communicator = communicator_of(handle)] {
    communicator->exchange(is_root ? readable(buffer) : nullptr, total_bytes,
                           [&](std::size_t offset, std::size_t bytes) {
                             std::memcpy(writable(buffer) + offset, communicator->shown(root),
                                         bytes);
                           });
  });
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

/// A message that this rank sends or receives. A group has at most one per pair of ranks.
struct Transfer {
  bool sends;
  std::byte* buffer;  // at the mock's address
  std::size_t bytes;
  int peer;
  Handle communicator;
  cudaStream_t stream;
};

/// Transfers the part of a message that begins at `offset`, once the other rank is ready. Returns
/// false if this rank has aborted.
bool move_part(const Transfer& transfer, std::size_t offset) {
  Communicator& communicator = *transfer.communicator;
  const int own = communicator.rank();
  MessageSlot& slot = transfer.sends ? communicator.slot(own, transfer.peer)
                                     : communicator.slot(transfer.peer, own);
  for (Backoff backoff; slot.is_full == transfer.sends; backoff.pause()) {
    if (communicator.aborted()) return false;
  }
  const std::size_t part = std::min(MessageSlot::kCapacity_bytes, transfer.bytes - offset);
  if (transfer.sends) {
    std::memcpy(slot.part, transfer.buffer + offset, part);
  } else {
    std::memcpy(transfer.buffer + offset, slot.part, part);
  }
  slot.is_full = transfer.sends;
  return true;
}

/// Transfers a group's messages, part by part; ranks send their parts before awaiting the others'.
void run_group(const std::vector<Transfer>& transfers) {
  bool moved = true;
  for (std::size_t offset = 0; moved; offset += MessageSlot::kCapacity_bytes) {
    moved = false;
    for (const bool sends : {true, false}) {
      for (const Transfer& transfer : transfers) {
        if (transfer.sends != sends || offset >= transfer.bytes) continue;
        if (!move_part(transfer, offset)) return;
        moved = true;
      }
    }
  }
}

thread_local int group_depth = 0;
thread_local std::vector<Transfer> group;

/// Launches the transfers of the group as one kernel on its first stream.
ncclResult_t launch_group() {
  std::vector<Transfer> transfers;
  transfers.swap(group);
  if (transfers.empty()) return ncclSuccess;
  const cudaStream_t stream = transfers.front().stream;
  return launch_nccl(stream, "ncclSendRecv",
                     [transfers = std::move(transfers)] { run_group(transfers); });
}

ncclResult_t add_transfer(bool sends, const void* buffer, std::size_t bytes, int peer,
                          ncclComm_t handle, cudaStream_t stream) {
  if (const auto error = check_buffers("ncclSend or ncclRecv", buffer, buffer)) return error;
  group.push_back({sends, static_cast<std::byte*>(host_address(buffer)), bytes, peer,
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
  return add_transfer(/*sends=*/true, buffer, count * bytes_of(type), peer, handle, stream);
}

ncclResult_t ncclRecv(void* buffer, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t handle, cudaStream_t stream) {
  return add_transfer(/*sends=*/false, buffer, count * bytes_of(type), peer, handle, stream);
}

}  // extern "C"

}  // namespace mnist_train::fake_gpu
