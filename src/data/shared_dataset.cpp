#include "data/shared_dataset.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/system.h"

namespace mnist_train::data {

namespace {

constexpr std::array<char, 8> kMagic{'m', 't', 'd', 'a', 't', 'a', '0', '1'};
constexpr std::size_t kHeaderBytes = 16384;  // samples begin on a page of any size up to this
constexpr std::size_t kMaxSource = 4096;     // PATH_MAX
constexpr int kSeals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

struct SharedSplit {
  std::int64_t count;
  std::int64_t channels;
  std::int64_t height;
  std::int64_t width;
  std::int64_t classes;
  std::uint64_t images_offset;  // from the beginning of the memory
  std::uint64_t labels_offset;
  std::array<char, kMaxSource> source;  // ended by a zero
};

/// What stands at the beginning of the memory.
struct SharedHeader {
  std::array<char, 8> magic;
  std::uint64_t bytes;  // header and samples
  std::array<char, 64> hash;
  SharedSplit train;
  SharedSplit validation;
  SharedSplit test;
  std::uint64_t notes_bytes;  // what else there is to know, as CBOR, behind the samples
};
static_assert(sizeof(SharedHeader) <= kHeaderBytes);

[[noreturn]] void throw_errno(const char* action) {
  throw Error(ExitCode::kRunFailed,
              std::string("shared samples: cannot ") + action + ": " + std::strerror(errno));
}

/// Maps the whole memory; unmapped with the last copy of the pointer.
std::shared_ptr<std::uint8_t> map_shared(int fd, std::size_t bytes, int protection) {
  void* memory = ::mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) throw_errno("map the memory");
  return {static_cast<std::uint8_t*>(memory), [bytes](std::uint8_t* p) { ::munmap(p, bytes); }};
}

template <std::size_t N>
std::array<char, N> fixed_text(const std::string& text) {
  std::array<char, N> result{};
  text.copy(result.data(), N - 1);
  return result;
}

template <std::size_t N>
std::string text_of(const std::array<char, N>& fixed) {
  return {fixed.begin(), std::find(fixed.begin(), fixed.end(), '\0')};
}

SharedSplit describe(const ImageSet& set, const std::uint8_t* memory) {
  if (set.count == 0) return {};
  return {set.count,
          set.channels,
          set.height,
          set.width,
          set.classes,
          static_cast<std::uint64_t>(set.images.data() - memory),
          static_cast<std::uint64_t>(set.labels.data() - memory),
          fixed_text<kMaxSource>(set.source)};
}

std::vector<std::uint8_t> notes_of(const Dataset& dataset) {
  return nlohmann::json::to_cbor({{"class_names", dataset.class_names},
                                  {"skipped", dataset.skipped},
                                  {"train_parts", dataset.train_parts}});
}

/// Reads the data set into the memory, which nobody can change afterwards.
void fill(int fd, DatasetReader& reader) {
  std::size_t bytes = kHeaderBytes + reader.bytes();
  if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) throw_errno("size the memory");
  {
    const auto memory = map_shared(fd, bytes, PROT_READ | PROT_WRITE);
    const std::span<std::uint8_t> samples(memory.get() + kHeaderBytes, bytes - kHeaderBytes);
    const Dataset dataset = reader.read_into(samples, memory);
    const std::vector<std::uint8_t> notes = notes_of(dataset);
    if (::lseek(fd, static_cast<off_t>(bytes), SEEK_SET) < 0 ||
        !write_all(fd, notes.data(), notes.size())) {
      throw_errno("write to the memory");
    }
    bytes += notes.size();
    const auto header = std::make_unique<SharedHeader>(SharedHeader{
        kMagic, bytes, fixed_text<64>(dataset.hash), describe(dataset.train, memory.get()),
        describe(dataset.validation, memory.get()), describe(dataset.test, memory.get()),
        notes.size()});
    std::memcpy(memory.get(), header.get(), sizeof(SharedHeader));
  }
  if (::fcntl(fd, F_ADD_SEALS, kSeals) != 0) throw_errno("seal the memory");
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
    if (count < 0 && errno != EINTR) throw_errno("wait for the launcher");
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

ImageSet restore(const SharedSplit& half, const std::shared_ptr<const std::uint8_t>& memory,
                 std::uint64_t bytes) {
  if (half.count == 0) return {};
  std::int64_t size = half.count;
  for (const std::int64_t factor : {half.count, half.channels, half.height, half.width}) {
    if (factor < 1) throw_malformed("has an impossible shape");
  }
  for (const std::int64_t factor : {half.channels, half.height, half.width}) {
    if (__builtin_mul_overflow(size, factor, &size)) throw_malformed("has an impossible shape");
  }
  const auto image_bytes = static_cast<std::uint64_t>(size);
  const auto label_bytes = static_cast<std::uint64_t>(half.count);
  if (!lies_inside(half.images_offset, image_bytes, bytes) ||
      !lies_inside(half.labels_offset, label_bytes, bytes)) {
    throw_malformed("is too small for its samples");
  }
  ImageSet set{half.count, half.channels, half.height,         half.width, half.classes, {},
               {},         memory,        text_of(half.source)};
  set.images = {memory.get() + half.images_offset, static_cast<std::size_t>(image_bytes)};
  set.labels = {memory.get() + half.labels_offset, static_cast<std::size_t>(label_bytes)};
  return set;
}

}  // namespace

SharedDataset::SharedDataset()
    : memory_fd_(::memfd_create("mnist-train-samples", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
  std::array<int, 2> ends{};
  if (!memory_fd_.valid() || ::pipe2(ends.data(), O_CLOEXEC) != 0) throw_errno("be set up");
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
    if (!write_all(ready_write_fd_.get(), &ready, 1)) throw_errno("tell the workers");
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
  if (::fstat(memory_fd.get(), &status) != 0) throw_errno("examine the memory");
  const auto bytes = static_cast<std::size_t>(status.st_size);
  // Without the seals it could shrink under our feet, and reading it would kill the process.
  const int seals = ::fcntl(memory_fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) throw_malformed("is not sealed");
  if (bytes < kHeaderBytes) throw_malformed("has no header");
  const std::shared_ptr<const std::uint8_t> memory = map_shared(memory_fd.get(), bytes, PROT_READ);
  const auto header = std::make_unique<SharedHeader>();
  std::memcpy(header.get(), memory.get(), sizeof(SharedHeader));
  if (header->magic != kMagic || header->bytes != bytes) {
    throw_malformed("was written by another program");
  }
  Dataset dataset{restore(header->train, memory, bytes), restore(header->validation, memory, bytes),
                  restore(header->test, memory, bytes), text_of(header->hash)};
  if (!lies_inside(bytes - header->notes_bytes, header->notes_bytes, bytes)) {
    throw_malformed("is too small for its notes");
  }
  const auto notes =
      nlohmann::json::from_cbor(memory.get() + bytes - header->notes_bytes, memory.get() + bytes);
  notes.at("class_names").get_to(dataset.class_names);
  notes.at("skipped").get_to(dataset.skipped);
  notes.at("train_parts").get_to(dataset.train_parts);
  return dataset;
}

}  // namespace mnist_train::data
