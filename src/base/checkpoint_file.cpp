#include "base/checkpoint_file.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/file.h"

namespace mnist_train {

namespace fs = std::filesystem;

namespace {

std::optional<std::int64_t> step_of(const std::string& name) {
  const std::size_t begin = std::min(name.find_first_of("0123456789"), name.size());
  std::int64_t step = 0;
  std::from_chars(name.data() + begin, name.data() + name.size(), step);
  return name == checkpoint_name(step) ? std::optional(step) : std::nullopt;
}

bool is_whole(const fs::path& path) {
  try {
    return matches_seal(MappedFile::open(path, ExitCode::kCheckpoint).bytes());
  } catch (const Error&) {  // missing or unreadable
    return false;
  }
}

}  // namespace

std::string checkpoint_name(std::int64_t step) {
  return fmt::format("step-{:08}.safetensors", step);
}

std::vector<std::int64_t> saved_steps(const fs::path& folder) {
  std::vector<std::int64_t> steps;
  std::error_code error;
  for (const fs::path& path : paths_in(folder, &error)) {
    if (const auto step = step_of(path.filename().string())) steps.push_back(*step);
  }
  // If this were ignored, the run would silently start from scratch.
  if (error && error != std::errc::no_such_file_or_directory) {
    throw Error(ExitCode::kCheckpoint, folder.string() + ": cannot be read: " + error.message());
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::optional<fs::path> newest_checkpoint(const fs::path& folder) {
  const std::vector<std::int64_t> steps = saved_steps(folder);
  if (steps.empty()) return std::nullopt;
  return folder / checkpoint_name(steps.back());
}

std::optional<fs::path> newest_whole_checkpoint(const fs::path& folder) {
  const std::vector<std::int64_t> steps = saved_steps(folder);
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    if (fs::path path = folder / checkpoint_name(*step); is_whole(path)) return path;
  }
  if (fs::path best = folder / kBestCheckpoint; is_whole(best)) return best;
  return std::nullopt;
}

bool matches_seal(std::span<const std::uint8_t> file) {
  if (file.size() < kSealBytes) return false;
  Hasher hasher;
  hasher.update(file.data(), file.size() - kSealBytes);
  return std::ranges::equal(hasher.digest(), file.last(kSealBytes));
}

bool is_zip_file(std::span<const std::uint8_t> file) {
  constexpr std::array<std::uint8_t, 4> kBegin{'P', 'K', 3, 4};
  return file.size() >= kBegin.size() && std::ranges::equal(file.first(kBegin.size()), kBegin);
}

bool is_legacy_torch_file(std::span<const std::uint8_t> file) {
  // The first pickle is the number 0x1950a86a20f9469cfc6c, as bytes or, in old protocols, as
  // digits.
  constexpr std::string_view kBytes = "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
  constexpr std::string_view kDigits = "119547037146038801333356";
  constexpr std::size_t kLongestBegin = 40;
  const std::string_view begin(reinterpret_cast<const char*>(file.data()),
                               std::min(file.size(), kLongestBegin));
  return begin.find(kBytes) != std::string_view::npos ||
         begin.find(kDigits) != std::string_view::npos;
}

}  // namespace mnist_train
