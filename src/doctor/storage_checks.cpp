#include <fcntl.h>
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/system.h"
#include "data/dataset.h"
#include "data/find_files.h"
#include "data/image_decoder.h"
#include "data/sources.h"
#include "doctor/checks.h"

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

/// Measures how many bytes a second can be written and synced; returns nothing, with errno set,
/// when that fails.
std::optional<double> write_speed(const fs::path& folder) {
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

Finding check_named_set(settings::DatasetName name, const settings::RunConfig& config) {
  const bool is_needed = !config.data.format && config.data.dataset == name;
  const std::string topic = std::string("data: ") + name_of(name);
  settings::DataOptions options = config.data;
  options.format.reset();
  options.dataset = name;
  try {
    const data::DatasetFiles files = data::find_dataset_files(options);
    return {topic, Verdict::kGood, files.train.images.parent_path().string()};
  } catch (const Error& error) {
    if (is_needed) return {topic, Verdict::kProblem, error.what(), kSeeAbove};
    return {topic, Verdict::kNote, "not here",
            fmt::format("only runs that name it need it: mnist-train fetch {} --to DIR",
                        name_of(name))};
  }
}

/// Opens the data as a run would, but reads no images.
Finding check_format(const settings::DataOptions& options) {
  return problem_if_throws("data", kSeeAbove, [&options] {
    std::int64_t train = 0;
    std::int64_t test = 0;
    if (options.decode == settings::Decode::kOnce) {
      data::BadSamples bad(options.on_bad_sample == settings::OnBadSample::kSkip);
      const data::Sources sources = data::open_sources(options, /*with_test=*/true, bad, nullptr);
      for (const auto& source : sources.train) train += source->outline().count;
      test = sources.test->outline().count;
    } else {
      data::require_decoder(options.decode);
      const data::Dataset dataset = data::open_dataset(options);
      train = dataset.train.count;
      test = dataset.test.count;
    }
    Finding finding{"data"};
    finding.text = fmt::format("{} training and {} test images", train, test);
    finding.values = {{"train", train}, {"test", test}};
    return finding;
  });
}

}  // namespace

Finding check_run_folder(const settings::RunConfig& config) {
  const fs::path output = config.output.value_or(fs::current_path() / "runs");
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
  if (free >= 1000 * kMega) return finding;
  finding.verdict = free < 50 * kMega ? Verdict::kProblem : Verdict::kWarning;
  finding.remedy =
      "a checkpoint takes up to 90 MB (resnet18 with momentum) and four are kept: free some space, "
      "or lower checkpoint.keep";
  return finding;
}

Findings check_data(const settings::RunConfig& config) {
  Findings findings;
  if (config.data.format) findings.push_back(check_format(config.data));
  findings.push_back(check_named_set(settings::DatasetName::kMnist, config));
  findings.push_back(check_named_set(settings::DatasetName::kFashionMnist, config));
  return findings;
}

}  // namespace mnist_train::doctor
