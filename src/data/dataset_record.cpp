#include <spdlog/fmt/ranges.h>

#include <set>
#include <system_error>

#include "base/file.h"
#include "base/json.h"
#include "base/print.h"
#include "data/dataset.h"
#include "settings/run_config.h"

namespace mnist_train::data {

namespace {

std::vector<std::string> paths_of(const ImageSet& set) {
  std::vector<std::string> paths;
  for (std::int64_t sample = 0; sample < set.count; ++sample) {
    if (std::string path = set.path(sample); !path.empty()) paths.push_back(std::move(path));
  }
  return paths;
}

/// The counts in dataset.json's `left_out` besides those of files.
constexpr std::array<std::pair<const char*, std::int64_t LeftOut::*>, 4> kNumbers{
    {{"duplicates", &LeftOut::duplicates},
     {"limit_train", &LeftOut::limit_train},
     {"limit_test", &LeftOut::limit_test},
     {"unusable", &LeftOut::unusable}}};

/// Formats names as `"a", "b" and 3 more`.
std::string quoted_classes(const std::vector<std::string>& names) {
  std::vector<std::string> quoted;
  for (const std::string& name : names) quoted.push_back('"' + name + '"');
  return first_names(quoted, /*max_names=*/50);
}

/// Throws ConfigKeyError if there are weights for unknown classes.
void require_classes(const settings::ClassWeightOptions& options,
                     const std::vector<std::string>& names) {
  const std::set<std::string> known(names.begin(), names.end());
  std::vector<std::string> unknown;
  for (const auto& [name, weight] : options.weights) {
    if (!known.contains(name)) unknown.push_back(name);
  }
  if (unknown.empty()) return;
  throw ConfigKeyError(fmt::format("/class_weights: the data has no {} {}; its classes: {}",
                                   unknown.size() == 1 ? "class" : "classes",
                                   quoted_classes(unknown), quoted_classes(names)));
}

/// Returns the record in a checkpoint's state.
DatasetRecord record_of(const nlohmann::json& state) {
  DatasetRecord record;
  record.class_names = state.value("class_names", record.class_names);
  const nlohmann::json& images = state.at("images");
  record.classes = std::clamp<std::int64_t>(images.at("classes"), 1, settings::kMaxClasses);
  ImageGeometry& geometry = record.geometry.emplace();
  geometry.channels = images.at("channels");
  geometry.height = images.at("height");
  geometry.width = images.at("width");
  return record;
}

}  // namespace

DatasetRecord read_dataset_record(const fs::path& file,
                                  std::optional<settings::DataFormat> format) try {
  const MappedFile mapped = MappedFile::open(file, ExitCode::kData);
  const nlohmann::json state = checkpoint_state(mapped.bytes());
  if (!state.is_null()) return record_of(state);
  const nlohmann::json json = nlohmann::json::parse(text_of(mapped.bytes()));
  DatasetRecord record;
  json.at("test").get_to(record.test);
  bool is_named = format == settings::DataFormat::kImageFolder;
  for (const auto& row : json.at("classes")) {
    const std::string& name = record.class_names.emplace_back(row.at("name"));
    is_named = is_named || name != std::to_string(record.classes);
    ++record.classes;
    for (const auto& [split, unused] : kSplits) record.samples += row.at(split).get<std::int64_t>();
  }
  for (const auto& [name, unused] : kNumbers) {
    if (std::string_view(name) == "duplicates") continue;
    record.samples += json.at("left_out").value(name, std::int64_t{0});
  }
  if (!is_named) record.class_names.clear();
  return record;
} catch (const nlohmann::json::exception&) {
  fail_data(
      "{}: is damaged or not the dataset.json of a run; restore it, or remove it to draw the test "
      "set again",
      file.string());
}

std::string write_dataset_record(const Dataset& dataset, const settings::DataOptions& options) {
  const auto classes = static_cast<std::size_t>(dataset.train.classes);
  OrderedJson json;
  json["classes"] = OrderedJson::array();
  OrderedJson& rows = json["classes"];
  for (std::size_t label = 0; label < classes; ++label) {
    rows[label]["name"] = name_or_number(dataset.class_names, label);
  }
  for (const auto& [split, set] : kSplits) {
    std::vector<std::int64_t> sizes = (dataset.*set).class_sizes();
    sizes.resize(classes);  // those of a default ImageSet are empty
    for (std::size_t label = 0; label < classes; ++label) rows[label][split] = sizes[label];
  }
  const std::vector<std::string> none;
  json["test"] = options.test_fraction > 0 ? paths_of(dataset.test) : none;
  json["validation"] = options.validation > 0 ? paths_of(dataset.validation) : none;
  const LeftOut& left_out = dataset.left_out;
  OrderedJson counts = left_out.files;
  if (!left_out.folders.empty()) counts["folders"] = left_out.folders;
  for (const auto& [name, number] : kNumbers) {
    if (left_out.*number > 0) counts[name] = left_out.*number;
  }
  json["left_out"] = std::move(counts);
  return json_text(json, 2) + "\n";
}

std::string left_out_text(const LeftOut& left_out) {
  std::vector<std::string> parts;
  for (const auto& [kind, count] : left_out.files) parts.push_back(left_out_files(kind, count));
  if (!left_out.folders.empty()) {
    std::vector<std::string> folders;
    for (const auto& [name, reason] : left_out.folders) {
      folders.push_back(fmt::format("{} ({})", name, reason));
    }
    parts.push_back(counted(std::ssize(folders), "folder") + ": " +
                    first_names(folders, /*max_names=*/5));
  }
  if (left_out.duplicates > 0) parts.push_back(counted(left_out.duplicates, "repeated list row"));
  return fmt::format("{}", fmt::join(parts, "; "));
}

std::vector<float> class_weights(const settings::ClassWeightOptions& options,
                                 const Dataset& dataset) {
  const auto classes = static_cast<std::size_t>(dataset.train.classes);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < classes; ++i) names.push_back(name_or_number(dataset.class_names, i));
  require_classes(options, names);
  const std::vector<std::int64_t> sizes = dataset.train.class_sizes();
  std::vector<std::string> empty;
  std::vector<float> weights;
  for (std::size_t i = 0; i < classes; ++i) {
    if (sizes[i] == 0) empty.push_back(names[i]);
    const auto given = options.weights.find(names[i]);
    const double balanced = static_cast<double>(dataset.train.count) /
                            static_cast<double>(dataset.train.classes * sizes[i]);
    const double weight = given == options.weights.end() ? 1 : given->second;
    weights.push_back(static_cast<float>(options.balanced ? balanced : weight));
  }
  if (!empty.empty()) {
    fail_data(
        "{}: class_weights needs training samples of every class, but none remain for {} after "
        "limits and held-out samples",
        dataset.train.source, quoted_classes(empty));
  }
  if (std::ranges::count(weights, 0.0F) == dataset.train.classes) {
    throw ConfigKeyError("/class_weights: the weights of all classes are 0");
  }
  return weights;
}

}  // namespace mnist_train::data
