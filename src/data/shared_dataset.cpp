#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/system.h"
#include "data/dataset.h"

namespace mnist_train::data {

// Members that are serialised unchanged; `describe` adds the splits and their samples' offsets.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ImageSet, count, channels, height, width, classes, source, paths)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LeftOut, files, folders, duplicates, limit_train, limit_test,
                                   unusable, added)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Dataset, hash, files_hash, class_names, skipped, train_parts,
                                   left_out, notes)

namespace {

constexpr const char* kMemory = "the shared samples";

std::string describe(const Dataset& dataset, const std::uint8_t* memory) {
  nlohmann::json description = dataset;
  for (const auto& [key, member] : kSplits) {
    const ImageSet& set = dataset.*member;
    nlohmann::json& split = description[key] = set;
    if (set.count == 0) continue;
    split["images"] = set.images.data() - memory;
    split["labels"] = reinterpret_cast<const std::uint8_t*>(set.labels.data()) - memory;
  }
  std::string text;
  nlohmann::json::to_cbor(description, text);
  return text;
}

/// Reads the data set into the shared memory: the samples, their description as CBOR, and the
/// description's offset, a uint64.
void fill(int fd, DatasetReader& reader) {
  reader.require_memory();
  const std::uint64_t end = reader.bytes();
  if (::ftruncate(fd, static_cast<off_t>(end)) != 0) {
    throw_errno("resize the memory of the samples");
  }
  const auto memory = map_shared(fd, end, PROT_READ | PROT_WRITE, kMemory);
  std::string description = describe(reader.read_into({memory.get(), end}, memory), memory.get());
  description.append(reinterpret_cast<const char*>(&end), sizeof end);
  if (::lseek(fd, static_cast<off_t>(end), SEEK_SET) < 0 ||
      !write_all(fd, description.data(), description.size())) {
    throw_errno("write to the memory of the samples");
  }
}

void wait_until_ready(int ready_fd, const std::function<void()>& while_waiting) {
  constexpr int kInterval_ms = 1000;
  for (;;) {
    pollfd ready{ready_fd, POLLIN, 0};
    const int count = ::poll(&ready, 1, kInterval_ms);
    if (count < 0 && errno != EINTR) throw_errno("wait for the launcher's samples");
    // The byte stays in the pipe, so every worker sees it, even after the launcher has exited.
    if (count > 0 && (ready.revents & POLLIN) != 0) return;
    if (count > 0) throw PeerError("the launcher ended or failed before the samples were read");
    if (while_waiting) while_waiting();
  }
}

ImageSet restore(const nlohmann::json& description,
                 const std::shared_ptr<const std::uint8_t>& memory) {
  auto set = description.get<ImageSet>();
  if (set.count == 0) return set;
  const auto at = [&](const char* key) {
    return memory.get() + description.at(key).get<std::uint64_t>();
  };
  set.images = {at("images"), static_cast<std::size_t>(set.count * set.bytes_per_image())};
  set.labels = {reinterpret_cast<const std::uint16_t*>(at("labels")),
                static_cast<std::size_t>(set.count)};
  set.owner = memory;
  return set;
}

}  // namespace

SharedDataset::SharedDataset() : memory_fd_(::memfd_create("mnist-train-samples", MFD_CLOEXEC)) {
  std::array<int, 2> ends{};
  if (!memory_fd_.valid() || ::pipe2(ends.data(), O_CLOEXEC) != 0)
    throw_errno("create the memory and the pipe for the samples");
  ready_read_fd_ = UniqueFd(ends[0]);
  ready_write_fd_ = UniqueFd(ends[1]);
}

void SharedDataset::publish(const settings::DataOptions& options, Splits splits,
                            const fs::path& record) {
  reading_ = start_task([this, options, splits, record] {
    const UniqueFd ready_fd = std::move(ready_write_fd_);  // closed at the end or on failure
    DatasetReader reader(options, splits, record, &cancelled_);
    fill(memory_fd_.get(), reader);
    const char ready = 1;
    if (!write_all(ready_fd.get(), &ready, 1))
      throw_errno("tell the workers that samples are ready");
  });
}

void SharedDataset::wait() {
  if (reading_.valid()) reading_.get();
}

Dataset attach(const SharedDatasetHandle& handle, const std::function<void()>& while_waiting) {
  const UniqueFd memory_fd(handle.memory_fd);
  const UniqueFd ready_fd(handle.ready_fd);
  wait_until_ready(ready_fd.get(), while_waiting);
  struct stat status {};
  if (::fstat(memory_fd.get(), &status) != 0) throw_errno("stat the memory of the samples");
  const auto bytes = static_cast<std::size_t>(status.st_size);
  std::uint64_t begin = 0;
  const std::shared_ptr<const std::uint8_t> memory =
      map_shared(memory_fd.get(), bytes, PROT_READ, kMemory);
  const std::uint8_t* end = memory.get() + bytes - sizeof begin;
  std::memcpy(&begin, end, sizeof begin);
  const auto description = nlohmann::json::from_cbor(memory.get() + begin, end);
  auto dataset = description.get<Dataset>();
  for (const auto& [key, set] : kSplits) dataset.*set = restore(description.at(key), memory);
  return dataset;
}

}  // namespace mnist_train::data
