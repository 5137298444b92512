#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "settings/run_config.h"

namespace mnist_train::report {

/// The folder of a run, locked against other runs for the lifetime of this object (or the process).
struct RunFolder {
  std::filesystem::path path;  // absolute
  UniqueFd lock;
  std::vector<std::filesystem::path> made;  // folders that had to be created, parents first
};

/// Whether a run has started in the folder.
bool holds_run(const std::filesystem::path& folder);

/// Returns the folder of the run that wrote `file` and still needs it: config, records, checkpoints
/// or weights. Nothing for other files and for pages, which can be made again.
std::optional<std::filesystem::path> run_that_wrote(const std::filesystem::path& file);

/// Removes the records of a run that could not start, so that `holds_run` is false again.
void remove_records(const std::filesystem::path& folder);

/// Removes what was created for a run that could not start: its lock, its logs, and the folders
/// `made` if they are empty. A no-op if the folder holds a run.
void discard_run_folder(const std::filesystem::path& folder,
                        const std::vector<std::filesystem::path>& made);

/// Finds or creates the run's folder: `output`, else `runs/<config name>/<start time>` in the
/// working directory. `resume` is "", "auto" (without `output`: the run behind `latest`) or the
/// path of a checkpoint (without `output`: its run). With `after_restart`, a run found there is
/// continued if it belongs to the launch `launch_id` ("": any). Throws Error(kConfig) if the folder
/// holds a run that is not to be continued, is in use by another process, or cannot be written.
RunFolder prepare_run_folder(const settings::RunConfig& config, const std::string& config_name,
                             const std::string& resume, bool after_restart,
                             const std::string& launch_id = "");

/// Throws as `prepare_run_folder` would for an occupied or used folder, but creates nothing.
void check_run_folder(const settings::RunConfig& config, const std::string& config_name,
                      const std::string& resume);

/// Atomically points the link `latest` at a folder that was named by its start time. Called when
/// the run has started, so that a failed start does not hide the last good run. A no-op for folders
/// that the user has named.
void point_latest_at(const std::filesystem::path& folder);

/// The files of a run, within its folder.
namespace files = settings::run_files;

}  // namespace mnist_train::report
