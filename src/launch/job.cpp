#include "launch/job.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

namespace mnist_train::launch {

namespace {

nlohmann::json to_json(const Job& job) {
  return {{"command", job.command},
          {"config", job.config},
          {"config_path", job.config_path.string()},
          {"run_folder", job.run_folder.string()},
          {"resume", job.resume},
          {"checkpoint", job.checkpoint.string()},
          {"export_format", job.export_format},
          {"export_path", job.export_path.string()},
          {"log_level", job.log_level},
          {"quiet", job.quiet},
          {"progress_bar", job.progress_bar},
          {"started_s", job.started_s},
          {"restarts", job.restarts}};
}

Job from_json(const nlohmann::json& json) {
  Job job;
  json.at("command").get_to(job.command);
  json.at("config").get_to(job.config);
  job.config_path = json.at("config_path").get<std::string>();
  job.run_folder = json.at("run_folder").get<std::string>();
  json.at("resume").get_to(job.resume);
  job.checkpoint = json.at("checkpoint").get<std::string>();
  json.at("export_format").get_to(job.export_format);
  job.export_path = json.at("export_path").get<std::string>();
  json.at("log_level").get_to(job.log_level);
  json.at("quiet").get_to(job.quiet);
  json.at("progress_bar").get_to(job.progress_bar);
  json.at("started_s").get_to(job.started_s);
  json.at("restarts").get_to(job.restarts);
  return job;
}

}  // namespace

std::string resume_command(const Job& job, const std::filesystem::path& run_folder) {
  return "mnist-train --config " + job.config_path.string() + " --output " + run_folder.string() +
         " --resume auto";
}

UniqueFd publish_job(const Job& job) {
  UniqueFd fd(::memfd_create("mnist-train-job", MFD_CLOEXEC));
  const std::string text = to_json(job).dump();
  if (!fd.valid() || !write_all(fd.get(), text.data(), text.size())) {
    throw Error(ExitCode::kRunFailed,
                std::string("cannot hand the job to the workers: ") + std::strerror(errno));
  }
  return fd;
}

Job read_job(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) {
    throw Error(ExitCode::kConfig,
                "mnist-train-worker is started by mnist-train, not by hand: no job was handed over");
  }
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  // The offset is shared by all ranks that inherited the file, so it is read by position.
  if (::pread(fd, text.data(), text.size(), 0) != status.st_size) {
    throw Error(ExitCode::kRunFailed, "cannot read the job that the launcher handed over");
  }
  return from_json(nlohmann::json::parse(text));
}

}  // namespace mnist_train::launch
