#include "data/shared_dataset.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/system.h"
#include "data/dataset_reader.h"

namespace mnist_train::data {

// What is described of them as it is; places of samples come on top.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ImageSet, count, channels, height, width, classes, source)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Dataset, hash, class_names, skipped, train_parts)

namespace {

constexpr std::array<char, 8> kMagic{'m', 't', 'd', 'a', 't', 'a', '0', '2'};
constexpr std::size_t kHeaderBytes = 16384;  // samples begin on a page of any size up to this
constexpr int kSeals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

/// What stands at the beginning of the memory. All that is known of the samples stands behind them,
/// as CBOR.
struct SharedHeader {
  std::array<char, 8> magic;
  std::uint64_t bytes;               // of the whole memory
  std::uint64_t description_offset;  // from the beginning of the memory, as all offsets
};

constexpr const char* kMemory = "the shared samples";

nlohmann::json describe(const ImageSet& set, const std::uint8_t* memory) {
  nlohmann::json description = set;
  if (set.count == 0) return description;
  description["images"] = set.images.data() - memory;
  description["labels"] = set.labels.data() - memory;
  return description;
}

std::vector<std::uint8_t> describe(const Dataset& dataset, const std::uint8_t* memory) {
  nlohmann::json description = dataset;
  description["train"] = describe(dataset.train, memory);
  description["validation"] = describe(dataset.validation, memory);
  description["test"] = describe(dataset.test, memory);
  return nlohmann::json::to_cbor(description);
}

/// A process that is just being started still has the launcher's mapping, between fork and exec,
/// and as long as somebody could write the memory cannot be sealed.
void seal(int fd) {
  constexpr double kPatience_s = 10;
  const double begin_s = monotonic_seconds();
  while (::fcntl(fd, F_ADD_SEALS, kSeals) != 0) {
    if (errno != EBUSY || monotonic_seconds() - begin_s > kPatience_s)
      throw_errno("seal the memory of the samples");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

/// Reads the data set into the memory, which nobody can change afterwards.
void fill(int fd, DatasetReader& reader) {
  reader.require_memory();
  const std::size_t end = kHeaderBytes + reader.bytes();
  if (::ftruncate(fd, static_cast<off_t>(end)) != 0) throw_errno("size the memory of the samples");
  {
    const auto memory = map_shared(fd, end, PROT_READ | PROT_WRITE, kMemory);
    const std::span<std::uint8_t> samples(memory.get() + kHeaderBytes, end - kHeaderBytes);
    const auto description = describe(reader.read_into(samples, memory), memory.get());
    if (::lseek(fd, static_cast<off_t>(end), SEEK_SET) < 0 ||
        !write_all(fd, description.data(), description.size())) {
      throw_errno("write to the memory of the samples");
    }
    const SharedHeader header{kMagic, end + description.size(), end};
    std::memcpy(memory.get(), &header, sizeof header);
  }
  seal(fd);
}

void wait_until_ready(int ready_fd, std::chrono::milliseconds timeout,
                      const std::function<void()>& while_waiting) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd ready{ready_fd, POLLIN, 0};
    const int count =
        ::poll(&ready, 1, static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1000)));
    if (count < 0 && errno != EINTR) throw_errno("wait for the launcher's samples");
    // The byte stays in the pipe: every worker sees it, also after the launcher has ended.
    if (count > 0 && (ready.revents & POLLIN) != 0) return;
    if (count > 0) throw PeerError("the launcher ended before the samples were read");
    if (while_waiting) while_waiting();
    if (left.count() <= 0) {
      throw PeerError("the launcher did not have the samples ready within " +
                      std::to_string(timeout.count()) + " ms");
    }
  }
}

[[noreturn]] void throw_malformed(const char* what) {
  throw Error(ExitCode::kRunFailed,
              std::string("shared samples: the memory handed over by the launcher ") + what);
}

/// Whether `size` bytes at `offset` lie behind the header and within the memory.
bool lies_inside(std::uint64_t offset, std::uint64_t size, std::uint64_t bytes) {
  return offset >= kHeaderBytes && offset <= bytes && size <= bytes - offset;
}

ImageSet restore(const nlohmann::json& description,
                 const std::shared_ptr<const std::uint8_t>& memory, std::uint64_t bytes) {
  auto set = description.get<ImageSet>();
  if (set.count == 0) return set;
  std::int64_t size = 1;
  for (const std::int64_t factor : {set.count, set.channels, set.height, set.width}) {
    if (factor < 1 || __builtin_mul_overflow(size, factor, &size)) {
      throw_malformed("has an impossible shape");
    }
  }
  const auto span = [&](const char* key, std::int64_t length) -> std::span<const std::uint8_t> {
    const auto offset = description.at(key).get<std::uint64_t>();
    if (!lies_inside(offset, static_cast<std::uint64_t>(length), bytes)) {
      throw_malformed("is too small for its samples");
    }
    return {memory.get() + offset, static_cast<std::size_t>(length)};
  };
  set.images = span("images", size);
  set.labels = span("labels", set.count);
  set.owner = memory;
  return set;
}

Dataset restore(const std::shared_ptr<const std::uint8_t>& memory, std::size_t bytes) {
  SharedHeader header{};
  std::memcpy(&header, memory.get(), sizeof header);
  if (header.magic != kMagic || header.bytes != bytes) {
    throw_malformed("was written by another program");
  }
  if (!lies_inside(header.description_offset, 1, bytes)) throw_malformed("has no description");
  const auto description =
      nlohmann::json::from_cbor(memory.get() + header.description_offset, memory.get() + bytes);
  auto dataset = description.get<Dataset>();
  dataset.train = restore(description.at("train"), memory, bytes);
  dataset.validation = restore(description.at("validation"), memory, bytes);
  dataset.test = restore(description.at("test"), memory, bytes);
  return dataset;
}

}  // namespace

SharedDataset::SharedDataset()
    : memory_fd_(::memfd_create("mnist-train-samples", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
  std::array<int, 2> ends{};
  if (!memory_fd_.valid() || ::pipe2(ends.data(), O_CLOEXEC) != 0)
    throw_errno("make memory for the samples");
  ready_read_fd_ = UniqueFd(ends[0]);
  ready_write_fd_ = UniqueFd(ends[1]);
}

SharedDataset::~SharedDataset() {
  cancelled_ = true;
  if (thread_.joinable()) thread_.join();
}

void SharedDataset::publish(const settings::DataOptions& options, std::int64_t seed,
                            Splits splits) {
  if (thread_.joinable() || !ready_write_fd_.valid()) {
    throw std::logic_error("SharedDataset::publish: called twice");
  }
  thread_ = start_thread([this, options, seed, splits] { run(options, seed, splits); });
}

void SharedDataset::wait() {
  if (thread_.joinable()) thread_.join();
  if (failure_) std::rethrow_exception(failure_);
}

void SharedDataset::run(const settings::DataOptions& options, std::int64_t seed, Splits splits) {
  try {
    DatasetReader reader(options, seed, splits, &cancelled_);
    fill(memory_fd_.get(), reader);
    const char ready = 1;
    if (!write_all(ready_write_fd_.get(), &ready, 1))
      throw_errno("tell the workers that samples are ready");
  } catch (...) {
    failure_ = std::current_exception();
  }
  ready_write_fd_.reset();
}

Dataset attach(const SharedDatasetHandle& handle, std::chrono::milliseconds timeout,
               const std::function<void()>& while_waiting) {
  const UniqueFd memory_fd(handle.memory_fd);
  const UniqueFd ready_fd(handle.ready_fd);
  wait_until_ready(ready_fd.get(), timeout, while_waiting);
  struct stat status {};
  if (::fstat(memory_fd.get(), &status) != 0) throw_errno("examine the memory of the samples");
  const auto bytes = static_cast<std::size_t>(status.st_size);
  // Without the seals it could shrink under our feet, and reading it would kill the process.
  const int seals = ::fcntl(memory_fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) throw_malformed("is not sealed");
  if (bytes < kHeaderBytes) throw_malformed("has no header");
  try {
    return restore(map_shared(memory_fd.get(), bytes, PROT_READ, kMemory), bytes);
  } catch (const nlohmann::json::exception&) {
    throw_malformed("has a broken description");
  }
}

}  // namespace mnist_train::data
