#pragma once

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <string>

#include "settings/run_config.h"
#include "support/temp_folder.h"

namespace mnist_train::testing {

/// The content of a fake run folder that a report needs: `epochs` epochs with `steps` records each.
struct FakeRun {
  int epochs = 3;
  int steps = 5;
  int predictions = 12;
  std::string picture = "data:image/png;base64,iVBORw0KGgo=";
  std::string status = "finished";  // empty: no summary
};

inline std::string fake_metrics(const FakeRun& run) {
  std::string text;
  int step = 0;
  for (int epoch = 1; epoch <= run.epochs; ++epoch) {
    for (int i = 0; i < run.steps; ++i) {
      ++step;
      text += fmt::format(
          R"({{"event":"step","epoch":{},"step":{},"loss":{},"learning_rate":0.01,"samples_per_second":{},"time":1.8e9}})"
          "\n",
          epoch, step, 2.0 / step, 9000 + step);
    }
    const int wrong = std::min(epoch, 40);
    text += fmt::format(
        R"({{"event":"epoch","epoch":{0},"step":{1},"train_loss":{2},"train_accuracy":{3},"test_loss":{2},)"
        R"("test_accuracy":{3},"train_seconds":3.5,"test_seconds":0.5,"samples_per_second":17000,"time":1.8e9,)"
        R"("seconds":{{"input":0.25,"compute":2.5,"communication":0.5,"evaluation":0.5,"checkpoint":0.125,"report":0.01}},)"
        R"("confusion":[[{5},{4}],[{4},{6}]]}})"
        "\n",
        epoch, step, 1.0 / epoch, 1 - 0.1 / epoch, wrong, 43 - wrong, 61 - wrong);
  }
  return text;
}

/// Every fourth prediction is wrong; the most confident mistakes come first.
inline std::string fake_mistakes(const FakeRun& run) {
  std::string text;
  for (int i = run.predictions - 1; i >= 0; --i) {
    if (i % 4 != 1) continue;
    text += fmt::format(R"({{"id":{},"image":"{}","guess":1,"truth":0,"confidence":{}}})"
                        "\n",
                        i, run.picture, 0.5 + 0.4 * i / run.predictions);
  }
  return text;
}

inline void write_fake_run(const TempFolder& folder, const std::string& name,
                           const FakeRun& run = {}) {
  folder.write(name + "/config.json", settings::write_run_config({}, /*has_output=*/false));
  folder.write(name + "/metrics.jsonl", fake_metrics(run));
  folder.write(name + "/mistakes.jsonl", fake_mistakes(run));
  folder.write(
      name + "/lineage.jsonl",
      R"({"time":1.8e9,"host":"here","resumed_from":null,"step":0,"world_size":2,"device":"cpu","precision":"fp32",)"
      R"("data":{"train":1000,"validation":0,"test":100,"channels":1,"height":28,"width":28,"classes":2},)"
      R"("versions":{"mnist_train":"0.1.0","libtorch":"2.11.0"},"config_hash":"xxh3-128:c0ff","data_hash":"xxh3-128:da7a"})"
      "\n");
  if (run.status.empty()) return;
  folder.write(
      name + "/summary.json",
      fmt::format(R"({{"status":"{}","steps":{},"wall_seconds":14.5,"startup_seconds":0.25}})",
                  run.status, run.epochs * run.steps));
}

/// A folder with a fake run in its subfolder "run".
struct FakeRunFolder : TempFolder {
  explicit FakeRunFolder(const FakeRun& content = {}) { write_fake_run(*this, "run", content); }

  std::filesystem::path run = path() / "run";
};

inline std::size_t occurrences(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++count;
  return count;
}

}  // namespace mnist_train::testing
