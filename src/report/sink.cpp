#include "report/sink.h"

#include <spdlog/spdlog.h>

#include "base/error.h"

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

}  // namespace

std::unique_ptr<Sink> optional_sink(const char* name,
                                    const std::function<std::unique_ptr<Sink>()>& make) {
  return std::make_unique<OptionalSink>(name, make);
}

}  // namespace mnist_train::report
