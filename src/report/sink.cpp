#include "report/sink.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "base/error.h"

namespace mnist_train::report {

namespace {

constexpr double kPaceInterval_s = 1;
constexpr double kFirstPaceInterval_s = 0.1;

class OptionalSink : public Sink {
 public:
  OptionalSink(const char* name, const std::function<std::unique_ptr<Sink>()>& make) : name_(name) {
    attempt([&] { sink_ = make(); });
  }

  void begin(const RunStart& start, const Summary& summary) override {
    call(&Sink::begin, start, summary);
  }
  void tick(const StepPosition& position) override { call(&Sink::tick, position); }
  void pace(const Pace& pace) override { call(&Sink::pace, pace); }
  void step(const StepRecord& record) override { call(&Sink::step, record); }
  void epoch(const EpochResult& result) override { call(&Sink::epoch, result); }
  void refresh(const Summary& summary) override { call(&Sink::refresh, summary); }
  void end(const Summary& summary) override { call(&Sink::end, summary); }
  std::filesystem::path page() const override {
    return sink_ ? sink_->page() : std::filesystem::path();
  }
  void add_position(LogPositions& positions) const override {
    if (sink_) sink_->add_position(positions);
  }

 private:
  template <class Method, class... Arguments>
  void call(Method method, const Arguments&... arguments) {
    if (sink_) attempt([&] { std::invoke(method, *sink_, arguments...); });
  }

  template <class Attempt>
  void attempt(const Attempt& action) try {
    action();
  } catch (const Error& error) {
    if (!warned_) spdlog::warn("{}; the run continues without {}", error.what(), name_);
    warned_ = true;
  }

  const char* name_;
  std::unique_ptr<Sink> sink_;  // null if making it failed
  bool warned_ = false;
};

}  // namespace

std::unique_ptr<Sink> optional_sink(const char* name,
                                    const std::function<std::unique_ptr<Sink>()>& make) {
  return std::make_unique<OptionalSink>(name, make);
}

std::optional<Pace> PaceMeter::add(const PacedStep& step) {
  newest_s_ = step.finished_s;
  if (!last_) {
    last_ = step;
    return std::nullopt;
  }
  loss_ += step.loss;
  samples_ += step.samples;
  const double seconds = step.finished_s - last_->finished_s;
  if (seconds < (has_told_ ? kPaceInterval_s : kFirstPaceInterval_s)) return std::nullopt;
  const auto steps = static_cast<double>(step.number - last_->number);
  const auto samples = static_cast<double>(step.samples_seen - last_->samples_seen);
  const Pace pace{loss_ / samples_, samples / seconds, seconds / std::max(1.0, steps)};
  last_ = step;
  loss_ = samples_ = 0;
  has_told_ = true;
  return pace;
}

void PaceMeter::pause_until(double now_s) {
  if (last_) last_->finished_s += now_s - newest_s_;
  newest_s_ = now_s;
}

}  // namespace mnist_train::report
