#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/class_counts.h"
#include "base/file.h"
#include "base/json.h"
#include "imaging/codec.h"
#include "settings/run_config.h"

namespace mnist_train::report {

namespace fs = std::filesystem;

/// A number that was not measured or recorded.
inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

// Records of metrics.jsonl; their members are in the order of the JSON keys. Writing turns NaN into
// null and omits empty optionals. Reading leaves missing and null members at their defaults.

/// A line with "event": "step", written every `log_interval` steps.
struct StepRecord {
  std::int64_t epoch = 0;  // from 1
  std::int64_t step = 0;   // of the run, from 1
  double loss = kUnknown;  // mean over the samples of the step
  double learning_rate = kUnknown;
  double samples_per_second = kUnknown;  // since the previous record
  double accuracy = kUnknown;            // of the same samples, before the update
  double time = kUnknown;                // seconds since 1970, set on writing

  MNIST_TRAIN_VISIT(epoch, step, loss, learning_rate, samples_per_second, accuracy, time)
};

/// The metrics in a line with "event": "epoch".
struct EpochRecord {
  std::int64_t epoch = 0;  // from 1
  std::int64_t step = 0;
  double train_loss = kUnknown;  // mean over samples, computed before each update
  double train_accuracy = kUnknown;
  double test_loss = kUnknown;
  double test_accuracy = kUnknown;
  double test_balanced_accuracy = kUnknown;    // mean of the per-class accuracies
  std::optional<double> test_top5_accuracy{};  // only with more than five classes
  double train_seconds = 0;
  double test_seconds = 0;
  double samples_per_second = kUnknown;
  double time = kUnknown;                   // seconds since 1970, set on writing
  std::optional<double> validation_loss{};  // only with a validation set
  std::optional<double> validation_accuracy{};
  std::optional<double> validation_balanced_accuracy{};
  std::optional<double> validation_top5_accuracy{};

  MNIST_TRAIN_VISIT(epoch, step, train_loss, train_accuracy, test_loss, test_accuracy,
                    test_balanced_accuracy, test_top5_accuracy, train_seconds, test_seconds,
                    samples_per_second, time, validation_loss, validation_accuracy,
                    validation_balanced_accuracy, validation_top5_accuracy)
};

/// Returns the score that selects the best checkpoint: greater is better, so a loss is negated. It
/// is from the validation set, if any, otherwise from the test set. NaN if the accuracy is unknown.
double selection_score(const EpochRecord& record, settings::BestBy best_by);

/// Returns "accuracy", "balanced accuracy" or "loss".
const char* display_name(settings::BestBy best_by);

/// How rank 0 spent the time since the previous epoch record. The first three members are unknown
/// on a GPU, where these activities overlap.
struct TimeSplit {
  double input_s = kUnknown;
  double compute_s = kUnknown;
  double communication_s = kUnknown;  // includes waiting for other ranks
  double evaluation_s = 0;
  double checkpoint_s = 0;  // copying state and waiting for writes, mostly of the previous epoch
  double report_s = 0;      // writing to the sinks

  MNIST_TRAIN_VISIT(input_s, compute_s, communication_s, evaluation_s, checkpoint_s, report_s)
};

/// Returns whether the largest class has more than 1.5 times as many images as the smallest, in
/// which case accuracy says little about small classes. Ignores classes without images.
bool is_imbalanced(const std::vector<std::int64_t>& class_sizes);

/// Returns the classes that have test images but were never predicted.
std::vector<std::int64_t> never_predicted(const ClassCounts& counts);

/// Returns the class names as "a, b", or the first ten followed by "and 7 more".
std::string named_classes(const std::vector<std::int64_t>& labels,
                          const std::function<std::string(std::int64_t label)>& name);

/// Returns advice for a model that never predicts some classes.
std::string advice_on_never_predicted(bool sizes_are_unequal, bool has_class_weights);

/// Minimum number of classes for which top-5 accuracy is shown; with fewer, it says little.
inline constexpr std::int64_t kMinTop5Classes = 50;

/// The prediction for one test image: a line of predictions.jsonl, or of mistakes.jsonl, which
/// contains only the score of the guess.
struct Prediction {
  std::int64_t id = 0;     // position in the test set
  std::string image;       // data: URI of a PNG or, for a mistake, a PNG or JPEG; may be empty
  std::int64_t guess = 0;  // the predicted class
  std::int64_t truth = 0;
  // Probabilities of all classes in order or, if there are many, of the likeliest, highest first.
  std::vector<std::pair<std::int64_t, double>> scores;
  std::string file = {};  // relative to its set's folder; "" if samples are not files

  /// Returns the probability of the guess, or 0 if unknown.
  double confidence() const {
    const auto found = std::ranges::find(scores, guess, &std::pair<std::int64_t, double>::first);
    return found == scores.end() ? 0 : found->second;
  }
};

/// Maximum number of mistakes kept per evaluation.
inline constexpr std::size_t kMaxMistakes = 240;

/// Chooses at most `limit` mistakes so that rare kinds (pairs of true and predicted class) are
/// represented: the most confident mistake of each kind, frequent kinds first, then the second most
/// confident of each kind, and so on.
std::vector<Prediction> choose_mistakes(std::vector<Prediction> all,
                                        std::size_t limit = kMaxMistakes);

/// Returns the image as a PNG, "data:image/png;base64,…".
std::string png_uri(const imaging::Image& image);

/// Returns the image as a small data: URI: a PNG if no side exceeds 64 pixels, otherwise a JPEG,
/// downscaled if a side exceeds 96 pixels.
std::string thumbnail_uri(const imaging::Image& image);

/// A histogram in TensorBoard's form: `counts[i]` values are between limits[i - 1] and limits[i].
struct Histogram {
  double min = 0;
  double max = 0;
  double sum = 0;
  double sum_of_squares = 0;
  std::vector<double> limits;
  std::vector<double> counts;
};

/// All results of an epoch and its evaluation.
struct EpochResult {
  EpochRecord record{};
  bool is_repeated = false;  // an earlier start of the run already evaluated these weights
  TimeSplit seconds{};
  ClassCounts counts{};              // on the test images
  std::vector<double> accuracies{};  // on the test set, one per epoch so far
  std::vector<Prediction> predictions{};
  std::vector<std::pair<std::string, Histogram>> histograms{};  // of weights and gradients, by name
  std::vector<Prediction> mistakes{};                           // selected, without images
  std::function<imaging::Image(std::int64_t id)> test_image{};  // reads a test image
};

/// A start of a run: the first one, a restart after a lost process, or a resume.
struct RunStart {
  /// Numbers of images, their shape, and the number of classes.
  struct DatasetShape {
    std::int64_t train = 0;
    std::int64_t validation = 0;
    std::int64_t test = 0;
    std::int64_t channels = 0;
    std::int64_t height = 0;
    std::int64_t width = 0;
    std::int64_t classes = 0;

    MNIST_TRAIN_VISIT(train, validation, test, channels, height, width, classes)
  };

  std::string host;
  std::optional<std::string> resumed_from;  // checkpoint or "memory"; nullopt for a fresh start
  nlohmann::json changed;                   // {key: [old, new]}: see settings::config_changes
  std::int64_t epoch = 0;                   // finished epochs
  std::int64_t step = 0;
  std::int64_t samples_seen = 0;
  std::int64_t steps_per_epoch = 0;
  DatasetShape dataset;
  std::vector<std::string> class_names;  // by number; empty if the data has no names
  std::vector<std::int64_t> train_class_sizes, test_class_sizes;  // in images

  MNIST_TRAIN_VISIT(host, resumed_from, changed, epoch, step, samples_seen, steps_per_epoch)
};

/// The part of the summary that is known when a run starts.
struct RunIdentity {
  int world_size = 1;
  std::string launcher;
  std::string backend;
  std::string device;
  std::string device_model;  // of a GPU
  std::string precision;
  std::string gradient_averaging;
  std::string execution;  // "graph" or "eager"
  int threads_per_process = 1;
  std::int64_t parameters = 0;                // of the model
  std::optional<std::int64_t> multiply_adds;  // for one image, if the layers are known
  std::int64_t restarts = 0;
  OrderedJson versions = build_versions();
  std::string config_hash;
  std::string data_hash;

  MNIST_TRAIN_VISIT(world_size, launcher, backend, device, device_model, precision,
                    gradient_averaging, execution, threads_per_process, parameters, multiply_adds,
                    restarts, versions, config_hash, data_hash)

 private:
  static OrderedJson build_versions();
};

/// The content of `summary.json`. `visit` omits the first five members and validation accuracies.
struct Summary : RunIdentity {
  std::string status;    // "running", "finished", "stopped" (by a signal, resumable), "failed"
  std::string error;     // of a failed run
  std::string ended_by;  // config key that ended a finished run: "epochs"
  std::int64_t epochs = 0;
  std::int64_t steps = 0;
  double startup_seconds = 0;  // from the start of the attempt to its first step
  double train_seconds = 0;
  double test_seconds = 0;
  double wall_seconds = 0;        // of this command
  double checkpoint_seconds = 0;  // of this attempt
  double report_seconds = 0;      // of this attempt
  double samples_per_second = 0;
  std::optional<double> test_loss;
  std::optional<double> test_accuracy;
  std::optional<double> best_test_accuracy;  // of the best checkpoint
  std::optional<std::int64_t> best_epoch;
  std::optional<double> validation_accuracy;  // with a validation set only
  std::optional<double> best_validation_accuracy;
  std::int64_t samples_seen = 0;
  std::int64_t peak_memory_bytes = 0;  // of the process that uses the most

  MNIST_TRAIN_VISIT(startup_seconds, train_seconds, test_seconds, wall_seconds, checkpoint_seconds,
                    report_seconds, samples_per_second, test_loss, test_accuracy,
                    best_test_accuracy, best_epoch, samples_seen, peak_memory_bytes)
};

/// Changes a summary's status from "running" to "failed" or "stopped", for a run that could not do
/// so itself. Leaves any other status unchanged. Ignores errors, because it is more important to
/// report why the run ended.
void record_end(const fs::path& path, const std::string& status, const std::string& error = "");

/// Returns the number of steps if the summary's status is "finished".
std::optional<std::int64_t> finished_steps(const fs::path& path);

/// Atomically writes a JSON list of each epoch's test accuracy in [0,1]. Throws Error(kRunFailed).
void write_accuracies(const fs::path& path, const std::vector<double>& accuracies);

/// Returns the length of the list in an accuracies file, or 0 if there is none.
std::size_t count_accuracies(const fs::path& path);

/// Progress of a run.
struct StepPosition {
  std::int64_t epoch = 0;          // from 1
  std::int64_t step_in_epoch = 0;  // finished steps of the epoch
  std::int64_t step = 0;           // of the run
};

/// Receives the progress and results of a run, on rank 0 only. All methods, and the functions that
/// create sinks, may throw Error.
class Sink {
 public:
  virtual ~Sink() = default;

  /// The run starts or resumes.
  virtual void begin(const RunStart& /*start*/, const Summary& /*summary*/) {}
  /// Called after each step. Must be cheap.
  virtual void tick(const StepPosition& /*position*/) {}
  /// Called every `log_interval` steps.
  virtual void step(const StepRecord& /*record*/) {}
  /// An epoch is finished and evaluated.
  virtual void epoch(const EpochResult& /*result*/) {}
  /// Called from time to time to update the summary and the page.
  virtual void refresh(const Summary& /*summary*/) {}
  /// The run has finished or was stopped; see `summary.status`.
  virtual void end(const Summary& /*summary*/) {}

  /// Stores the length of the sink's append-only file, if it has one.
  virtual void add_position(LogPositions& /*positions*/) const {}

  /// Returns the name of the sink's output ("its report") if an error in the sink only causes a
  /// warning; null if it ends the run.
  virtual const char* optional_output() const { return nullptr; }
};

/// An append-only file of a run. Throws Error(kRunFailed) naming the file. Does not follow links.
class AppendFile {
 public:
  /// Opens or creates the file, and truncates it to at most `keep_bytes`.
  explicit AppendFile(fs::path path,
                      std::int64_t keep_bytes = std::numeric_limits<std::int64_t>::max());

  void truncate(std::int64_t bytes);
  /// Removes an incomplete last line.
  void truncate_to_line();
  /// Appends all content. If that fails, removes the written part, so that no record is incomplete.
  void append(std::string_view content);

  std::int64_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }

 private:
  fs::path path_;
  UniqueFd fd_;
  std::int64_t bytes_ = 0;
};

/// Keeps the records of a run up to date: `lineage.jsonl` (a line per start), `metrics.jsonl`,
/// `summary.json`, the list of test accuracies, and `predictions.jsonl` and `mistakes.jsonl` of the
/// last evaluation. README.md describes the keys. Truncates `metrics.jsonl` to `keep_metrics_bytes`
/// first, because a resumed run rewrites everything after its checkpoint. `mistakes.jsonl` contains
/// at most about two megabytes of images.
std::unique_ptr<Sink> record_files(const fs::path& run_folder, const fs::path& accuracies_file,
                                   std::int64_t keep_metrics_bytes);

/// Appends scalars and histograms to the run folder's newest event file of this program, after
/// truncating it at a record boundary to at most `keep_bytes`, or to a new file if there is none.
std::unique_ptr<Sink> tensorboard_sink(const fs::path& run_folder, std::int64_t keep_bytes);

/// Keeps `report.html` in the run folder up to date.
std::unique_ptr<Sink> page_sink(const fs::path& run_folder);

struct TerminalStyle {
  bool colours = false;
  bool redraws = false;  // lines can be redrawn in place
};

/// Derives the style from environment variables: no colours if NO_COLOR is set and not empty
/// (no-color.org); neither colours nor redrawing if TERM is "dumb".
TerminalStyle terminal_style();

/// Returns a number with thousands separators: "12,345".
std::string with_thousands(std::int64_t number);

/// Returns " of 3 (rare) to 1,200 (common) training images", or "" if `is_imbalanced` is false.
std::string class_sizes_text(const std::vector<std::int64_t>& sizes,
                             const std::vector<std::string>& class_names);

struct ConsoleSetup {
  bool quiet = false;
  bool is_terminal = false;     // draws a progress bar
  bool header_printed = false;  // an earlier attempt has printed the header of the epoch table
  TerminalStyle style;
  int fd = 2;
  std::int64_t epochs = 0;
  std::optional<std::int64_t> max_steps;
  settings::BestBy best_by = settings::BestBy::kAccuracy;
  bool has_class_weights = false;
};

/// Creates the sink that shows progress. When a run finishes, it warns about classes that were
/// never predicted in the last evaluation; if quiet, it does nothing else. On a terminal, it shows
/// a line with a progress bar and the remaining time, redrawn at most ten times a second, and a
/// table of epochs; both fit the terminal's current width, and a narrow terminal shows fewer
/// columns. Elsewhere, it prints plain lines.
std::unique_ptr<Sink> console_sink(const ConsoleSetup& setup);

// Run folders.

/// A run's folder. It is locked against other runs while `lock` is open in any process.
struct RunFolder {
  fs::path path;  // absolute
  UniqueFd lock;
  std::vector<fs::path> created;  // folders that had to be created, parents first
};

/// Returns whether a run has started in the folder.
bool holds_run(const fs::path& folder);

/// Returns the config of the run in the folder, or the default one if it cannot be read.
settings::RunConfig config_of(const fs::path& folder);

/// Returns the folder of the run that wrote `file`, if it must be kept: a config, record, log,
/// checkpoint or weights file. Returns nullopt for files that can be recreated, such as reports.
std::optional<fs::path> run_that_wrote(const fs::path& file);

/// Removes the records of a run that could not start, so that `holds_run` returns false again.
void remove_records(const fs::path& folder);

/// Removes the lock of a run that could not start, its logs if their folder is in `created`, and
/// the empty folders in `created`. A no-op if the folder contains a run.
void discard_run_folder(const fs::path& folder, const std::vector<fs::path>& created);

/// Finds or creates the run's folder: `output`, or by default `runs/<config name>/<start time>` in
/// the working directory. `resume` is "", "auto" or the path of a checkpoint; if `output` is not
/// set, "auto" selects the run to which `latest` points, and a path selects the checkpoint's run.
/// With `after_restart`, an existing run is continued if it belongs to the launch `launch_id`, or
/// in any case if `launch_id` is "". Throws Error(kCheckpoint) if the checkpoint does not exist;
/// Error(kConfig) if the folder contains a run that must not be continued, is in use by another
/// process, or cannot be written.
RunFolder prepare_run_folder(const settings::RunConfig& config, const std::string& config_name,
                             const std::string& resume, bool after_restart,
                             const std::string& launch_id = "");

/// Throws as `prepare_run_folder` would, except if the folder cannot be written. Creates nothing.
void check_run_folder(const settings::RunConfig& config, const std::string& config_name,
                      const std::string& resume);

/// Atomically points the link `latest` at a folder named after its start time. Called once the run
/// has started, so that a failed start does not hide the last good run. Ignores user-named folders.
void update_latest_link(const fs::path& folder);

/// File names in a run folder.
namespace files = settings::run_files;

// Pages.

/// Returns the report on the runs in these folders, as an HTML page. With `problems`, leaves out
/// runs that cannot be read, unless that is all, and adds their errors. Throws Error(kData).
std::string render_report(const std::vector<fs::path>& folders,
                          std::vector<std::string>* problems = nullptr);

/// Writes the final page of a run that could not do so itself. Ignores errors, because it is more
/// important to report why the run ended.
void write_last_page(const fs::path& folder);

// Results of other commands.

/// A parameter of a module, and how it is trained.
struct ParameterRow {
  std::string name;  // within the module: "weight"
  bool frozen = false;
  double learning_rate = 0;  // the schedule's maximum
  double weight_decay = 0;
};

ParameterRow parameter_row(const std::string& name, const settings::ParameterSettings& kind,
                           const settings::TrainOptions& options);

struct ModuleRow {
  std::string name;                  // prefix of its tensors in a state_dict: "layer1.0.conv1"
  std::string layer;                 // its type or class: "conv2d"
  std::vector<std::int64_t> output;  // for one image: [C,H,W] or [F]; empty if unknown
  std::int64_t parameters = 0;
  std::optional<std::int64_t> multiply_adds;  // for one image, if known
  bool is_container = false;                  // its counts are in the rows of its inner modules
  std::vector<ParameterRow> tensors{};        // its parameters, excluding those of inner modules
};

struct ModuleTable {
  std::vector<std::int64_t> input;  // one image: [C,H,W]
  std::vector<ModuleRow> rows;
  std::int64_t parameters = 0;
  std::optional<std::int64_t> multiply_adds;  // for one image, if known
};

/// Returns the table as text: the input, a line per module, and the totals.
std::string to_text(const ModuleTable& table);

/// Returns {"input", "modules", "parameters", "multiply_adds"}; unknown values are null. A module's
/// "tensors" contain "name", "frozen" and, if trained, "learning_rate" and "weight_decay".
nlohmann::ordered_json to_json(const ModuleTable& table);

/// Returns an image's prediction as {"file", "guess", "scores"}, with "class" after the guess if
/// all classes have names. `file`: the path as given; `scores`: at least one class probability.
nlohmann::ordered_json to_json(const std::string& file, const std::vector<float>& scores,
                               const std::vector<std::string>& class_names);

/// Returns one line: the file and the two most likely classes with their probabilities, by name if
/// all classes have names.
std::string to_text(const std::string& file, const std::vector<float>& scores,
                    const std::vector<std::string>& class_names);

/// Returns lines with the accuracies and the loss on the test set.
std::string to_text(const EvaluationMetrics& test);

/// Returns the metrics and `classes`: the name (or number, if unnamed), samples, precision, recall
/// and F1 of each class. As in scikit-learn, a metric is 0 if its denominator is 0.
nlohmann::ordered_json to_json(const EvaluationMetrics& test,
                               const std::vector<std::string>& class_names);

}  // namespace mnist_train::report
