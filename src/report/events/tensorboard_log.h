#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "report/events/event_file.h"
#include "report/sink.h"

namespace mnist_train::report {

/// `events.out.tfevents.*`: what a run shows in TensorBoard. The messages are those of
/// tensorflow/core/util/event.proto and framework/summary.proto, written field by field, since
/// libprotobuf must not be linked beside LibTorch, which carries its own.
class TensorboardLog : public Sink {
 public:
  /// Opens the file as EventFile does. One that begins gets TensorFlow's version record, and when
  /// the run begins `config` (JSON) and the versions as texts.
  TensorboardLog(const std::filesystem::path& folder, std::int64_t keep_bytes, std::string config);

  void begin(const RunStart& start, const Summary& summary) override;
  void step(const StepRecord& record) override;
  void epoch(const EpochResult& result) override;
  void add_position(LogPositions& positions) const override {
    positions.event_bytes = file_.bytes();
  }

 private:
  struct Scalar {
    const char* tag;
    double value;
  };
  void write_scalars(std::int64_t step, const std::vector<Scalar>& scalars);
  void write_text(std::int64_t step, const std::string& tag, const std::string& markdown);
  void write_picture(std::int64_t step, const std::string& tag, const Picture& picture);
  void write_histogram(std::int64_t step, const std::string& tag, const Histogram& histogram);
  void write_wrong_pictures(const EpochResult& result);
  std::string class_name(std::int64_t label) const;
  void write_summary(std::int64_t step, const std::string& summary);

  EventFile file_;
  std::string config_;
  std::vector<std::string> class_names_;
  std::int64_t first_bytes_ = 0;  // of the version record
};

}  // namespace mnist_train::report
