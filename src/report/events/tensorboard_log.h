#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "report/events/event_file.h"
#include "report/metrics_log.h"

namespace mnist_train::report {

/// How often values lie where. `counts[i]` of them lie above `limits[i - 1]` and up to `limits[i]`.
struct Histogram {
  double least = 0;
  double greatest = 0;
  double sum = 0;
  double sum_of_squares = 0;
  std::vector<double> limits;
  std::vector<double> counts;
};

/// `events.out.tfevents.*`: what a run shows in TensorBoard. The messages are those of
/// tensorflow/core/util/event.proto and framework/summary.proto, written field by field, since
/// libprotobuf must not be linked beside LibTorch, which carries its own.
class TensorboardLog {
 public:
  /// As EventFile. A file that begins gets TensorFlow's version record.
  TensorboardLog(const std::filesystem::path& folder, std::int64_t keep_bytes);

  void write(const StepRecord& record);
  void write(const EpochRecord& record);
  /// Markdown.
  void write_text(std::int64_t step, const std::string& tag, const std::string& text);
  void write_image(std::int64_t step, const std::string& tag, const std::string& png,
                   std::int64_t height, std::int64_t width, std::int64_t channels);
  void write_histogram(std::int64_t step, const std::string& tag, const Histogram& histogram);

  /// Whether nothing of a run is in it so far.
  bool is_new() const { return file_.bytes() == first_bytes_; }
  std::int64_t bytes() const { return file_.bytes(); }

 private:
  struct Scalar {
    const char* tag;
    double value;
  };
  void write_scalars(std::int64_t step, const std::vector<Scalar>& scalars);
  void write_summary(std::int64_t step, const std::string& summary);

  EventFile file_;
  std::int64_t first_bytes_ = 0;  // of the version record
};

}  // namespace mnist_train::report
