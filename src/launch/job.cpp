#include "launch/job.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "base/print.h"

namespace mnist_train::launch {

namespace {

/// Calls `visit(name, member)` for every member of a job, which may be const.
template <class SomeJob, class Visit>
void for_each_field(SomeJob& job, const Visit& visit) {
  visit("command", job.command);
  visit("config", job.config);
  visit("config_path", job.config_path);
  visit("run_folder", job.run_folder);
  visit("resume", job.resume);
  visit("after_restart", job.after_restart);
  visit("checkpoint", job.checkpoint);
  visit("export_format", job.export_format);
  visit("export_path", job.export_path);
  visit("with_optimizer", job.with_optimizer);
  visit("images", job.images);
  visit("log_level", job.log_level);
  visit("quiet", job.quiet);
  visit("progress_bar", job.progress_bar);
  visit("started_s", job.started_s);
  visit("restarts", job.restarts);
}

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
  nlohmann::json json;
  for_each_field(job, [&](const char* name, const auto& value) { json[name] = value; });
  const std::vector<std::uint8_t> bytes = nlohmann::json::to_cbor(json);
  if (!fd.valid() || !write_all(fd.get(), bytes.data(), bytes.size())) {
    throw Error(ExitCode::kRunFailed,
                std::string("cannot hand the job to the workers: ") + std::strerror(errno));
  }
  return fd;
}

Job read_job(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) {
    throw Error(
        ExitCode::kConfig,
        "mnist-train-worker is started by mnist-train, not by hand: no job was handed over");
  }
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(status.st_size));
  // The offset is shared by all ranks that inherited the file, so it is read by position.
  if (::pread(fd, bytes.data(), bytes.size(), 0) == status.st_size) {
    const auto json = nlohmann::json::from_cbor(bytes, /*strict=*/true, /*allow_exceptions=*/false);
    if (json.is_object()) {
      Job job;
      for_each_field(job, [&](const char* name, auto& value) { json.at(name).get_to(value); });
      return job;
    }
  }
  throw Error(ExitCode::kRunFailed, "cannot read the job that the launcher handed over");
}

}  // namespace mnist_train::launch
