#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/system.h"
#include "report/sink.h"

namespace mnist_train::report {

namespace {

using Json = nlohmann::ordered_json;

template <class Record>
void add_fields(Json& json, const Record& record) {
  Record::visit(record, [&](const char* key, const auto& value) {
    if constexpr (requires { value.has_value(); }) {
      if (value) json[key] = *value;
    } else {
      json[key] = value;
    }
  });
}

void add_details(Json& json, const EpochDetails& details) {
  add_fields(json["seconds"], details.seconds);
  json["rank_seconds"] = Json::array();
  for (const RankTimes& times : details.ranks) {
    add_fields(json["rank_seconds"].emplace_back(), times);
  }
  if (details.confusion.empty()) return;
  Json& rows = json["confusion"] = Json::array();
  const auto classes = static_cast<std::ptrdiff_t>(details.classes);
  for (auto row = details.confusion.begin(); row != details.confusion.end(); row += classes) {
    rows.push_back(std::vector<std::int64_t>(row, row + classes));
  }
}

class MetricsLog : public Sink {
 public:
  MetricsLog(const std::filesystem::path& path, std::int64_t keep_bytes)
      : path_(path),
        fd_(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0644)) {
    struct stat status {};
    if (!fd_.valid() || ::fstat(fd_.get(), &status) != 0) fail("open");
    bytes_ = std::min<std::int64_t>(keep_bytes, status.st_size);
    if (::ftruncate(fd_.get(), bytes_) != 0) fail("truncate");
  }

  void step(const StepRecord& record) override { write_line("step", record, nullptr); }

  void epoch(const EpochResult& result) override {
    // A repeated evaluation needs a record only if the file has just begun.
    if (result.is_repeated && bytes_ > 0) return;
    write_line("epoch", result.record, &result.details);
  }

  void add_position(LogPositions& positions) const override { positions.metrics_bytes = bytes_; }

 private:
  [[noreturn]] void fail(const char* action) const {
    throw_errno(ExitCode::kRunFailed, path_, action);
  }

  template <class Record>
  void write_line(const char* event, Record record, const EpochDetails* details) {
    Json json{{"event", event}};
    record.time = wall_clock_seconds();
    add_fields(json, record);
    if (details != nullptr) add_details(json, *details);
    const std::string line = json.dump() + "\n";
    if (!write_all(fd_.get(), line.data(), line.size())) fail("write");
    bytes_ += static_cast<std::int64_t>(line.size());
  }

  std::filesystem::path path_;
  UniqueFd fd_;
  std::int64_t bytes_ = 0;
};

}  // namespace

std::unique_ptr<Sink> metrics_sink(const std::filesystem::path& path, std::int64_t keep_bytes) {
  return std::make_unique<MetricsLog>(path, keep_bytes);
}

}  // namespace mnist_train::report
