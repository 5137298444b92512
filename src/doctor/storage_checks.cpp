#include <fcntl.h>
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/system.h"
#include "data/dataset.h"
#include "data/image_decoder.h"
#include "data/sources.h"
#include "doctor/checks.h"
#include "report/run_folder.h"

namespace mnist_train::doctor {

namespace fs = std::filesystem;

namespace {

constexpr double kMega = 1e6;
constexpr const char* kSeeAbove = "the message above says what to do";

fs::path nearest_existing(fs::path folder) {
  std::error_code ignored;
  while (!fs::is_directory(folder, ignored) && folder.has_relative_path()) {
    folder = folder.parent_path();
  }
  return folder;
}

fs::path output_of(const settings::RunConfig& config) {
  return config.output.value_or(fs::current_path() / "runs");
}

/// Makes a file in the folder, which is gone when it is closed. On failure errno says why.
UniqueFd scratch_file(const fs::path& folder) {
  std::string name = (folder / ".mnist-train-doctor-XXXXXX").string();
  UniqueFd file(::mkostemp(name.data(), O_CLOEXEC));
  if (file.valid()) ::unlink(name.c_str());
  return file;
}

/// Measures how many bytes a second can be written and synced; returns nothing, with errno set,
/// when that fails.
std::optional<double> write_speed(const fs::path& folder) {
  constexpr std::size_t kBytes = 8 << 20;
  const UniqueFd file = scratch_file(folder);
  if (!file.valid()) return std::nullopt;
  const std::vector<char> content(kBytes, 'x');
  const double begin_s = monotonic_seconds();
  if (!write_all(file.get(), content.data(), kBytes)) return std::nullopt;
  if (::fsync(file.get()) != 0 && !means_no_sync(errno)) return std::nullopt;
  return static_cast<double>(kBytes) / std::max(1e-6, monotonic_seconds() - begin_s);
}

/// Returns what the file system of a folder lacks, "" if it lacks nothing; nothing if no file can
/// be made there.
std::optional<std::string> missing_in(const fs::path& folder) {
  std::string missing;
  const auto add = [&](const char* what) {
    missing += fmt::format("{}{} ({})", missing.empty() ? folder.string() + " has no " : ", no ",
                           what, std::strerror(errno));
  };
  const UniqueFd file = scratch_file(folder);
  if (!file.valid()) return std::nullopt;
  if (take_file_lock(file.get()) == FileLock::kUnsupported) add("file locks");
  const UniqueFd opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened.valid() || ::fsync(opened.get()) != 0) add("syncing of folders");
  return missing;
}

Finding check_named_set(const settings::NamedDataset& row, const settings::RunConfig& config) {
  const bool is_needed = !config.data.format && config.data.dataset == row.name;
  const std::string topic = "data: " + row.name;
  try {
    return {topic, Verdict::kGood, data::find_named_dataset(row, config.data.root).string()};
  } catch (const Error& error) {
    if (is_needed) return {topic, Verdict::kProblem, error.what(), kSeeAbove};
    return {topic, Verdict::kNote, "not here",
            "only runs that name it need it: " + data::fetch_command(row)};
  }
}

/// Opens the data as a run would, but reads no images.
Finding check_format(const settings::DataOptions& options) {
  return problem_if_throws("data", kSeeAbove, [&options] {
    data::require_decoder(options.decode);
    const data::DatasetReader reader(options);
    Finding finding{"data"};
    finding.text =
        fmt::format("{} training and {} test images", reader.train_count(), reader.test_count());
    finding.values = {{"train", reader.train_count()}, {"test", reader.test_count()}};
    return finding;
  });
}

/// Says what a start would say of a folder that holds a run or is in use.
void warn_of_refusal(const settings::RunConfig& config, Finding& finding) {
  try {
    report::check_run_folder(config, /*config_name=*/"", /*resume=*/"");
  } catch (const Error& error) {
    finding.verdict = Verdict::kWarning;
    finding.text = error.what();
    finding.remedy = kSeeAbove;
  }
}

}  // namespace

Finding check_run_folder(const settings::RunConfig& config) {
  const fs::path output = output_of(config);
  const fs::path folder = nearest_existing(output);
  Finding finding{"run folder", Verdict::kGood, "", "", {{"folder", folder.string()}}};
  const auto speed = write_speed(folder);
  if (!speed) {
    finding.verdict = Verdict::kProblem;
    finding.text = folder.string() + " cannot be written: " + std::strerror(errno);
    finding.remedy = "name another folder: --output DIR";
    return finding;
  }
  const double free = free_space(folder).value_or(0);
  finding.values["free_bytes"] = free;
  finding.values["bytes_per_second"] = *speed;
  finding.text = fmt::format("{}: {} free, {}/s written and synced", output.string(),
                             bytes_text(free), bytes_text(*speed));
  if (free >= 1000 * kMega) {
    if (config.output) warn_of_refusal(config, finding);
    return finding;
  }
  finding.verdict = free < 50 * kMega ? Verdict::kProblem : Verdict::kWarning;
  finding.remedy =
      "a checkpoint takes up to 90 MB (resnet18 with momentum) and four are kept: free some space, "
      "or lower checkpoint.keep";
  return finding;
}

Finding check_file_locks(const settings::RunConfig& config) {
  std::set<fs::path> folders{nearest_existing(output_of(config))};
  if (const auto cache = user_cache_folder()) folders.insert(nearest_existing(*cache));
  std::string tested;
  std::string problems;
  for (const fs::path& folder : folders) {
    const auto missing = missing_in(folder);
    if (!missing) continue;
    tested += (tested.empty() ? "work in " : ", ") + folder.string();
    if (!missing->empty()) problems += (problems.empty() ? "" : "; ") + *missing;
  }
  if (tested.empty()) return {"file locks", Verdict::kNote, "not tested: no folder can be written"};
  Finding finding{"file locks", Verdict::kGood, problems.empty() ? tested : problems};
  if (problems.empty()) return finding;
  finding.verdict = Verdict::kWarning;
  finding.remedy =
      "runs work, but without locks nothing keeps two out of one folder (Lustre has them if it is "
      "mounted with -o flock), and without syncing a crash of the machine may cost the newest "
      "files";
  return finding;
}

Findings check_data(const settings::RunConfig& config) {
  Findings findings;
  if (config.data.format) findings.push_back(check_format(config.data));
  for (const settings::NamedDataset& row : settings::named_datasets()) {
    findings.push_back(check_named_set(row, config));
  }
  return findings;
}

}  // namespace mnist_train::doctor
