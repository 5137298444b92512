#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace mnist_train::report {

/// A number that was not measured, or that a run of an older program did not record.
inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

// The records of metrics.jsonl. `visit` calls `field(key, member)` for each member in the order of
// the file. Writing turns NaN into null and omits an empty optional; reading leaves a member that
// is missing or null at its default.

/// A line with "event": "step", written every `log_interval` steps.
struct StepRecord {
  std::int64_t epoch = 0;  // from 1
  std::int64_t step = 0;   // of the run, from 1
  double loss = kUnknown;  // mean over the global batch
  double learning_rate = kUnknown;
  double samples_per_second = kUnknown;  // since the previous record
  double accuracy = kUnknown;            // of the global batch, before the update
  double time = kUnknown;                // seconds since 1970, set on writing

  template <class Record, class Field>
  static void visit(Record& record, const Field& field) {
    field("epoch", record.epoch);
    field("step", record.step);
    field("loss", record.loss);
    field("learning_rate", record.learning_rate);
    field("samples_per_second", record.samples_per_second);
    field("accuracy", record.accuracy);
    field("time", record.time);
  }
};

/// The figures of a line with "event": "epoch".
struct EpochRecord {
  std::int64_t epoch = 0;  // from 1
  std::int64_t step = 0;
  double train_loss = kUnknown;  // mean over the epoch's samples, each before its update
  double train_accuracy = kUnknown;
  double test_loss = kUnknown;
  double test_accuracy = kUnknown;
  double train_seconds = 0;
  double test_seconds = 0;
  double samples_per_second = kUnknown;
  double time = kUnknown;                   // seconds since 1970, set on writing
  std::optional<double> validation_loss{};  // with a validation set only
  std::optional<double> validation_accuracy{};

  template <class Record, class Field>
  static void visit(Record& record, const Field& field) {
    field("epoch", record.epoch);
    field("step", record.step);
    field("train_loss", record.train_loss);
    field("train_accuracy", record.train_accuracy);
    field("test_loss", record.test_loss);
    field("test_accuracy", record.test_accuracy);
    field("train_seconds", record.train_seconds);
    field("test_seconds", record.test_seconds);
    field("samples_per_second", record.samples_per_second);
    field("time", record.time);
    field("validation_loss", record.validation_loss);
    field("validation_accuracy", record.validation_accuracy);
  }
};

/// How rank 0 spent the seconds since the previous epoch record. The first three are unknown on a
/// GPU, which overlaps them.
struct TimeSplit {
  double input_s = kUnknown;
  double compute_s = kUnknown;
  double communication_s = kUnknown;  // includes waiting for other ranks
  double evaluation_s = 0;
  double checkpoint_s = 0;  // waiting for checkpoints, mostly that of the previous epoch
  double report_s = 0;      // writing to the sinks

  template <class Record, class Field>
  static void visit(Record& record, const Field& field) {
    field("input", record.input_s);
    field("compute", record.compute_s);
    field("communication", record.communication_s);
    field("evaluation", record.evaluation_s);
    field("checkpoint", record.checkpoint_s);
    field("report", record.report_s);
  }
};

/// Step times of one rank in one epoch.
struct RankTimes {
  std::int64_t rank = 0;
  std::int64_t steps = 0;
  double input_s = 0;  // this and the next two as in TimeSplit
  double compute_s = 0;
  double communication_s = 0;
  double median_step_s = 0;
  double p95_step_s = 0;
  double longest_step_s = 0;

  template <class Record, class Field>
  static void visit(Record& record, const Field& field) {
    field("rank", record.rank);
    field("steps", record.steps);
    field("input", record.input_s);
    field("compute", record.compute_s);
    field("communication", record.communication_s);
    field("median_step", record.median_step_s);
    field("p95_step", record.p95_step_s);
    field("longest_step", record.longest_step_s);
  }
};

/// The rest of an epoch's line.
struct EpochDetails {
  TimeSplit seconds;
  std::vector<RankTimes> ranks;  // measured ranks only
  std::int64_t classes = 0;
  std::vector<std::int64_t> confusion;  // [classes, classes]: test images by truth, by prediction
};

/// The prediction for one test image: a line of predictions.jsonl.
struct Prediction {
  std::int64_t id = 0;     // position in the test set
  std::string image;       // a PNG as data: URI
  std::int64_t guess = 0;  // the predicted class
  std::int64_t truth = 0;
  std::vector<double> scores;  // probabilities by class

  double confidence() const { return scores[static_cast<std::size_t>(guess)]; }
};

/// A misclassified test image: a line of mistakes.jsonl.
struct Mistake {
  std::int64_t id = 0;     // position in the test set
  std::int64_t guess = 0;  // the predicted class
  std::int64_t truth = 0;
  double confidence = 0;   // probability of the predicted class
  std::string image = {};  // a PNG or JPEG as data: URI; may be empty
};

/// Maximum number of mistakes that a run keeps of an evaluation.
inline constexpr std::size_t kMostMistakes = 240;

/// Chooses at most `most` mistakes such that rare kinds (pairs of true and predicted class) are
/// represented: the most confident one of each kind, frequent kinds first, then the second of each
/// kind, and so on.
std::vector<Mistake> choose_mistakes(std::vector<Mistake> all, std::size_t most = kMostMistakes);

/// An image as a PNG file.
struct Picture {
  std::string png;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t channels = 1;  // 1 or 3
};

/// Encodes an image [channels, height, width] u8 as PNG. Of an image with neither 1 nor 3 channels
/// only the first channel is encoded.
Picture make_picture(const std::uint8_t* pixels, std::int64_t channels, std::int64_t height,
                     std::int64_t width);

/// Returns an image [channels, height, width] u8 as a small data: URI: a PNG if no side exceeds 64
/// pixels, else a reduced JPEG.
std::string thumbnail_uri(const std::uint8_t* pixels, std::int64_t channels, std::int64_t height,
                          std::int64_t width);

/// Returns the picture as "data:image/png;base64,…".
std::string image_uri(const Picture& picture);

/// A histogram in TensorBoard's form: `counts[i]` values are in (limits[i - 1], limits[i]].
struct Histogram {
  double least = 0;
  double greatest = 0;
  double sum = 0;
  double sum_of_squares = 0;
  std::vector<double> limits;
  std::vector<double> counts;
};

/// All results of an epoch and its evaluation.
struct EpochResult {
  EpochRecord record{};
  bool is_repeated = false;  // an earlier start of the run has already evaluated these weights
  EpochDetails details{};
  std::vector<double> accuracies{};  // on the test set, one per epoch so far
  std::vector<Prediction> predictions{};
  std::vector<std::pair<std::string, Histogram>> histograms{};  // of weights and gradients, by name
  std::function<Picture(std::int64_t id)> test_picture{};       // encodes a test image
  std::vector<Mistake> mistakes{};                              // chosen, without images
  std::function<std::string(std::int64_t id)> thumbnail{};      // data: URI of a test image
};

}  // namespace mnist_train::report
