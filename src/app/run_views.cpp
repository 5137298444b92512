#include "app/run_views.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "app/weight_histograms.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/version.h"
#include "report/page/page.h"
#include "report/predictions.h"
#include "report/run_folder.h"

namespace mnist_train::app {

namespace {

constexpr double kPageShare = 0.01;        // of the run's time, beyond
constexpr double kPageAllowance_s = 0.25;  // which lets short runs show every epoch
constexpr double kWithinEpoch_s = 20;      // between two pages
constexpr std::size_t kWrongImages = 8;    // in TensorBoard, an epoch

}  // namespace

RunViews::RunViews(const Worker& worker, const data::Dataset& dataset,
                   const train::Trainer& trainer, std::int64_t event_bytes)
    : worker_(worker),
      dataset_(dataset),
      trainer_(trainer),
      begin_s_(monotonic_seconds()),
      shown_s_(begin_s_ - kWithinEpoch_s) {
  if (worker.config.report.html) reader_.emplace(worker.run_folder);
  if (worker.config.report.tensorboard) begin_events(event_bytes);
}

void RunViews::begin_events(std::int64_t event_bytes) {
  attempt(warned_of_events_, "TensorBoard's events", [&] {
    events_.emplace(worker_.run_folder, event_bytes);
    if (!events_->is_new()) return;
    const BuildInfo& build = build_info();
    events_->write_text(0, "config",
                        "```json\n" + settings::write_run_config(worker_.config, false) + "```\n");
    events_->write_text(
        0, "versions",
        fmt::format("mnist-train {} {}, LibTorch {}", build.version, build.commit, build.torch));
  });
}

void RunViews::step(const report::StepRecord& record) {
  if (events_) {
    attempt(warned_of_events_, "TensorBoard's events", [&] { events_->write(record); });
  }
  if (monotonic_seconds() - shown_s_ >= kWithinEpoch_s) show();
}

void RunViews::epoch(const report::EpochRecord& record, const eval::Evaluation& test) {
  const double begin_s = monotonic_seconds();
  write_predictions(test);
  seconds_ += monotonic_seconds() - begin_s;
  if (!events_) return;
  attempt(warned_of_events_, "TensorBoard's events", [&] {
    events_->write(record);
    write_wrong_images(record.step, test);
    if (worker_.config.report.histograms) write_histograms(*events_, trainer_);
  });
}

bool RunViews::show() {
  const double budget_s = kPageShare * (monotonic_seconds() - begin_s_) + kPageAllowance_s;
  if (page_seconds_ > budget_s) return false;
  write_page(/*live=*/true);
  return true;
}

void RunViews::show_end() { write_page(/*live=*/false); }

void RunViews::write_page(bool live) {
  if (!reader_) return;
  const double before_s = seconds_;
  attempt(warned_of_page_, "its page", [&] {
    report::RunFiles& run = reader_->read();
    run.live = live;
    write_file_atomically(worker_.run_folder / report::files::kPage, report::make_page({&run, 1}),
                          ExitCode::kRunFailed);
  });
  page_seconds_ += seconds_ - before_s;
  shown_s_ = monotonic_seconds();
}

void RunViews::attempt(bool& warned, const char* what, const std::function<void()>& write) {
  const double begin_s = monotonic_seconds();
  try {
    write();
  } catch (const Error& error) {
    if (!warned) spdlog::warn("{}; the run goes on without {}", error.what(), what);
    warned = true;
  }
  seconds_ += monotonic_seconds() - begin_s;
}

double RunViews::take_seconds() { return std::exchange(seconds_, 0); }

void RunViews::write_predictions(const eval::Evaluation& test) {
  if (test.predictions.empty()) return;
  const data::ImageSet& set = dataset_.test;
  std::vector<report::Prediction> rows;
  for (const eval::SamplePrediction& prediction : test.predictions) {
    if (images_.size() == rows.size()) {
      images_.push_back(report::image_uri(set.image(prediction.sample).data(), set.channels,
                                          set.height, set.width));
    }
    rows.push_back({prediction.sample, images_[rows.size()], prediction.predicted_class,
                    set.labels[static_cast<std::size_t>(prediction.sample)], prediction.scores});
  }
  report::write_predictions(worker_.run_folder / report::files::kPredictions, rows,
                            dataset_.class_names);
}

/// The surest of the wrong predictions, as images and in words.
void RunViews::write_wrong_images(std::int64_t step, const eval::Evaluation& test) {
  const data::ImageSet& set = dataset_.test;
  const auto truth = [&](const eval::SamplePrediction& prediction) -> std::int64_t {
    return set.labels[static_cast<std::size_t>(prediction.sample)];
  };
  const auto name = [&](std::int64_t label) {
    return dataset_.class_names.empty() ? std::to_string(label)
                                        : dataset_.class_names[static_cast<std::size_t>(label)];
  };
  std::vector<const eval::SamplePrediction*> wrong;
  for (const eval::SamplePrediction& prediction : test.predictions) {
    if (prediction.predicted_class != truth(prediction)) wrong.push_back(&prediction);
  }
  std::stable_sort(wrong.begin(), wrong.end(), [](auto* left, auto* right) {
    return left->confidence() > right->confidence();
  });
  std::string table = "| image | sample | truth | guess | sure |\n|---|---|---|---|---|\n";
  for (std::size_t i = 0; i < std::min(wrong.size(), kWrongImages); ++i) {
    const eval::SamplePrediction& prediction = *wrong[i];
    const std::vector<std::uint8_t> pixels = set.image(prediction.sample);
    events_->write_image(step, fmt::format("wrong/{}", i + 1),
                         report::image_png(pixels.data(), set.channels, set.height, set.width),
                         set.height, set.width, set.channels == 3 ? 3 : 1);
    table += fmt::format("| {} | {} | {} | {} | {:.1f} % |\n", i + 1, prediction.sample,
                         name(truth(prediction)), name(prediction.predicted_class),
                         100 * prediction.confidence());
  }
  if (!wrong.empty()) events_->write_text(step, "wrong", table);
}

}  // namespace mnist_train::app
