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

namespace mnist_train::launch {

namespace {

nlohmann::json to_json(const Job& job) {
  return {{"command", job.command},
          {"config", job.config},
          {"config_path", job.config_path.string()},
          {"run_folder", job.run_folder.string()},
          {"resume", job.resume},
          {"after_restart", job.after_restart},
          {"checkpoint", job.checkpoint.string()},
          {"export_format", job.export_format},
          {"export_path", job.export_path.string()},
          {"with_optimizer", job.with_optimizer},
          {"images", job.images},
          {"log_level", job.log_level},
          {"quiet", job.quiet},
          {"progress_bar", job.progress_bar},
          {"started_s", job.started_s},
          {"restarts", job.restarts}};
}

/// Quoted where a shell would take it for more than one word, or for something else.
std::string shell_word(const std::string& text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:,+@%=";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string quoted = "'";
  for (const char character : text) {
    if (character == '\'') {
      quoted += "'\\''";
    } else {
      quoted += character;
    }
  }
  return quoted + "'";
}

Job from_json(const nlohmann::json& json) {
  Job job;
  json.at("command").get_to(job.command);
  json.at("config").get_to(job.config);
  job.config_path = json.at("config_path").get<std::string>();
  job.run_folder = json.at("run_folder").get<std::string>();
  json.at("resume").get_to(job.resume);
  json.at("after_restart").get_to(job.after_restart);
  job.checkpoint = json.at("checkpoint").get<std::string>();
  json.at("export_format").get_to(job.export_format);
  job.export_path = json.at("export_path").get<std::string>();
  json.at("with_optimizer").get_to(job.with_optimizer);
  json.at("images").get_to(job.images);
  json.at("log_level").get_to(job.log_level);
  json.at("quiet").get_to(job.quiet);
  json.at("progress_bar").get_to(job.progress_bar);
  json.at("started_s").get_to(job.started_s);
  json.at("restarts").get_to(job.restarts);
  return job;
}

}  // namespace

std::string resume_command(const std::filesystem::path& run_folder) {
  return "mnist-train --config " + shell_word((run_folder / "config.json").string()) +
         " --output " + shell_word(run_folder.string()) + " --resume auto";
}

UniqueFd publish_job(const Job& job) {
  UniqueFd fd(::memfd_create("mnist-train-job", MFD_CLOEXEC));
  // Not as text: paths need not be UTF-8.
  const std::vector<std::uint8_t> bytes = nlohmann::json::to_cbor(to_json(job));
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
    if (json.is_object()) return from_json(json);
  }
  throw Error(ExitCode::kRunFailed, "cannot read the job that the launcher handed over");
}

}  // namespace mnist_train::launch
