#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "report/mistakes.h"
#include "report/picture.h"

namespace mnist_train::report {

/// What is recorded every `log_interval` steps: a line of metrics.jsonl with "event": "step".
struct StepRecord {
  std::int64_t epoch = 0;  // from 1
  std::int64_t step = 0;   // of the run, from 1
  double loss = 0;         // mean over the global batch
  double learning_rate = 0;
  double samples_per_second = 0;  // since the record before
  double accuracy = 0;            // of the global batch, before the update
};

/// The numbers of an epoch, in the line of metrics.jsonl with "event": "epoch".
struct EpochRecord {
  std::int64_t epoch = 0;  // from 1
  std::int64_t step = 0;
  double train_loss = 0;  // mean over the epoch's samples, each before its update
  double train_accuracy = 0;
  double test_loss = 0;
  double test_accuracy = 0;
  double train_seconds = 0;
  double test_seconds = 0;
  double samples_per_second = 0;
  std::optional<double> validation_loss;  // where samples are held out
  std::optional<double> validation_accuracy;
};

/// Where the seconds since the epoch record before went, on rank 0. The first three are not
/// measured on a GPU, which does all of them at the same time, behind the host's back.
struct TimeSplit {
  std::optional<double> input_s;
  std::optional<double> compute_s;
  std::optional<double> communication_s;  // waiting for other ranks included
  double evaluation_s = 0;
  double checkpoint_s = 0;  // waiting for checkpoints: mostly that of the epoch before
  double report_s = 0;      // writing to the sinks
};

/// How long the steps of one rank took in one epoch.
struct RankTimes {
  std::int64_t rank = 0;
  std::int64_t steps = 0;
  double input_s = 0;  // this and the next two as in TimeSplit
  double compute_s = 0;
  double communication_s = 0;
  double median_step_s = 0;
  double p95_step_s = 0;
  double longest_step_s = 0;
};

/// What a line of metrics.jsonl says of an epoch beside its numbers.
struct EpochDetails {
  TimeSplit seconds;
  std::vector<RankTimes> ranks;  // those that were measured
  std::int64_t classes = 0;
  std::vector<std::int64_t> confusion;  // [classes, classes]: test images by truth, by prediction
};

/// What a model predicts for one test image: a line of predictions.jsonl.
struct Prediction {
  std::int64_t id = 0;     // place in the test set
  std::string image;       // a data: URI with a PNG, which browsers and Python read alike
  std::int64_t guess = 0;  // the predicted class
  std::int64_t truth = 0;
  std::vector<double> scores;  // probabilities by class

  double confidence() const { return scores[static_cast<std::size_t>(guess)]; }
};

/// How often values lie where: `counts[i]` of them lie above `limits[i - 1]` and up to `limits[i]`.
struct Histogram {
  double least = 0;
  double greatest = 0;
  double sum = 0;
  double sum_of_squares = 0;
  std::vector<double> limits;
  std::vector<double> counts;
};

/// All that an epoch and its evaluation gave.
struct EpochResult {
  EpochRecord record{};
  bool is_repeated = false;  // an earlier start of the run has evaluated these weights already
  EpochDetails details{};
  std::vector<double> accuracies{};  // on the test set, of every epoch so far
  std::vector<Prediction> predictions{};
  std::vector<std::pair<std::string, Histogram>> histograms{};  // of weights and gradients, by name
  std::function<Picture(std::int64_t id)> test_picture{};       // of a test image
  std::vector<Mistake> mistakes{};                              // the chosen ones, no pictures
  std::function<std::string(std::int64_t id)> thumbnail{};      // of a test image, a data: URI
};

}  // namespace mnist_train::report
