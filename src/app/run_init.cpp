#include <spdlog/spdlog.h>

#include <filesystem>

#include "app/commands.h"
#include "app/proposed_config.h"
#include "base/log.h"
#include "base/print.h"
#include "data/dataset.h"
#include "data/picture_files.h"

namespace mnist_train::app {

namespace fs = std::filesystem;

void run_init(Worker& worker) {
  if (!worker.is_rank0()) return;
  launch::update(worker.status(), launch::Phase::kLoadingData, 0, 0);
  fs::path folder = fs::absolute(worker.job.images.front()).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();  // "photos/"
  if (!data::is_plain_text(folder.native())) {
    throw Error(ExitCode::kConfig, on_one_line(folder.string()) +
                                       ": a config cannot name this folder, whose path has control "
                                       "bytes or broken UTF-8; rename it");
  }
  std::optional<InitialWeights> weights;
  const PictureFolder pictures = open_picture_folder(folder);
  const ProposedConfig proposed = propose_config(pictures, weights);
  const std::string text = readable_json(proposed.config);
  // Whatever a run would refuse before its first step is an error here.
  const settings::RunConfig config = settings::parse_run_config({"the proposed config", text, {}});
  settings::DataOptions data = config.data;
  data.decode = settings::Decode::kStream;
  for (const std::string& note : data::DatasetReader(data).stream().notes) {
    spdlog::warn("{}", note);
  }
  for (const std::string& reason : proposed.reasons) spdlog::info("{}", reason);
  print_text(text);
}

}  // namespace mnist_train::app
