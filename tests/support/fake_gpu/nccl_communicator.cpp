#include "support/fake_gpu/nccl_communicator.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "support/fake_gpu/device.h"
#include "support/fake_gpu/message.h"
#include "support/fake_gpu/settings.h"

namespace mnist_train::fake_gpu {

/// What the ranks know of each other. It begins as zeros.
struct SharedHeader {
  struct RankPlace {
    char host[64];
    int device;  // among those of the machine
  };

  std::atomic<int> joined;
  std::atomic<int> at_barrier;
  std::atomic<unsigned> barriers;  // that all ranks have passed
  std::array<RankPlace, kMaxRanks> places;
};

namespace {

constexpr std::size_t kHeader_bytes = 1 << 16;
constexpr std::size_t kShown_bytes = 16 << 20;  // of a rank at a time
constexpr std::size_t kShared_bytes =
    kHeader_bytes + kMaxRanks * kShown_bytes + sizeof(MessageSlot[kMaxRanks][kMaxRanks]);
static_assert(sizeof(SharedHeader) <= kHeader_bytes);
static_assert(std::atomic<std::size_t>::is_always_lock_free);

std::byte* map_shared(int fd) {
  void* memory =
      ::mmap(nullptr, kShared_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
}

/// The content of a unique id: the open file of the process that made it.
struct FilePlace {
  pid_t pid = 0;
  int fd = -1;
};

FilePlace place_in(const ncclUniqueId& id) {
  FilePlace place;
  std::memcpy(&place, id.internal, sizeof place);
  return place;
}

/// Opens what `make_unique_id` made, in this process or another one; null if it is gone.
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

/// Closes the file if this process made it. It must not be needed any more.
void close_own_file(const ncclUniqueId& id) {
  const FilePlace place = place_in(id);
  if (place.pid == ::getpid()) ::close(place.fd);
}

int physical_device() { return visible_devices().at(static_cast<std::size_t>(current_device())); }

}  // namespace

void Backoff::pause() {
  constexpr int kShortPauses = 500;
  constexpr useconds_t kShort_us = 20;
  constexpr useconds_t kLong_us = 1000;
  ::usleep(++pauses_ < kShortPauses ? kShort_us : kLong_us);
}

ncclResult_t Communicator::make_unique_id(ncclUniqueId& id) {
  const int fd = ::memfd_create("fake-gpu-nccl", MFD_CLOEXEC);
  if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(kShared_bytes)) != 0) return ncclSystemError;
  const FilePlace place{::getpid(), fd};
  id = {};
  std::memcpy(id.internal, &place, sizeof place);
  return ncclSuccess;
}

std::shared_ptr<Communicator> Communicator::join(const ncclUniqueId& id, int rank, int size,
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

Communicator::Communicator(int rank, int size, std::byte* memory)
    : rank_(rank),
      size_(size),
      memory_(memory),
      header_(*reinterpret_cast<SharedHeader*>(memory)) {}

Communicator::~Communicator() { ::munmap(memory_, kShared_bytes); }

bool Communicator::barrier() {
  const unsigned passed = header_.barriers;
  if (++header_.at_barrier == size_) {
    header_.at_barrier = 0;
    ++header_.barriers;
    return !aborted_;
  }
  for (Backoff backoff; header_.barriers == passed && !aborted_;) backoff.pause();
  return !aborted_;
}

void Communicator::exchange(const std::byte* from, std::size_t bytes, const UsePart& use) {
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

const std::byte* Communicator::shown(int rank) const {
  return memory_ + kHeader_bytes + static_cast<std::size_t>(rank) * kShown_bytes;
}

MessageSlot& Communicator::slot(int from_rank, int to_rank) {
  using SlotsOfRank = MessageSlot[kMaxRanks];
  auto* slots = reinterpret_cast<SlotsOfRank*>(memory_ + kHeader_bytes + kMaxRanks * kShown_bytes);
  return slots[from_rank][to_rank];
}

bool Communicator::is_on_device_of_another() {
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

}  // namespace mnist_train::fake_gpu
