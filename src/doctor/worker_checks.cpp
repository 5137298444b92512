#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>
#include <sys/mman.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/system.h"
#include "doctor/doctor.h"
#include "launch/job.h"
#include "launch/supervisor.h"
#include "launch/worker_process.h"

namespace mnist_train::doctor {

namespace {

using Json = nlohmann::ordered_json;

constexpr double kTimeout_s = 180;  // loading CUDA from a cold disk takes long
constexpr double kSlow = 50e6;      // bytes per second

/// The output of rank 0, or the reason that there is none.
struct Diagnosis {
  Json result;
  std::string failure{};
};

Diagnosis run_workers(const settings::RunConfig& config, int processes) {
  launch::Job job;
  job.command = launch::Command::kDiagnose;
  job.config = settings::write_run_config(config, /*with_output=*/false);
  job.quiet = true;
  job.started_s = monotonic_seconds();
  const auto board = launch::StatusBoard::create(processes);
  const launch::ListenSocket socket = launch::listen_on_loopback();
  const UniqueFd job_fd = launch::publish_job(job);
  const UniqueFd output(::memfd_create("mnist-train-diagnosis", MFD_CLOEXEC));
  launch::WorkerSetup setup;
  setup.executable = launch::worker_executable();
  setup.world_size = processes;
  setup.master_port = socket.port;
  setup.job_fd = job_fd.get();
  setup.status_fd = board.fd();
  setup.listen_fd = socket.fd.get();
  setup.output_fd = output.get();
  const auto result =
      launch::supervise(setup, board, config.launch.hang_timeout_s, launch::BackgroundTask{});
  if (result.stopped_by != 0) {
    throw Error(
        static_cast<ExitCode>(launch::stopped_exit_code(result.stopped_by)),
        std::string("mnist-train doctor: stopped by SIG") + ::sigabbrev_np(result.stopped_by));
  }
  if (result.failure) return {nullptr, result.failure->cause};
  Json json = Json::parse(content_of(output.get()), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return {nullptr, "the workers ended without a result"};
  return {std::move(json)};
}

Diagnosis diagnose(settings::RunConfig config, bool on_gpus, int processes) {
  config.train.device = on_gpus ? settings::DeviceName::kCuda : settings::DeviceName::kCpu;
  config.train.backend = settings::BackendName::kAuto;
  config.launch.devices.clear();
  config.launch.processes_per_node = processes;
  config.launch.rendezvous_timeout_s = kTimeout_s;
  config.launch.hang_timeout_s = kTimeout_s;
  try {
    return run_workers(config, processes);
  } catch (const Error& error) {
    if (error.code() == ExitCode::kInterrupted || error.code() == ExitCode::kTerminated) throw;
    return {nullptr, error.what()};
  }
}

Finding check_all_reduce(const Diagnosis& diagnosis, int processes, const char* where) {
  if (!diagnosis.failure.empty()) {
    return {"all-reduce", Verdict::kProblem, diagnosis.failure,
            "a run would end the same way: see what the processes wrote above, and the other lines "
            "of this report"};
  }
  Finding finding{"all-reduce"};
  finding.values["measured"] = diagnosis.result.at("all_reduce");
  std::vector<std::string> texts;
  for (const Json& measured : diagnosis.result.at("all_reduce")) {
    const auto speed = measured.at("bytes_per_second").get<double>();
    texts.push_back(fmt::format("{}: {:.2f} ms, {}/s", measured.at("name").get<std::string>(),
                                measured.at("latency_s").get<double>() * 1e3, memory_text(speed)));
    if (speed >= kSlow) continue;
    finding.verdict = Verdict::kWarning;
    finding.remedy = "slower than 50 MB/s: see whether something else keeps the cores busy";
  }
  finding.text = fmt::format("{} processes on {}: {}", processes, where, fmt::join(texts, "; "));
  return finding;
}

Finding check_libtorch(const Json& facts) {
  const auto version = facts.at("torch").get<std::string>();
  Finding finding{"LibTorch", Verdict::kGood, "", "", facts};
  finding.text =
      fmt::format("{} in {}, kernels for {}", version, facts.at("torch_folder").get<std::string>(),
                  facts.at("cpu_capability").get<std::string>());
  finding.values.erase("all_reduce");
  if (version.starts_with(build_info().torch)) return finding;
  return finding.with(Verdict::kWarning,
                      fmt::format("; this program was built against {}", build_info().torch),
                      "build it again (scripts/setup), or correct LD_LIBRARY_PATH");
}

Finding check_cuda(const Diagnosis& diagnosis) {
  if (!diagnosis.failure.empty()) {
    return {"CUDA", Verdict::kProblem, diagnosis.failure,
            "set device to \"cpu\" to train without GPUs; scripts/setup --cuda installs LibTorch's "
            "CUDA parts"};
  }
  const Json& facts = diagnosis.result.at("cuda");
  return {"CUDA", Verdict::kGood,
          fmt::format("runtime {}, NCCL {}; every GPU computes",
                      facts.at("runtime").get<std::string>(), facts.at("nccl").get<std::string>()),
          "", facts};
}

}  // namespace

Findings check_workers(const settings::RunConfig& config, const Driver& driver) {
  constexpr int kProcesses = 2;
  Findings findings;
  const Diagnosis on_cpus = diagnose(config, /*on_gpus=*/false, kProcesses);
  if (on_cpus.failure.empty()) findings.push_back(check_libtorch(on_cpus.result));
  findings.push_back(check_all_reduce(on_cpus, kProcesses, "CPUs"));
  const int gpus = static_cast<int>(driver.gpus.size());
  if (gpus == 0 || *build_info().cuda == '\0') return findings;
  const Diagnosis on_gpus = diagnose(config, /*on_gpus=*/true, gpus);
  findings.push_back(check_cuda(on_gpus));
  if (gpus > 1) findings.push_back(check_all_reduce(on_gpus, gpus, "GPUs"));
  return findings;
}

}  // namespace mnist_train::doctor
