#include "report/sink.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "report/page/page.h"
#include "report/page/run_files.h"
#include "settings/run_config.h"

namespace mnist_train::report {

namespace {

class OptionalSink : public Sink {
 public:
  OptionalSink(const char* name, const std::function<std::unique_ptr<Sink>()>& make) : name_(name) {
    attempt([&] { sink_ = make(); });
  }

  void begin(const RunStart& start, const Summary& summary) override {
    call([&](Sink& sink) { sink.begin(start, summary); });
  }
  void tick(std::int64_t epoch, std::int64_t step_in_epoch) override {
    call([&](Sink& sink) { sink.tick(epoch, step_in_epoch); });
  }
  void step(const StepRecord& record) override {
    call([&](Sink& sink) { sink.step(record); });
  }
  void epoch(const EpochResult& result) override {
    call([&](Sink& sink) { sink.epoch(result); });
  }
  void refresh(const Summary& summary) override {
    call([&](Sink& sink) { sink.refresh(summary); });
  }
  void end(const Summary& summary) override {
    call([&](Sink& sink) { sink.end(summary); });
  }
  void add_position(LogPositions& positions) const override {
    if (sink_) sink_->add_position(positions);
  }

 private:
  void call(const std::function<void(Sink&)>& function) {
    if (sink_) attempt([&] { function(*sink_); });
  }

  void attempt(const std::function<void()>& function) {
    try {
      function();
    } catch (const Error& error) {
      if (!warned_) spdlog::warn("{}; the run continues without {}", error.what(), name_);
      warned_ = true;
    }
  }

  const char* name_;
  std::unique_ptr<Sink> sink_;  // null where it could not be made
  bool warned_ = false;
};

class PageSink : public Sink {
 public:
  explicit PageSink(const std::filesystem::path& run_folder)
      : path_(run_folder / settings::run_files::kPage), reader_(run_folder) {}

  void refresh(const Summary& /*summary*/) override { write(/*live=*/true); }
  void end(const Summary& /*summary*/) override { write(/*live=*/false); }

 private:
  void write(bool live) {
    RunFiles& run = reader_.read();
    run.live = live;
    write_file_atomically(path_, make_page({&run, 1}), ExitCode::kRunFailed);
  }

  std::filesystem::path path_;
  RunReader reader_;
};

class SummarySink : public Sink {
 public:
  explicit SummarySink(std::filesystem::path path) : path_(std::move(path)) {}

  void begin(const RunStart& /*start*/, const Summary& summary) override {
    write_summary(path_, summary);
  }
  void refresh(const Summary& summary) override { write_summary(path_, summary); }
  void end(const Summary& summary) override { write_summary(path_, summary); }

 private:
  std::filesystem::path path_;
};

class AccuraciesSink : public Sink {
 public:
  explicit AccuraciesSink(std::filesystem::path path) : path_(std::move(path)) {}

  void epoch(const EpochResult& result) override { write_accuracies(path_, result.accuracies); }

 private:
  std::filesystem::path path_;
};

}  // namespace

std::unique_ptr<Sink> optional_sink(const char* name,
                                    const std::function<std::unique_ptr<Sink>()>& make) {
  return std::make_unique<OptionalSink>(name, make);
}

std::unique_ptr<Sink> page_sink(const std::filesystem::path& run_folder) {
  return std::make_unique<PageSink>(run_folder);
}

std::unique_ptr<Sink> summary_sink(const std::filesystem::path& path) {
  return std::make_unique<SummarySink>(path);
}

std::unique_ptr<Sink> accuracies_sink(const std::filesystem::path& path) {
  return std::make_unique<AccuraciesSink>(path);
}

}  // namespace mnist_train::report
