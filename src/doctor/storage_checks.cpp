#include "doctor/storage_checks.h"

#include <fcntl.h>
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "base/system_files.h"
#include "data/dataset_reader.h"
#include "data/find_files.h"
#include "data/image_decoder.h"

namespace mnist_train::doctor {

namespace fs = std::filesystem;

namespace {

constexpr double kMega = 1e6;

fs::path nearest_existing(fs::path folder) {
  std::error_code ignored;
  while (!fs::is_directory(folder, ignored) && folder.has_relative_path()) {
    folder = folder.parent_path();
  }
  return folder;
}

/// Bytes a second, written and looked; nothing with errno set when that fails.
std::optional<double> writing_speed(const fs::path& folder) {
  constexpr std::size_t kBytes = 8 << 20;
  std::string name = (folder / ".mnist-train-doctor-XXXXXX").string();
  const UniqueFd file(::mkostemp(name.data(), O_CLOEXEC));
  if (!file.valid()) return std::nullopt;
  ::unlink(name.c_str());
  const std::vector<char> content(kBytes, 'x');
  const double begin_s = monotonic_seconds();
  if (!write_all(file.get(), content.data(), kBytes) || ::fsync(file.get()) != 0) {
    return std::nullopt;
  }
  return static_cast<double>(kBytes) / std::max(1e-6, monotonic_seconds() - begin_s);
}

Finding check_by_name(const settings::NamedDataset& row, const settings::RunConfig& config) {
  const bool wanted = !config.data.format && config.data.dataset == row.name;
  const std::string title = "data: " + row.name;
  try {
    return {
        title, Verdict::kGood, data::find_named_dataset(row, config.data.root).string(), "", {}};
  } catch (const Error& error) {
    if (wanted) return {title, Verdict::kProblem, error.what(), "see above", {}};
    return {title,
            Verdict::kNote,
            "not here",
            "only runs that name it need it: mnist-train fetch " + row.name + " --to DIR",
            {}};
  }
}

/// Opens it as a run would, without reading images.
Finding check_by_format(const settings::DataOptions& options) {
  try {
    data::require_decoder(options.decode);
    const data::DatasetReader reader(options);
    const std::int64_t train = reader.train_count();
    const std::int64_t test = reader.test_count();
    return {"data",
            Verdict::kGood,
            fmt::format("{} training and {} test images", train, test),
            "",
            {{"train", train}, {"test", test}}};
  } catch (const Error& error) {
    return {"data", Verdict::kProblem, error.what(), "see above", {}};
  }
}

}  // namespace

Finding check_run_folder(const settings::RunConfig& config) {
  const fs::path wanted = config.output.value_or(fs::current_path() / "runs");
  const fs::path folder = nearest_existing(wanted);
  Finding finding{"run folder", Verdict::kGood, "", "", {{"folder", folder.string()}}};
  const auto speed = writing_speed(folder);
  if (!speed) {
    finding.verdict = Verdict::kProblem;
    finding.text = folder.string() + " cannot be written: " + std::strerror(errno);
    finding.remedy = "name another one: --output DIR";
    return finding;
  }
  const double free = free_space(folder).value_or(0);
  finding.values["free_bytes"] = free;
  finding.values["bytes_per_second"] = *speed;
  finding.text = fmt::format("{}: {} free, {}/s written and looked", wanted.string(),
                             bytes_text(free), bytes_text(*speed));
  if (free >= 1000 * kMega) return finding;
  finding.verdict = free < 50 * kMega ? Verdict::kProblem : Verdict::kWarning;
  finding.remedy =
      "a checkpoint takes up to 90 MB (resnet18 with momentum) and four are kept: make "
      "room, or lower checkpoint.keep";
  return finding;
}

Findings check_data(const settings::RunConfig& config) {
  Findings findings;
  if (config.data.format) findings.push_back(check_by_format(config.data));
  for (const settings::NamedDataset& row : settings::named_datasets()) {
    findings.push_back(check_by_name(row, config));
  }
  return findings;
}

}  // namespace mnist_train::doctor
