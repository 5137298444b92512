#include "launch/job.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "base/print.h"

namespace mnist_train::launch {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Job, command, config, config_path, run_folder, resume,
                                   after_restart, checkpoint, export_format, export_path,
                                   with_optimizer, as_json, images, log_level, quiet, progress_bar,
                                   started_s, restarts)

namespace {

/// Quotes the text where a shell would not take it for one plain word.
std::string shell_word(const std::string& text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:,+@%=";
  const bool is_plain = !text.empty() && text.find_first_not_of(kPlain) == std::string::npos;
  return is_plain ? text : shell_quoted(text);
}

}  // namespace

std::string resume_command(const std::filesystem::path& run_folder) {
  return "mnist-train --config " + shell_word((run_folder / "config.json").string()) +
         " --output " + shell_word(run_folder.string()) + " --resume auto";
}

UniqueFd publish_job(const Job& job) {
  UniqueFd fd(::memfd_create("mnist-train-job", MFD_CLOEXEC));
  // Not as text: paths need not be UTF-8.
  const std::vector<std::uint8_t> bytes = nlohmann::json::to_cbor(job);
  if (!fd.valid() || !write_all(fd.get(), bytes.data(), bytes.size())) {
    throw Error(ExitCode::kRunFailed,
                std::string("cannot hand the job to the workers: ") + std::strerror(errno));
  }
  return fd;
}

Job read_job(int fd) {
  if (::fcntl(fd, F_GETFD) < 0) {
    throw Error(
        ExitCode::kConfig,
        "mnist-train-worker is started by mnist-train, not by hand: no job was handed over");
  }
  const auto json =
      nlohmann::json::from_cbor(content_of(fd), /*strict=*/true, /*allow_exceptions=*/false);
  if (json.is_object()) return json.get<Job>();
  throw Error(ExitCode::kRunFailed, "cannot read the job that the launcher handed over");
}

}  // namespace mnist_train::launch
