#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <numeric>
#include <protozero/pbf_writer.hpp>
#include <utility>

#include "base/system.h"
#include "base/version.h"
#include "report/events/event_file.h"
#include "report/sink.h"

namespace mnist_train::report {

namespace {

using protozero::pbf_writer;
using FieldNumber = protozero::pbf_tag_type;

// The messages are those of tensorflow/core/util/event.proto and framework/summary.proto, written
// field by field, since libprotobuf must not be linked beside LibTorch, which carries its own.
// Their field numbers:
enum EventField : FieldNumber { kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5 };
enum SummaryField : FieldNumber { kValue = 1 };
enum ValueField : FieldNumber {
  kTag = 1,
  kSimpleValue = 2,
  kImage = 4,
  kHistogram = 5,
  kTensor = 8,
  kMetadata = 9
};
enum ImageField : FieldNumber { kHeight = 1, kWidth = 2, kColorspace = 3, kEncoded = 4 };
enum HistogramField : FieldNumber {
  kMin = 1,
  kMax = 2,
  kNum = 3,
  kSum = 4,
  kSumSquares = 5,
  kBucketLimit = 6,
  kBucket = 7
};
enum TensorField : FieldNumber { kType = 1, kShape = 2, kStringValue = 8 };
constexpr std::int32_t kTypeString = 7;        // DT_STRING
constexpr std::size_t kMostWrongPictures = 8;  // an epoch

class TensorboardLog : public Sink {
 public:
  TensorboardLog(const std::filesystem::path& folder, std::int64_t keep_bytes, std::string config)
      : file_(folder, keep_bytes), config_(std::move(config)) {
    if (file_.bytes() > 0) return;
    write_event([](pbf_writer& event) { event.add_string(kFileVersion, "brain.Event:2"); });
    first_bytes_ = file_.bytes();
  }

  void begin(const RunStart& start, const Summary& /*summary*/) override {
    class_names_ = start.class_names;
    if (file_.bytes() != first_bytes_) return;  // the run resumes
    const BuildInfo& build = build_info();
    write_text(0, "config", "```json\n" + config_ + "```\n");
    write_text(
        0, "versions",
        fmt::format("mnist-train {} {}, LibTorch {}", build.version, build.commit, build.torch));
  }

  void step(const StepRecord& record) override {
    write_scalars(record.step, {{"step/loss", record.loss},
                                {"step/accuracy", record.accuracy},
                                {"step/learning_rate", record.learning_rate},
                                {"step/samples_per_second", record.samples_per_second}});
  }

  void epoch(const EpochResult& result) override {
    if (result.is_repeated) return;
    const EpochRecord& record = result.record;
    Scalars scalars{
        {"loss/train", record.train_loss},         {"loss/test", record.test_loss},
        {"accuracy/train", record.train_accuracy}, {"accuracy/test", record.test_accuracy},
        {"seconds/train", record.train_seconds},   {"seconds/test", record.test_seconds}};
    if (record.validation_loss) scalars.emplace_back("loss/validation", *record.validation_loss);
    if (record.validation_accuracy) {
      scalars.emplace_back("accuracy/validation", *record.validation_accuracy);
    }
    write_scalars(record.step, scalars);
    write_wrong_pictures(result);
    for (const auto& [name, histogram] : result.histograms) {
      write_histogram(record.step, name, histogram);
    }
  }

  void add_position(LogPositions& positions) const override {
    positions.event_bytes = file_.bytes();
  }

 private:
  using Scalars = std::vector<std::pair<const char*, double>>;

  std::string class_name(std::int64_t label) const {
    return class_names_.empty() ? std::to_string(label)
                                : class_names_[static_cast<std::size_t>(label)];
  }

  /// The wrong predictions of highest confidence, as pictures and as a table.
  void write_wrong_pictures(const EpochResult& result) {
    std::vector<const Prediction*> wrong;
    for (const Prediction& prediction : result.predictions) {
      if (prediction.guess != prediction.truth) wrong.push_back(&prediction);
    }
    if (wrong.empty()) return;
    std::stable_sort(wrong.begin(), wrong.end(), [](auto* left, auto* right) {
      return left->confidence() > right->confidence();
    });
    std::string table =
        "| image | sample | truth | prediction | confidence |\n|---|---|---|---|---|\n";
    for (std::size_t i = 0; i < std::min(wrong.size(), kMostWrongPictures); ++i) {
      const Prediction& prediction = *wrong[i];
      write_picture(result.record.step, fmt::format("wrong/{}", i + 1),
                    result.test_picture(prediction.id));
      table += fmt::format("| {} | {} | {} | {} | {:.1f} % |\n", i + 1, prediction.id,
                           class_name(prediction.truth), class_name(prediction.guess),
                           100 * prediction.confidence());
    }
    write_text(result.record.step, "wrong", table);
  }

  void write_scalars(std::int64_t step, const Scalars& scalars) {
    write_summary(step, [&](pbf_writer& summary) {
      for (const auto& [tag, number] : scalars) {
        pbf_writer value(summary, kValue);
        value.add_string(kTag, tag);
        value.add_float(kSimpleValue, static_cast<float>(number));
      }
    });
  }

  void write_text(std::int64_t step, const std::string& tag, const std::string& markdown) {
    write_value(step, tag, [&](pbf_writer& value) {
      {
        pbf_writer tensor(value, kTensor);
        tensor.add_enum(kType, kTypeString);
        {
          pbf_writer shape(tensor, kShape);
          pbf_writer dimension(shape, 2);
          dimension.add_int64(1, 1);
        }
        tensor.add_bytes(kStringValue, markdown);
      }
      pbf_writer metadata(value, kMetadata);
      pbf_writer plugin(metadata, 1);
      plugin.add_string(1, "text");
    });
  }

  void write_picture(std::int64_t step, const std::string& tag, const Picture& picture) {
    write_value(step, tag, [&](pbf_writer& value) {
      pbf_writer image(value, kImage);
      image.add_int32(kHeight, static_cast<std::int32_t>(picture.height));
      image.add_int32(kWidth, static_cast<std::int32_t>(picture.width));
      image.add_int32(kColorspace, static_cast<std::int32_t>(picture.channels));
      image.add_bytes(kEncoded, picture.png);
    });
  }

  void write_histogram(std::int64_t step, const std::string& tag, const Histogram& histogram) {
    write_value(step, tag, [&](pbf_writer& value) {
      pbf_writer message(value, kHistogram);
      message.add_double(kMin, histogram.least);
      message.add_double(kMax, histogram.greatest);
      message.add_double(kNum,
                         std::accumulate(histogram.counts.begin(), histogram.counts.end(), 0.0));
      message.add_double(kSum, histogram.sum);
      message.add_double(kSumSquares, histogram.sum_of_squares);
      message.add_packed_double(kBucketLimit, histogram.limits.begin(), histogram.limits.end());
      message.add_packed_double(kBucket, histogram.counts.begin(), histogram.counts.end());
    });
  }

  template <class Fill>
  void write_value(std::int64_t step, const std::string& tag, const Fill& fill) {
    write_summary(step, [&](pbf_writer& summary) {
      pbf_writer value(summary, kValue);
      value.add_string(kTag, tag);
      fill(value);
    });
  }

  template <class Fill>
  void write_summary(std::int64_t step, const Fill& fill) {
    write_event([&](pbf_writer& event) {
      event.add_int64(kStep, step);
      pbf_writer summary(event, kSummary);
      fill(summary);
    });
  }

  template <class Fill>
  void write_event(const Fill& fill) {
    std::string message;
    pbf_writer event(message);
    event.add_double(kWallTime, wall_clock_seconds());
    fill(event);
    file_.append(message);
  }

  EventFile file_;
  std::string config_;
  std::vector<std::string> class_names_;
  std::int64_t first_bytes_ = 0;  // of the version record
};

}  // namespace

std::unique_ptr<Sink> tensorboard_sink(const std::filesystem::path& run_folder,
                                       std::int64_t keep_bytes, const std::string& config) {
  return std::make_unique<TensorboardLog>(run_folder, keep_bytes, config);
}

}  // namespace mnist_train::report
