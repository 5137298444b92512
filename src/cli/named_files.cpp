#include "cli/named_files.h"

#include <filesystem>
#include <string>

#include "base/error.h"
#include "base/file.h"

namespace mnist_train::cli {

namespace fs = std::filesystem;

namespace {

void check_readable(const fs::path& path) { (void)MappedFile::open(path, ExitCode::kCheckpoint); }

void check_target(const fs::path& path, ExitCode code) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) {
    throw Error(code, path.string() + ": cannot create: no folder " + folder.string());
  }
  if (path == "-") {
    throw Error(ExitCode::kConfig, "--output -: a file is needed");
  }
  if (fs::is_directory(path, ignored)) {
    throw Error(code, path.string() + ": is a folder; a file's name is needed");
  }
}

}  // namespace

void check_named_files(const CommandLine& line, const settings::RunConfig& config) {
  if (line.checkpoint) check_readable(*line.checkpoint);
  if (line.resume && *line.resume != "auto") check_readable(*line.resume);
  if (line.command == Command::kTrain && config.model.weights) {
    check_readable(*config.model.weights);
  }
  if (line.command == Command::kExport) check_target(*line.output, ExitCode::kCheckpoint);
  if (line.command == Command::kPreview) check_target(*line.output, ExitCode::kRunFailed);
}

}  // namespace mnist_train::cli
