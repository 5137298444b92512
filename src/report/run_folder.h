#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "settings/run_config.h"

namespace mnist_train::report {

/// The folder that a run writes into, held against other runs for as long as this object (or the
/// process) lives.
struct RunFolder {
  std::filesystem::path path;  // absolute
  UniqueFd lock;
  std::vector<std::filesystem::path> made;  // folders that were not there before, from the top down
};

/// A folder that was named for a new run, but holds one already.
class OccupiedFolder : public Error {
 public:
  explicit OccupiedFolder(std::filesystem::path held)
      : Error(ExitCode::kConfig, held.string() +
                                     ": holds a run already; continue it with --resume auto, or "
                                     "give this one another --output"),
        folder(std::move(held)) {}

  std::filesystem::path folder;
};

/// Returns whether a run has begun in the folder.
bool holds_run(const std::filesystem::path& folder);

/// Returns the folder of the run that wrote `file` and still needs it: its config, its records, its
/// checkpoints, its weights. Nothing for a page, which is made anew from them, and for other files.
std::optional<std::filesystem::path> run_that_wrote(const std::filesystem::path& file);

/// Removes the records of a run that could not begin, by which `holds_run` would know it.
void remove_records(const std::filesystem::path& folder);

/// Removes what was made for a run that could not begin: its lock, its logs and the folders `made`,
/// as far as they hold nothing else. Does nothing where the folder holds a run.
void discard_run_folder(const std::filesystem::path& folder,
                        const std::vector<std::filesystem::path>& made);

/// Finds or makes the run's folder: `output`, else `runs/<config name>/<start time>` below the
/// working directory. `resume` is "", "auto" (then without `output` the run behind `latest`) or a
/// checkpoint's path (then without `output` the run that it belongs to). `after_restart`: a run
/// found there is this one's last attempt, if the launch `launch_id` began or continued it ("":
/// any). Throws Error(kConfig) when the folder holds a run and nothing says that it should be
/// continued (as OccupiedFolder), when another process is using it, and when it cannot be written.
RunFolder prepare_run_folder(const settings::RunConfig& config, const std::string& config_name,
                             const std::string& resume, bool after_restart,
                             const std::string& launch_id = "");

/// Throws what `prepare_run_folder` would throw about a folder that holds a run or is in use, and
/// makes nothing.
void check_run_folder(const settings::RunConfig& config, const std::string& config_name,
                      const std::string& resume);

/// Makes the link `latest` beside a folder that was named by its time point at it, in one go. For
/// when the run has begun: one that could not start must not hide the last good one. Does nothing
/// beside a folder that the user has named.
void point_latest_at(const std::filesystem::path& folder);

/// The files of a run, within its folder.
namespace files = settings::run_files;

}  // namespace mnist_train::report
