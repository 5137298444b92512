#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>
#include <spdlog/spdlog.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdlib>

#include "base/print.h"
#include "base/system.h"
#include "report/records.h"

namespace mnist_train::report {

namespace {

constexpr double kRedrawInterval_s = 0.1;
constexpr std::size_t kBarWidth = 30;
constexpr std::size_t kMinBarWidth = 10;
constexpr const char* kDim = "2";
constexpr const char* kBestColour = "1;32";

/// Returns a loss with four decimals or, if it is very large, in scientific notation.
std::string loss_text(double loss) {
  return std::abs(loss) < 1e6 ? fmt::format("{:.4f}", loss) : fmt::format("{:.3g}", loss);
}
std::string as_percent(double fraction) { return fmt::format("{:.2f} %", 100 * fraction); }

std::string coloured(const TerminalStyle& style, const char* code, const std::string& text) {
  return style.colours && !text.empty() ? fmt::format("\x1b[{}m{}\x1b[0m", code, text) : text;
}

/// The epoch metrics that only some runs show.
struct ShownFigures {
  bool validation = false;
  bool balanced_accuracy = false;  // if the test set's class sizes are unequal
  bool top5_accuracy = false;      // if there are many classes
};

/// A column of the epoch table. The most important columns come first.
struct Column {
  const char* title;
  std::size_t width;
  bool ShownFigures::*shown_if = nullptr;
};

constexpr std::array kColumns{Column{"epoch", 7},
                              Column{"test loss", 11},
                              Column{"test acc.", 11},
                              Column{"balanced", 10, &ShownFigures::balanced_accuracy},
                              Column{"top 5", 10, &ShownFigures::top5_accuracy},
                              Column{"validation", 12, &ShownFigures::validation},
                              Column{"train loss", 12},
                              Column{"train acc.", 12},
                              Column{"time", 10},
                              Column{"samples/s", 11}};
constexpr std::size_t kAccuracyColumn = 2;
using Row = std::array<std::string, kColumns.size()>;

std::string rate_text(double samples_per_second) {
  return with_thousands(static_cast<std::int64_t>(samples_per_second)) + " samples/s";
}

/// Returns the time as "1:05" or "2:01:05", rounded to seconds.
std::string clock_text(double seconds) {
  const auto total = static_cast<std::int64_t>(std::llround(std::clamp(seconds, 0.0, 1e9)));
  const std::string rest = fmt::format("{:02}", total % 60);
  if (total < 3600) return fmt::format("{}:{}", total / 60, rest);
  return fmt::format("{}:{:02}:{}", total / 3600, total / 60 % 60, rest);
}

/// Returns a bar that fits in the `columns` left on a line, or "" if there are too few.
std::string progress_bar(double fraction, std::size_t columns) {
  constexpr std::size_t kFrame = 4;  // "  [" and "]"
  if (columns < kFrame + kMinBarWidth) return "";
  const std::size_t width = std::min(columns - kFrame, kBarWidth);
  std::string bar(static_cast<std::size_t>(static_cast<double>(width) * fraction), '=');
  if (bar.size() < width) bar += '>';
  bar.resize(width, ' ');
  return "  [" + bar + "]";
}

/// Returns a class's name on one line, shortened if it is long, or its number if it has no name.
std::string class_text(const std::vector<std::string>& class_names, std::size_t label) {
  constexpr std::size_t kMaxBytes = 40;
  return shortened(on_one_line(name_or_number(class_names, label)), kMaxBytes);
}

class Console : public Sink {
 public:
  explicit Console(const ConsoleSetup& setup) : setup_(setup) {}

  void begin(const RunStart& start, const Summary& /*summary*/) override {
    start_ = start;
    figures_ = {start.dataset.validation > 0, is_imbalanced(start.test_class_sizes),
                start.dataset.classes >= kMinTop5Classes};
    if (setup_.quiet || !setup_.is_terminal || setup_.header_printed) return;
    Row titles;
    std::ranges::transform(kColumns, titles.begin(), &Column::title);
    write(coloured(setup_.style, kDim, table_row(titles)) + "\n");
  }

  void tick(const StepPosition& position) override {
    position_ = position;
    if (setup_.quiet || !setup_.is_terminal) return;
    const double now_s = monotonic_seconds();
    if (now_s - drawn_s_ < kRedrawInterval_s) return;
    drawn_s_ = now_s;
    draw_progress();
  }

  void step(const StepRecord& record) override {
    last_step_ = record;
    if (setup_.quiet || setup_.is_terminal) return;
    const std::int64_t later_steps = position_.step - record.step;  // a GPU's records are late
    spdlog::info("epoch {}/{}, step {}/{}: loss {}, {}, {}", record.epoch, setup_.epochs,
                 position_.step_in_epoch - later_steps, start_.steps_per_epoch,
                 loss_text(record.loss), rate_text(record.samples_per_second), time_left());
  }

  void epoch(const EpochResult& result) override {
    const EpochRecord& record = result.record;
    counts_ = {result.counts.samples, result.counts.predicted, result.counts.correct};
    test_s_ = record.test_seconds;
    if (setup_.quiet || result.is_repeated) return;
    erase_progress();
    std::string validation;
    if (record.validation_accuracy) {
      validation =
          "validation " +
          figures_text(*record.validation_loss, *record.validation_accuracy,
                       record.validation_balanced_accuracy, record.validation_top5_accuracy) +
          "; ";
    }
    // A terminal shows the table instead, but the log contains this line.
    spdlog::log(setup_.is_terminal ? spdlog::level::debug : spdlog::level::info,
                "epoch {}/{}: train {}; {}test {}; {:.2f} s, {}", record.epoch, setup_.epochs,
                figures_text(record.train_loss, record.train_accuracy), validation,
                figures_text(record.test_loss, record.test_accuracy, record.test_balanced_accuracy,
                             record.test_top5_accuracy),
                record.train_seconds + record.test_seconds, rate_text(record.samples_per_second));
    if (setup_.is_terminal) write(table_line(record));
  }

  void end(const Summary& summary) override {
    erase_progress();
    // A terminal that cannot redraw may have echoed "^C" on the current line.
    const bool has_echo = summary.status == "stopped" && !setup_.is_terminal;
    if (has_echo && !setup_.quiet && ::isatty(setup_.fd) == 1) write("\n");
    if (summary.status == "finished") warn_of_never_predicted();
  }

 private:
  /// Returns "loss 0.1234, accuracy 98.76 %" and any other accuracies that this run shows.
  std::string figures_text(double loss, double accuracy, std::optional<double> balanced = {},
                           std::optional<double> top5 = {}) const {
    std::string text = fmt::format("loss {}, accuracy {}", loss_text(loss), as_percent(accuracy));
    if (balanced && figures_.balanced_accuracy) text += ", balanced " + as_percent(*balanced);
    if (top5 && figures_.top5_accuracy) text += ", top 5 " + as_percent(*top5);
    return text;
  }

  /// Returns the cells of the columns that fit. The last column of the terminal stays empty,
  /// because some terminals wrap when a character is written there.
  std::string table_row(const Row& cells, bool is_best = false) const {
    const std::size_t width = columns();
    std::size_t total_width = 0;
    std::string row;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const Column& column = kColumns[i];
      if (column.shown_if != nullptr && !(figures_.*column.shown_if)) continue;
      total_width += column.width;
      if (total_width >= width) break;
      const std::string cell = fmt::format("{:>{}}", cells[i], column.width);
      row += is_best && i == kAccuracyColumn ? coloured(setup_.style, kBestColour, cell) : cell;
    }
    return row;
  }

  /// Returns an epoch's line. The test accuracy is coloured if the epoch is the best so far.
  std::string table_line(const EpochRecord& record) {
    const double score = selection_score(record, setup_.best_by);
    const bool best = !best_score_ || score > *best_score_;
    if (best) best_score_ = score;
    const Row cells{fmt::format("{}/{}", record.epoch, setup_.epochs),
                    loss_text(record.test_loss),
                    as_percent(record.test_accuracy),
                    as_percent(record.test_balanced_accuracy),
                    as_percent(record.test_top5_accuracy.value_or(0)),
                    as_percent(record.validation_accuracy.value_or(0)),
                    loss_text(record.train_loss),
                    as_percent(record.train_accuracy),
                    fmt::format("{:.2f} s", record.train_seconds + record.test_seconds),
                    with_thousands(static_cast<std::int64_t>(record.samples_per_second))};
    return table_row(cells, best) + "\n";
  }

  void warn_of_never_predicted() const {
    const std::vector<std::int64_t> labels = never_predicted(counts_);
    if (labels.empty()) return;
    const std::string names = named_classes(labels, [this](std::int64_t label) {
      return class_text(start_.class_names, static_cast<std::size_t>(label));
    });
    spdlog::warn("{} of {} classes {} never predicted: {}; {}", labels.size(),
                 counts_.samples.size(), labels.size() == 1 ? "was" : "were", names,
                 advice_on_never_predicted(is_imbalanced(start_.train_class_sizes),
                                           setup_.has_class_weights));
  }

  std::size_t columns() const {
    winsize size{};
    return ::ioctl(setup_.fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
  }

  void write(const std::string& text) const {
    (void)write_all(setup_.fd, text.data(), text.size());
  }

  void erase_progress() {
    if (std::exchange(progress_is_drawn_, false)) write(kEraseLine);
  }

  /// Returns "ETA 1:05", or "" until a step has been recorded.
  std::string time_left() const {
    if (!last_step_) return "";
    const std::int64_t in_epoch = std::max<std::int64_t>(1, start_.steps_per_epoch);
    std::int64_t steps = (setup_.epochs - position_.epoch + 1) * in_epoch - position_.step_in_epoch;
    if (setup_.max_steps) steps = std::min(steps, *setup_.max_steps - position_.step);
    steps = std::max<std::int64_t>(0, steps);
    const std::int64_t tests = (steps + in_epoch - 1) / in_epoch;
    const double samples_per_step =
        static_cast<double>(start_.dataset.train) / static_cast<double>(in_epoch);
    const double step_s = samples_per_step / last_step_->samples_per_second;
    return "ETA " +
           clock_text(static_cast<double>(steps) * step_s + static_cast<double>(tests) * test_s_);
  }

  void draw_progress() {
    std::int64_t steps = std::max<std::int64_t>(1, start_.steps_per_epoch);
    if (setup_.max_steps) {
      steps = std::min(steps, position_.step_in_epoch + *setup_.max_steps - position_.step);
    }
    const std::size_t free = columns() - 1;
    std::string line = fmt::format("epoch {}/{}", position_.epoch, setup_.epochs).substr(0, free);
    for (const std::string& part :
         {fmt::format("{}/{}", position_.step_in_epoch, steps),
          last_step_ ? "loss " + loss_text(last_step_->loss) : "",
          last_step_ ? rate_text(last_step_->samples_per_second) : "", time_left()}) {
      if (!part.empty() && line.size() + 2 + part.size() <= free) line += "  " + part;
    }
    const double fraction =
        static_cast<double>(std::min(position_.step_in_epoch, steps)) / static_cast<double>(steps);
    line += progress_bar(fraction, free - line.size());
    // The cursor returns to the start of the line, so that the next output overwrites it.
    write(kEraseLine + line + "\r");
    progress_is_drawn_ = true;
  }

  ConsoleSetup setup_;
  ShownFigures figures_;
  RunStart start_;
  ClassCounts counts_;                // of the last evaluation
  std::optional<double> best_score_;  // by the metric that selects the best checkpoint
  StepPosition position_;
  std::optional<StepRecord> last_step_;
  double test_s_ = 0;  // duration of the last evaluation
  double drawn_s_ = 0;
  bool progress_is_drawn_ = false;
};

using Json = nlohmann::ordered_json;
using Sizes = std::vector<std::int64_t>;

/// A module's name, layer, output, parameters, multiply-adds and tensors.
using Cells = std::array<std::string, 6>;
constexpr std::size_t kFirstNumber = 3;
constexpr std::size_t kNumbers = 2;

std::string batch(const Sizes& sizes) {
  return sizes.empty() ? "" : fmt::format("[N,{}]", fmt::join(sizes, ","));
}

/// Returns "weight: frozen; bias: rate 0.001, decay 0".
std::string tensors_text(const ModuleRow& row) {
  std::string text;
  std::string last;
  for (const ParameterRow& parameter : row.tensors) {
    const std::string training =
        parameter.frozen
            ? "frozen"
            : fmt::format("rate {:g}, decay {:g}", parameter.learning_rate, parameter.weight_decay);
    if (!last.empty()) text += last == training ? ", " : ": " + last + "; ";
    text += parameter.name;
    last = training;
  }
  return last.empty() ? "" : text + ": " + last;
}

Cells cells_of(const ModuleRow& row) {
  const auto number = [&](std::int64_t value) {
    return row.is_container || value == 0 ? "" : with_thousands(value);
  };
  return {row.name,
          row.layer,
          batch(row.output),
          number(row.parameters),
          number(row.multiply_adds.value_or(0)),
          tensors_text(row)};
}

/// Aligns the columns; numbers are right-aligned.
std::string aligned(const std::vector<Cells>& lines) {
  std::array<std::size_t, std::tuple_size_v<Cells>> widths{};
  for (const Cells& cells : lines) {
    for (std::size_t i = 0; i < cells.size(); ++i) widths[i] = std::max(widths[i], cells[i].size());
  }
  std::string text;
  for (const Cells& cells : lines) {
    std::string line;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      if (i > 0) line += "  ";
      const bool is_number = i >= kFirstNumber && i < kFirstNumber + kNumbers;
      line += is_number ? fmt::format("{:>{}}", cells[i], widths[i])
                        : fmt::format("{:{}}", cells[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

Json json_of(const Sizes& sizes) {
  if (sizes.empty()) return nullptr;
  Json json{"N"};
  for (const std::int64_t size : sizes) json.push_back(size);
  return json;
}

Json json_of(const std::optional<std::int64_t>& number) { return number ? Json(*number) : Json(); }

std::size_t best_of(const std::vector<float>& scores) {
  return static_cast<std::size_t>(std::ranges::max_element(scores) - scores.begin());
}

}  // namespace

TerminalStyle terminal_style() {
  const bool redraws = environment_variable("TERM") != "dumb";
  const bool wants_colours = environment_variable("NO_COLOR").value_or("").empty();
  return {.colours = redraws && wants_colours, .redraws = redraws};
}

std::string with_thousands(std::int64_t number) {
  std::string digits = std::to_string(number);
  const std::size_t first = digits.starts_with('-') ? 1 : 0;
  for (std::size_t i = digits.size(); i > first + 3; i -= 3) digits.insert(i - 3, ",");
  return digits;
}

std::string class_sizes_text(const std::vector<std::int64_t>& sizes,
                             const std::vector<std::string>& class_names) {
  if (std::ranges::count(sizes, 0) == 0 && !is_imbalanced(sizes)) return "";
  const auto described = [&](auto size) {
    const auto label = static_cast<std::size_t>(size - sizes.begin());
    return fmt::format("{} ({})", with_thousands(*size), class_text(class_names, label));
  };
  const auto [smallest, largest] = std::ranges::minmax_element(sizes);
  return fmt::format(" of {} to {} training images", described(smallest), described(largest));
}

std::unique_ptr<Sink> console_sink(const ConsoleSetup& setup) {
  return std::make_unique<Console>(setup);
}

ParameterRow parameter_row(const std::string& name, const settings::ParameterSettings& kind,
                           const settings::TrainOptions& options) {
  const settings::ScheduleOptions& schedule = options.schedule;
  const bool is_cycle = schedule.name == settings::ScheduleName::kOneCycle;
  const double rate = is_cycle ? schedule.max_learning_rate : options.learning_rate;
  return {name, kind.frozen, rate * kind.learning_rate_factor,
          kind.weight_decay.value_or(options.weight_decay)};
}

std::string to_text(const ModuleTable& table) {
  std::vector<Cells> lines{{"name", "layer", "output", "parameters", "multiply-adds", "tensors"},
                           {"", "images", batch(table.input), "", "", ""}};
  for (const ModuleRow& row : table.rows) lines.push_back(cells_of(row));
  lines.push_back({"", "total", "", with_thousands(table.parameters),
                   table.multiply_adds ? with_thousands(*table.multiply_adds) : "–", ""});
  return aligned(lines);
}

Json to_json(const ModuleTable& table) {
  Json modules = Json::array();
  for (const ModuleRow& row : table.rows) {
    Json tensors = Json::array();
    for (const ParameterRow& parameter : row.tensors) {
      Json& tensor = tensors.emplace_back();
      tensor["name"] = (row.name.empty() ? "" : row.name + ".") + parameter.name;
      tensor["frozen"] = parameter.frozen;
      if (parameter.frozen) continue;
      tensor["learning_rate"] = parameter.learning_rate;
      tensor["weight_decay"] = parameter.weight_decay;
    }
    modules.push_back({{"name", row.name},
                       {"layer", row.layer},
                       {"output", json_of(row.output)},
                       {"parameters", row.parameters},
                       {"multiply_adds", json_of(row.multiply_adds)},
                       {"tensors", std::move(tensors)}});
  }
  return {{"input", json_of(table.input)},
          {"modules", modules},
          {"parameters", table.parameters},
          {"multiply_adds", json_of(table.multiply_adds)}};
}

Json to_json(const std::string& file, const std::vector<float>& scores,
             const std::vector<std::string>& class_names) {
  const std::size_t guess = best_of(scores);
  Json row = {{"file", escape_invalid_bytes(file)}, {"guess", guess}};
  if (scores.size() == class_names.size()) row["class"] = class_names[guess];
  row["scores"] = Json::array();
  for (const float score : scores) {  // as the shortest text that parses to the same float
    row["scores"].push_back(std::strtod(fmt::format("{}", score).c_str(), nullptr));
  }
  return row;
}

std::string to_text(const std::string& file, const std::vector<float>& scores,
                    const std::vector<std::string>& class_names) {
  const bool has_names = scores.size() == class_names.size();
  const auto likely = [&](std::size_t label) {
    const std::string name = has_names ? class_names[label] : std::to_string(label);
    return fmt::format("{} ({:.1f} %)", on_one_line(name), 100 * scores[label]);
  };
  const std::size_t guess = best_of(scores);
  std::string text = on_one_line(file) + ": " + likely(guess);
  if (scores.size() > 1) {
    std::vector<float> others = scores;
    others[guess] = -1;
    text += ", then " + likely(best_of(others));
  }
  return text + "\n";
}

std::string to_text(const EvaluationMetrics& test) {
  std::string text = fmt::format(
      "test accuracy  {} of {} image{}\ntest loss      {}\n"
      "balanced       {} (mean accuracy per class)\n",
      as_percent(test.accuracy), with_thousands(test.samples), test.samples == 1 ? "" : "s",
      loss_text(test.loss), as_percent(test.balanced_accuracy));
  if (test.top5_accuracy) text += "top-5 accuracy " + as_percent(*test.top5_accuracy) + "\n";
  return text;
}

Json to_json(const EvaluationMetrics& test, const std::vector<std::string>& class_names) {
  Json json = {{"test_loss", test.loss},
               {"test_accuracy", test.accuracy},
               {"test_balanced_accuracy", test.balanced_accuracy}};
  if (test.top5_accuracy) json["test_top5_accuracy"] = *test.top5_accuracy;
  json["samples"] = test.samples;
  Json& rows = json["classes"] = Json::array();
  const auto or_zero = [](double measure) { return std::isnan(measure) ? 0 : measure; };
  for (std::int64_t label = 0; label < test.counts.classes(); ++label) {
    const ClassMetrics metrics = test.counts.of(label);
    rows.push_back({{"name", name_or_number(class_names, static_cast<std::size_t>(label))},
                    {"samples", metrics.samples},
                    {"precision", or_zero(metrics.precision())},
                    {"recall", or_zero(metrics.recall())},
                    {"f1", or_zero(metrics.f1())}});
  }
  return json;
}

}  // namespace mnist_train::report
