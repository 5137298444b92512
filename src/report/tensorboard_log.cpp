#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <bit>
#include <numeric>
#include <protozero/pbf_writer.hpp>

#include "base/system.h"
#include "report/records.h"

namespace mnist_train::report {

namespace {

constexpr std::int64_t kHeaderBytes = 12;  // length and its checksum
constexpr std::int64_t kFooterBytes = 4;
constexpr std::uint32_t kReversedPolynomial = 0x82f63b78;  // of CRC-32C

/// Appends a number in little-endian order, the native byte order of x86-64 and arm64.
template <class Number>
void append_number(std::string& text, Number number) {
  static_assert(std::endian::native == std::endian::little);
  text.append(reinterpret_cast<const char*>(&number), sizeof number);
}

/// Returns the masked CRC-32C (Castagnoli, RFC 3720) of part of a record. TFRecord files mask it,
/// because the plain CRC of data that contains CRCs is unreliable.
std::uint32_t masked_crc(std::string_view bytes) {
  std::uint32_t crc = ~std::uint32_t{0};
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? kReversedPolynomial : 0);
  }
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xa282ead8U;
}

/// Returns the newest event file of this program in a folder or, if there is none, a name for a new
/// one in the form that TensorBoard expects. Names sort by time.
fs::path events_path(const fs::path& folder) {
  constexpr const char* kOwn = ".mnist-train";
  fs::path path;
  for (const fs::path& each : paths_in(folder)) {
    const std::string name = each.filename().string();
    if (name.starts_with(files::kEvents) && name.ends_with(kOwn)) path = each;
  }
  if (!path.empty()) return path;
  return folder /
         fmt::format("{}{:010.0f}.{}{}", files::kEvents, wall_clock_seconds(), host_name(), kOwn);
}

/// Opens a TFRecord file (tensorflow/core/lib/io/record_writer.cc) and truncates it at a record
/// boundary. A record consists of a length, its checksum, the content and its checksum.
AppendFile open_events(const fs::path& folder, std::int64_t keep_bytes) {
  AppendFile file(events_path(folder), keep_bytes);
  std::int64_t end = 0;
  while (file.bytes() - end >= kHeaderBytes + kFooterBytes) {
    std::uint64_t content = 0;
    if (::pread(file.fd(), &content, sizeof content, end) != sizeof content) break;
    const std::int64_t space = file.bytes() - end - kHeaderBytes - kFooterBytes;
    if (content > static_cast<std::uint64_t>(space)) break;
    end += kHeaderBytes + static_cast<std::int64_t>(content) + kFooterBytes;
  }
  file.truncate(end);
  return file;
}

using protozero::pbf_writer;

// Field numbers are from tensorflow/core/util/event.proto and framework/summary.proto. protozero
// encodes the messages, because LibTorch contains a libprotobuf that would clash with another.
class TensorboardLog : public Sink {
 public:
  TensorboardLog(fs::path folder, std::int64_t keep_bytes)
      : folder_(std::move(folder)), keep_bytes_(keep_bytes) {}

  const char* optional_output() const override { return "TensorBoard's events"; }

  void begin(const RunStart& /*start*/, const Summary& /*summary*/) override {
    file_ = open_events(folder_, keep_bytes_);
    if (file_->bytes() > 0) return;  // the run resumes
    write_event([](pbf_writer& event) { event.add_string(/*file_version*/ 3, "brain.Event:2"); });
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
    Scalars scalars;
    EpochRecord::visit(record, [&](const std::string& key, std::optional<double> figure) {
      for (const std::string set : {"train", "test", "validation"}) {  // tags: "loss/test"
        if (!figure || !key.starts_with(set + "_")) continue;
        scalars.emplace_back(key.substr(set.size() + 1) + "/" + set, *figure);
      }
    });
    write_scalars(record.step, scalars);
    for (const auto& [name, histogram] : result.histograms) {
      write_histogram(record.step, name, histogram);
    }
  }

  void add_position(LogPositions& positions) const override {
    if (file_) positions.event_bytes = file_->bytes();
  }

 private:
  using Scalars = std::vector<std::pair<std::string, double>>;

  void write_scalars(std::int64_t step, const Scalars& scalars) {
    write_summary(step, [&](pbf_writer& summary) {
      for (const auto& [tag, number] : scalars) {
        pbf_writer value(summary, /*value*/ 1);
        value.add_string(/*tag*/ 1, tag);
        value.add_float(/*simple_value*/ 2, static_cast<float>(number));
      }
    });
  }

  void write_histogram(std::int64_t step, const std::string& tag, const Histogram& histogram) {
    write_summary(step, [&](pbf_writer& summary) {
      pbf_writer value(summary, /*value*/ 1);
      value.add_string(/*tag*/ 1, tag);
      pbf_writer message(value, /*histogram*/ 5);
      message.add_double(/*min*/ 1, histogram.min);
      message.add_double(/*max*/ 2, histogram.max);
      message.add_double(/*num*/ 3,
                         std::accumulate(histogram.counts.begin(), histogram.counts.end(), 0.0));
      message.add_double(/*sum*/ 4, histogram.sum);
      message.add_double(/*sum_squares*/ 5, histogram.sum_of_squares);
      message.add_packed_double(/*bucket_limit*/ 6, histogram.limits.begin(),
                                histogram.limits.end());
      message.add_packed_double(/*bucket*/ 7, histogram.counts.begin(), histogram.counts.end());
    });
  }

  template <class Fill>
  void write_summary(std::int64_t step, const Fill& fill) {
    write_event([&](pbf_writer& event) {
      event.add_int64(/*step*/ 2, step);
      pbf_writer summary(event, /*summary*/ 5);
      fill(summary);
    });
  }

  template <class Fill>
  void write_event(const Fill& fill) {
    if (!file_) return;  // could not be opened
    std::string message;
    pbf_writer event(message);
    event.add_double(/*wall_time*/ 1, wall_clock_seconds());
    fill(event);
    std::string record;
    append_number(record, std::uint64_t{message.size()});
    append_number(record, masked_crc(record));
    record += message;
    append_number(record, masked_crc(message));
    file_->append(record);
  }

  fs::path folder_;
  std::int64_t keep_bytes_;
  std::optional<AppendFile> file_;  // set by `begin`
};

}  // namespace

std::unique_ptr<Sink> tensorboard_sink(const fs::path& run_folder, std::int64_t keep_bytes) {
  return std::make_unique<TensorboardLog>(run_folder, keep_bytes);
}

}  // namespace mnist_train::report
