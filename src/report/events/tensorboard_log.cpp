#include "report/events/tensorboard_log.h"

#include <protozero/pbf_writer.hpp>

#include "base/system.h"

namespace mnist_train::report {

namespace {

using protozero::pbf_writer;

// Field numbers.
enum Event : protozero::pbf_tag_type { kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5 };
enum Summary : protozero::pbf_tag_type { kValue = 1 };
enum Value : protozero::pbf_tag_type {
  kTag = 1,
  kSimpleValue = 2,
  kImage = 4,
  kHistogram = 5,
  kTensor = 8,
  kMetadata = 9
};
enum Image : protozero::pbf_tag_type { kHeight = 1, kWidth = 2, kColorspace = 3, kEncoded = 4 };
enum HistogramField : protozero::pbf_tag_type {
  kMin = 1,
  kMax = 2,
  kNum = 3,
  kSum = 4,
  kSumSquares = 5,
  kBucketLimit = 6,
  kBucket = 7
};
enum Tensor : protozero::pbf_tag_type { kType = 1, kShape = 2, kStringValue = 8 };
constexpr std::int32_t kTypeString = 7;  // DT_STRING

std::string version_event() {
  std::string event;
  pbf_writer writer(event);
  writer.add_double(kWallTime, wall_clock_seconds());
  writer.add_string(kFileVersion, "brain.Event:2");
  return event;
}

}  // namespace

TensorboardLog::TensorboardLog(const std::filesystem::path& folder, std::int64_t keep_bytes)
    : file_(folder, keep_bytes) {
  if (file_.bytes() > 0) return;
  file_.append(version_event());
  first_bytes_ = file_.bytes();
}

void TensorboardLog::write(const StepRecord& record) {
  write_scalars(record.step, {{"step/loss", record.loss},
                              {"step/accuracy", record.accuracy},
                              {"step/learning_rate", record.learning_rate},
                              {"step/samples_per_second", record.samples_per_second}});
}

void TensorboardLog::write(const EpochRecord& record) {
  std::vector<Scalar> scalars{
      {"loss/train", record.train_loss},         {"loss/test", record.test_loss},
      {"accuracy/train", record.train_accuracy}, {"accuracy/test", record.test_accuracy},
      {"seconds/train", record.train_seconds},   {"seconds/test", record.test_seconds}};
  if (record.validation_loss) scalars.push_back({"loss/validation", *record.validation_loss});
  if (record.validation_accuracy) {
    scalars.push_back({"accuracy/validation", *record.validation_accuracy});
  }
  write_scalars(record.step, scalars);
}

void TensorboardLog::write_scalars(std::int64_t step, const std::vector<Scalar>& scalars) {
  std::string summary;
  pbf_writer writer(summary);
  for (const Scalar& scalar : scalars) {
    pbf_writer value(writer, kValue);
    value.add_string(kTag, scalar.tag);
    value.add_float(kSimpleValue, static_cast<float>(scalar.value));
  }
  write_summary(step, summary);
}

void TensorboardLog::write_text(std::int64_t step, const std::string& tag,
                                const std::string& text) {
  std::string summary;
  pbf_writer writer(summary);
  {
    pbf_writer value(writer, kValue);
    value.add_string(kTag, tag);
    {
      pbf_writer tensor(value, kTensor);
      tensor.add_enum(kType, kTypeString);
      {
        pbf_writer shape(tensor, kShape);
        pbf_writer dimension(shape, 2);
        dimension.add_int64(1, 1);
      }
      tensor.add_bytes(kStringValue, text);
    }
    pbf_writer metadata(value, kMetadata);
    pbf_writer plugin(metadata, 1);
    plugin.add_string(1, "text");
  }
  write_summary(step, summary);
}

void TensorboardLog::write_image(std::int64_t step, const std::string& tag, const std::string& png,
                                 std::int64_t height, std::int64_t width, std::int64_t channels) {
  std::string summary;
  pbf_writer writer(summary);
  {
    pbf_writer value(writer, kValue);
    value.add_string(kTag, tag);
    pbf_writer image(value, kImage);
    image.add_int32(kHeight, static_cast<std::int32_t>(height));
    image.add_int32(kWidth, static_cast<std::int32_t>(width));
    image.add_int32(kColorspace, static_cast<std::int32_t>(channels));
    image.add_bytes(kEncoded, png);
  }
  write_summary(step, summary);
}

void TensorboardLog::write_histogram(std::int64_t step, const std::string& tag,
                                     const Histogram& histogram) {
  double count = 0;
  for (const double number : histogram.counts) count += number;
  std::string summary;
  pbf_writer writer(summary);
  {
    pbf_writer value(writer, kValue);
    value.add_string(kTag, tag);
    pbf_writer message(value, kHistogram);
    message.add_double(kMin, histogram.least);
    message.add_double(kMax, histogram.greatest);
    message.add_double(kNum, count);
    message.add_double(kSum, histogram.sum);
    message.add_double(kSumSquares, histogram.sum_of_squares);
    message.add_packed_double(kBucketLimit, histogram.limits.begin(), histogram.limits.end());
    message.add_packed_double(kBucket, histogram.counts.begin(), histogram.counts.end());
  }
  write_summary(step, summary);
}

void TensorboardLog::write_summary(std::int64_t step, const std::string& summary) {
  std::string event;
  pbf_writer writer(event);
  writer.add_double(kWallTime, wall_clock_seconds());
  writer.add_int64(kStep, step);
  writer.add_message(kSummary, summary);
  file_.append(event);
}

}  // namespace mnist_train::report
