#include "report/records.h"

#include <fcntl.h>
#include <spdlog/fmt/fmt.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <ranges>
#include <string_view>

#include "base/print.h"
#include "base/system.h"
#include "base/version.h"

namespace mnist_train::report {

namespace {

/// Adds the fields of a record. Empty optionals are omitted if `omits_empty`, otherwise null.
template <class Record>
void add_fields(OrderedJson& json, const Record& record, bool omits_empty = true) {
  Record::visit(record, [&](const std::string& key, const auto& value) {
    if constexpr (requires { value.has_value(); }) {
      if (value || !omits_empty) json[key] = value ? OrderedJson(*value) : OrderedJson();
    } else {
      json[key] = value;
    }
  });
}

/// Adds the remaining keys of an epoch's line.
void add_details(OrderedJson& json, const EpochResult& result) {
  add_fields(json["seconds"], result.seconds);
  const ClassCounts& counts = result.counts;
  for (auto row = counts.confusion.begin(); row != counts.confusion.end();) {
    const auto begin = std::exchange(row, row + counts.classes());
    json["confusion"].push_back(std::vector<std::int64_t>(begin, row));
  }
  if (counts.confusion.empty() && counts.classes() > 0) add_fields(json["class_counts"], counts);
}

OrderedJson to_json(const Summary& summary) {
  OrderedJson json = {
      {"status", summary.status}, {"epochs", summary.epochs}, {"steps", summary.steps}};
  add_fields<RunIdentity>(json, summary, /*omits_empty=*/false);
  add_fields<Summary>(json, summary, /*omits_empty=*/false);
  if (summary.best_validation_accuracy) {
    json["validation_accuracy"] = summary.validation_accuracy.value_or(kUnknown);
    json["best_validation_accuracy"] = *summary.best_validation_accuracy;
  }
  if (!summary.ended_by.empty()) json["ended_by"] = summary.ended_by;
  if (!summary.error.empty()) json["error"] = summary.error;
  return json;
}

/// Returns a discarded value if the file does not exist or is not JSON.
template <class Json = nlohmann::json>
Json read_json(const fs::path& path) {
  std::ifstream file;
  if (!is_folder(path)) file.open(path);
  return Json::parse(file, nullptr, /*allow_exceptions=*/false);
}

void write_json(const fs::path& path, const OrderedJson& json) {
  write_file_atomically(path, json_text(json, 2) + "\n", ExitCode::kRunFailed);
}

bool has_status(const OrderedJson& summary, const char* status) {
  return summary.is_object() && summary.contains("status") && summary["status"] == status;
}

OrderedJson to_json(const RunStart& start, const Summary& summary) {
  OrderedJson json = {{"time", wall_clock_seconds()}};
  add_fields(json, start, /*omits_empty=*/false);
  add_fields(json["data"], start.dataset);
  if (!start.class_names.empty()) json["data"]["class_names"] = start.class_names;
  add_fields<RunIdentity>(json, summary, /*omits_empty=*/false);
  return json;
}

constexpr std::size_t kMistakePictureBytes = 2'000'000;

class RecordFiles : public Sink {
 public:
  RecordFiles(const fs::path& folder, fs::path accuracies_file, std::int64_t keep_metrics_bytes)
      : folder_(folder),
        accuracies_file_(std::move(accuracies_file)),
        metrics_(folder / files::kMetrics, keep_metrics_bytes) {
    metrics_.truncate_to_line();
    if (keep_metrics_bytes > metrics_.bytes()) {
      spdlog::warn("{}: records before the resumed step are missing",
                   (folder / files::kMetrics).string());
    }
  }

  void begin(const RunStart& start, const Summary& summary) override {
    class_names_ = start.class_names;
    AppendFile(folder_ / files::kLineage).append(json_text(to_json(start, summary)) + "\n");
    write_json(folder_ / files::kSummary, to_json(summary));
  }

  void step(const StepRecord& record) override { write_metrics("step", record); }

  void epoch(const EpochResult& result) override {
    if (!result.predictions.empty()) {  // empty if report.predictions.batches is 0
      write_file_atomically(folder_ / files::kPredictions, prediction_lines(result),
                            ExitCode::kRunFailed);
      write_file_atomically(folder_ / files::kMistakes, mistake_lines(result),
                            ExitCode::kRunFailed);
    }
    // A repeated evaluation needs a record only if the file is empty.
    if (!result.is_repeated || metrics_.bytes() == 0) {
      write_metrics("epoch", result.record, &result);
    }
    write_accuracies(accuracies_file_, result.accuracies);
  }

  void refresh(const Summary& summary) override {
    write_json(folder_ / files::kSummary, to_json(summary));
  }
  void end(const Summary& summary) override {
    metrics_.append("");  // throws if the file was removed after the last record
    refresh(summary);
  }

  void add_position(LogPositions& positions) const override {
    positions.metrics_bytes = metrics_.bytes();
  }

 private:
  template <class Record>
  void write_metrics(const char* event, Record record, const EpochResult* details = nullptr) {
    OrderedJson json{{"event", event}};
    record.time = wall_clock_seconds();
    add_fields(json, record);
    if (details != nullptr) add_details(json, *details);
    metrics_.append(json.dump() + "\n");
  }

  OrderedJson row_of(const Prediction& prediction, const std::string& image) const {
    OrderedJson row{{"id", prediction.id}};
    if (!prediction.file.empty()) row["file"] = prediction.file;
    row["image"] = image;
    row["guess"] = prediction.guess;
    row["truth"] = prediction.truth;
    if (class_names_.empty()) return row;
    row["guess_name"] = class_names_.at(static_cast<std::size_t>(prediction.guess));
    row["truth_name"] = class_names_.at(static_cast<std::size_t>(prediction.truth));
    return row;
  }

  /// Rounds to seven significant digits. A broken model can return NaN, which becomes null.
  static OrderedJson score_of(double score) {
    const double rounded = std::strtod(fmt::format("{:.7g}", score).c_str(), nullptr);
    return rounded == 0 || rounded == 1 ? OrderedJson(static_cast<int>(rounded))
                                        : OrderedJson(rounded);
  }

  std::string prediction_lines(const EpochResult& result) const {
    std::string text;
    for (const Prediction& prediction : result.predictions) {
      OrderedJson row = row_of(prediction, prediction.image);
      for (const auto& [label, score] : prediction.scores) {
        if (std::ssize(prediction.scores) >= result.counts.classes()) {
          row[fmt::format("score_{}", label)] = score_of(score);
          continue;
        }
        OrderedJson& top = row["top"].emplace_back(OrderedJson{{"class", label}});
        if (!class_names_.empty()) top["name"] = class_names_.at(static_cast<std::size_t>(label));
        top["score"] = score_of(score);
      }
      text += json_text(row) + "\n";
    }
    return text;
  }

  std::string mistake_lines(const EpochResult& result) {
    std::string text;
    std::map<std::int64_t, std::string> used;  // by id; consecutive epochs share most mistakes
    std::size_t bytes = 0;
    for (const Prediction& mistake : result.mistakes) {
      std::string& image = used[mistake.id];
      if (bytes < kMistakePictureBytes) {
        image = std::move(pictures_[mistake.id]);
        if (image.empty()) image = thumbnail_uri(result.test_image(mistake.id));
      }
      bytes += image.size();
      OrderedJson row = row_of(mistake, image);
      row["confidence"] = mistake.confidence();
      text += json_text(row) + "\n";
    }
    pictures_ = std::move(used);
    return text;
  }

  fs::path folder_;
  fs::path accuracies_file_;
  AppendFile metrics_;
  std::vector<std::string> class_names_;
  std::map<std::int64_t, std::string> pictures_;  // of the last epoch's mistakes, by id
};

constexpr std::int64_t kMaxExactSide = 64;
constexpr std::int64_t kThumbnailSide = 96;
constexpr int kJpegQuality = 85;

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t three = 0;
    for (std::size_t j = i; j < i + 3; ++j) {
      three = three << 8 | (j < bytes.size() ? static_cast<unsigned char>(bytes[j]) : 0U);
    }
    for (int shift = 18; shift >= 0; shift -= 6) text += kDigits[three >> shift & 63U];
  }
  for (std::size_t i = 0; i < (3 - bytes.size() % 3) % 3; ++i) text[text.size() - 1 - i] = '=';
  return text;
}

}  // namespace

AppendFile::AppendFile(fs::path path, std::int64_t keep_bytes)
    : path_(std::move(path)),
      fd_(::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0666)) {
  struct stat status {};
  if (!fd_.valid() || ::fstat(fd_.get(), &status) != 0)
    throw_errno(ExitCode::kRunFailed, path_, "open");
  truncate(std::min<std::int64_t>(keep_bytes, status.st_size));
}

void AppendFile::truncate(std::int64_t bytes) {
  if (::ftruncate(fd_.get(), bytes) != 0) throw_errno(ExitCode::kRunFailed, path_, "truncate");
  bytes_ = bytes;
}

void AppendFile::truncate_to_line() {
  std::int64_t end = bytes_;
  for (char last = 0; end > 0; --end) {
    if (::pread(fd_.get(), &last, 1, end - 1) != 1)
      throw_errno(ExitCode::kRunFailed, path_, "read");
    if (last == '\n') break;
  }
  if (end < bytes_) truncate(end);
}

void AppendFile::append(std::string_view content) {
  // The open file would accept the content even if no one could read it any more.
  struct stat found {};
  if (::lstat(path_.c_str(), &found) != 0 || !S_ISREG(found.st_mode) || found.st_size < bytes_) {
    throw Error(ExitCode::kRunFailed,
                path_.string() + ": was removed, replaced or truncated while the run wrote to it");
  }
  if (!write_all(fd_.get(), content.data(), content.size())) {
    const int reason = errno;
    (void)!::ftruncate(fd_.get(), bytes_);
    errno = reason;
    throw_errno(ExitCode::kRunFailed, path_, "write");
  }
  bytes_ += static_cast<std::int64_t>(content.size());
}

OrderedJson RunIdentity::build_versions() {
  const BuildInfo& build = build_info();
  return {{"mnist_train", build.version}, {"commit", build.commit}, {"compiler", build.compiler},
          {"libtorch", build.torch},      {"cuda", build.cuda},     {"nccl", build.nccl}};
}

bool is_imbalanced(const std::vector<std::int64_t>& class_sizes) {
  auto sizes = class_sizes | std::views::filter([](std::int64_t size) { return size > 0; });
  if (sizes.empty()) return false;
  const auto [min, max] = std::ranges::minmax(sizes);
  return 2 * max > 3 * min;
}

std::vector<std::int64_t> never_predicted(const ClassCounts& counts) {
  std::vector<std::int64_t> labels;
  for (std::int64_t label = 0; label < counts.classes(); ++label) {
    if (counts.of(label).is_never_predicted()) labels.push_back(label);
  }
  return labels;
}

std::string named_classes(const std::vector<std::int64_t>& labels,
                          const std::function<std::string(std::int64_t label)>& name) {
  std::vector<std::string> names(labels.size());
  std::ranges::transform(labels, names.begin(), name);
  return first_names(names, /*max_names=*/10);
}

std::string advice_on_never_predicted(bool sizes_are_unequal, bool has_class_weights) {
  return sizes_are_unequal && !has_class_weights
             ? "class_weights \"balanced\" gives all classes equal weight"
             : "more epochs or a different learning_rate may help";
}

double selection_score(const EpochRecord& record, settings::BestBy best_by) {
  using settings::BestBy;
  if (best_by == BestBy::kAccuracy) {
    return record.validation_accuracy.value_or(record.test_accuracy);
  }
  if (best_by == BestBy::kBalancedAccuracy) {
    return record.validation_balanced_accuracy.value_or(record.test_balanced_accuracy);
  }
  const double loss = record.validation_loss.value_or(record.test_loss);
  return std::isfinite(loss) ? -loss : std::numeric_limits<double>::lowest();
}

const char* display_name(settings::BestBy best_by) {
  if (best_by == settings::BestBy::kLoss) return "loss";
  return best_by == settings::BestBy::kAccuracy ? "accuracy" : "balanced accuracy";
}

std::vector<Prediction> choose_mistakes(std::vector<Prediction> all, std::size_t limit) {
  limit = std::min(limit, all.size());
  std::ranges::sort(all, {}, [](const Prediction& mistake) {
    return std::pair(-mistake.confidence(), mistake.id);
  });
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<Prediction>> kinds;
  for (Prediction& mistake : all) {
    kinds[{mistake.truth, mistake.guess}].push_back(std::move(mistake));
  }
  std::vector<std::vector<Prediction>*> frequent_first;
  for (auto& [kind, mistakes] : kinds) frequent_first.push_back(&mistakes);
  std::ranges::stable_sort(frequent_first, std::greater(), [](auto* kind) { return kind->size(); });
  std::vector<Prediction> chosen;
  for (std::size_t round = 0; chosen.size() < limit; ++round) {
    for (std::vector<Prediction>* kind : frequent_first) {
      if (round >= kind->size() || chosen.size() == limit) continue;
      chosen.push_back(std::move((*kind)[round]));
    }
  }
  return chosen;
}

void record_end(const fs::path& path, const std::string& status, const std::string& error) try {
  auto summary = read_json<OrderedJson>(path);
  if (!has_status(summary, "running")) return;
  summary["status"] = status;
  if (!error.empty()) summary["error"] = error;
  write_json(path, summary);
} catch (const Error&) {
}

std::optional<std::int64_t> finished_steps(const fs::path& path) {
  const nlohmann::json summary = read_json(path);
  if (!has_status(summary, "finished")) return std::nullopt;
  const auto steps = summary.find("steps");
  if (steps == summary.end() || !steps->is_number_integer()) return std::nullopt;
  return steps->get<std::int64_t>();
}

void write_accuracies(const fs::path& path, const std::vector<double>& accuracies) {
  write_file_atomically(path, OrderedJson(accuracies).dump() + "\n", ExitCode::kRunFailed);
}

std::size_t count_accuracies(const fs::path& path) {
  const nlohmann::json list = read_json(path);
  return list.is_array() ? list.size() : 0;
}

std::unique_ptr<Sink> record_files(const fs::path& run_folder, const fs::path& accuracies_file,
                                   std::int64_t keep_metrics_bytes) {
  return std::make_unique<RecordFiles>(run_folder, accuracies_file, keep_metrics_bytes);
}

std::string png_uri(const imaging::Image& image) {
  return "data:image/png;base64," + base64(imaging::encode_png(image));
}

std::string thumbnail_uri(const imaging::Image& image) {
  const std::int64_t side = std::max(image.height, image.width);
  if (side <= kMaxExactSide) return png_uri(image);
  const auto reduced = [&](std::int64_t size) {
    return std::max(std::int64_t{1}, size * std::min(side, kThumbnailSide) / side);
  };
  const auto small = imaging::resize(image, reduced(image.height), reduced(image.width));
  return "data:image/jpeg;base64," + base64(imaging::encode_jpeg(small, kJpegQuality));
}

}  // namespace mnist_train::report
