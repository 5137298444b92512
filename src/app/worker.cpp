#include "app/worker.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <malloc.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <numeric>

#include "accelerator/device.h"
#include "base/hash.h"
#include "base/print.h"
#include "base/version.h"
#include "checkpoint/checkpoint.h"
#include "kernels/operations.h"
#include "launch/supervisor.h"
#include "report/records.h"

namespace mnist_train::app {

namespace {

std::atomic<int> recorded_signal = 0;
std::atomic<bool> recording = false;

/// Handles stop signals until the process exits.
[[noreturn]] void handle_stop_signals(bool trains) {
  const sigset_t signals = launch::stop_signal_set();
  while (true) {
    int signal = 0;
    if (::sigwait(&signals, &signal) != 0) continue;
    const bool can_wait = trains && signal == SIGUSR1;
    if (!recording && !can_wait) ::_exit(launch::stopped_exit_code(signal));
    int none = 0;
    recorded_signal.compare_exchange_strong(none, signal);
  }
}

/// Makes the signals of launch::stop_signals terminate the process immediately, with the exit codes
/// of a stopped run, because there is nothing to save yet. If `trains` is set, SIGUSR1, which asks
/// the run to stop and resume later, takes effect only after `record_stop_signals`.
void end_on_stop_signals(bool trains) {
  // Shells start background processes with SIGINT ignored, but a SIGINT sent to them is deliberate.
  for (const int signal : launch::stop_signals()) ::signal(signal, SIG_DFL);
  // No handler may run on a compute thread: while oneDNN multiplies matrices, the stack pointer
  // points into the heap, so a handler's frame would corrupt memory. New threads inherit the mask.
  const sigset_t signals = launch::stop_signal_set();
  ::pthread_sigmask(SIG_SETMASK, &signals, nullptr);
  start_thread([trains] { handle_stop_signals(trains); }).detach();
}

int handed_over_or(const char* name, int fd, int fallback) {
  return launch::was_handed_over(name) ? fd : fallback;
}

launch::WorkerIdentity detect_identity() {
  auto identity = launch::identity_from_environment().value_or(launch::WorkerIdentity{});
  if (launch::was_handed_over("status")) {
    identity.launcher = launch::LauncherKind::kBuiltIn;
    identity.detected_from = "mnist-train's own launcher";
    identity.store_served_by_agent = false;  // the variable is for the launcher
  }
  return identity;
}

void set_up_log(const Worker& worker) {
  LogSetup setup;
  setup.console_fd = handed_over_or("console", launch::kConsoleFd, STDERR_FILENO);
  setup.level = worker.job.quiet ? "warning" : worker.job.log_level;
  if (worker.job.progress_bar) setup.console_prefix = kEraseLine;
  if (!worker.is_rank0()) {
    setup.console_prefix += "rank " + std::to_string(worker.identity.rank) + ": ";
    if (setup.level == "info") setup.level = "warning";
  }
  const auto folder = worker.run_folder / report::files::kLogs;
  if (!worker.run_folder.empty() && std::filesystem::is_directory(folder)) {
    setup.file = folder / launch::log_file_name(worker.identity.rank);
  }
  set_up_logging(setup);
  const launch::WorkerIdentity& identity = worker.identity;
  spdlog::debug(
      "rank {} of {}, local rank {} of {}, store at {}:{}, keys under {}, attempt {}; decided by "
      "{}",
      identity.rank, identity.world_size, identity.local_rank, identity.local_world_size,
      identity.master_address, identity.master_port, identity.store_prefix, worker.job.restarts + 1,
      identity.detected_from);
}

/// Logs LibTorch's warnings only at debug level: they have stack traces and precede our messages.
class LibTorchWarnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    spdlog::debug("LibTorch: {}", warning.msg());
  }
};

void silence_libtorch(const std::string& level) {
  static LibTorchWarnings warnings;
  c10::WarningUtils::set_warning_handler(&warnings);
  if (std::getenv("TORCH_CPP_LOG_LEVEL") != nullptr) return c10::initLogging();
  const bool debugging = level == "debug" || level == "trace";
  FLAGS_caffe2_log_level = debugging ? c10::GLOG_WARNING : c10::GLOG_FATAL;
}

void set_up_host(Worker& worker) {
  at::set_num_threads(worker.placement.threads);
  // Keep the memory of activations and gradients, which each step frees and the next reallocates.
  ::mallopt(M_MMAP_THRESHOLD, 32 << 20);
  ::mallopt(M_TRIM_THRESHOLD, -1);
  const bool deterministic = worker.config.train.deterministic;
  at::globalContext().setDeterministicAlgorithms(deterministic, /*warn_only=*/false);
  // By default, deterministic mode fills new tensors with NaN, to reveal uninitialised memory.
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  if (!worker.placement.cuda) return;
  if (deterministic) ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::globalContext().setDeterministicCuDNN(deterministic);
  // TF32 keeps 10 mantissa bits, so the results for the parts of a batch would not add up to the
  // result for the whole batch. cuDNN's weight gradients still have errors of up to 1.6e-3, because
  // it computes them with Winograd's algorithm.
  if (deterministic) at::globalContext().setAllowTF32CuDNN(false);
}

comm::RendezvousOptions rendezvous_of(const settings::RunConfig& config,
                                      const launch::WorkerIdentity& identity) {
  return {.identity = identity, .timeout_s = config.launch.rendezvous_timeout_s};
}

/// Returns the GPUs that this rank may use: the one that the config assigns, or all visible ones.
std::vector<int> allowed_gpus(const Worker& worker) {
  if (!worker.placement.cuda) return {};
  if (!worker.config.launch.devices.empty()) return {worker.placement.device_index};
  std::vector<int> all(static_cast<std::size_t>(accelerator::cuda_module().device_count()));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

/// Selects a GPU that no other rank uses, if there is one. Ranks may number GPUs differently: with
/// Slurm's --gpu-bind, for example, each task's GPU 0 is a different one.
void take_gpu(Worker& worker, const std::vector<int>& allowed, const launch::GpuAssignment& gpus) {
  launch::Placement& placement = worker.placement;
  if (!placement.cuda) return;
  placement.device_index =
      allowed.at(gpus.indices.at(static_cast<std::size_t>(worker.identity.rank)));
  if (placement.backend == "nccl" && !gpus.is_exclusive()) {
    placement.backend = launch::backend_for_shared_gpu(worker.config, gpus);
    spdlog::debug("ranks {} and {} share a GPU: connecting over {}", gpus.first, gpus.second,
                  placement.backend);
  }
  accelerator::cuda_module().set_device(placement.device_index);
  accelerator::report_waits_to(&worker.status());
}

comm::Communicator connect(Worker& worker) {
  comm::RendezvousOptions rendezvous = rendezvous_of(worker.config, worker.identity);
  rendezvous.listen_fd = handed_over_or("listen", launch::kListenFd, -1);
  rendezvous.build = fmt::format("{} {}", build_info().version, build_info().commit);
  rendezvous.fingerprint = hash_hex(settings::write_run_config(worker.config, false));
  rendezvous.backend = worker.placement.backend;
  const std::vector<int> gpus = allowed_gpus(worker);
  for (const int gpu : gpus) {
    rendezvous.gpus.push_back(accelerator::cuda_module().pci_address(gpu));
  }
  const comm::RendezvousResult joined = comm::rendezvous(rendezvous);
  take_gpu(worker, gpus, joined.gpus);
  if (worker.placement.backend == "nccl") {
    const auto& folder = worker.run_folder;
    const auto logs = folder.empty() ? folder : folder / report::files::kLogs;
    comm::set_nccl_defaults(joined.one_host, logs);
  }
  // Our launcher detects silent ranks itself, so no rank may time out before it does.
  const double margin_s = launch::was_handed_over("status") ? 5 : 0;
  return {worker.identity, joined,
          worker.placement.backend == "nccl" ? comm::BackendKind::kNccl : comm::BackendKind::kGloo,
          worker.config.launch.hang_timeout_s + margin_s};
}

/// Creates the worker and connects it to the other ranks. Collective.
std::unique_ptr<Worker> join_run(launch::Job job) {
  end_on_stop_signals(/*trains=*/job.command == launch::Command::kTrain);
  silence_libtorch(job.log_level);
  settings::RunConfig config = settings::parse_run_config(
      {job.config_path.string(), job.config, job.config_path.parent_path()});
  const launch::WorkerIdentity identity = detect_identity();
  if (job.refusal_code != 0) {  // the front end has already printed it
    const auto code = static_cast<ExitCode>(job.refusal_code);
    comm::publish_refusal(rendezvous_of(config, identity), code, job.refusal);
    ::_exit(job.refusal_code);
  }
  launch::Placement placement;
  if (!launch::needs_one_cpu(job.command)) {
    launch::Machine machine = launch::this_machine();
    machine.same_for_all = identity.launcher == launch::LauncherKind::kBuiltIn;
    placement =
        launch::choose_placement(config, machine, identity.local_rank, identity.local_world_size);
  }
  auto board = launch::StatusBoard::attach(handed_over_or("status", launch::kStatusFd, -1),
                                           identity.local_world_size);
  auto worker = std::make_unique<Worker>(
      Worker{std::move(job), std::move(config), identity, placement, std::move(board), {}, {}});
  worker->run_folder = worker->job.run_folder;
  set_up_log(*worker);
  set_up_host(*worker);
  worker->enter(launch::Phase::kRendezvous);
  worker->communicator = connect(*worker);
  worker->communicator.report_to(worker->status());
  if (worker->job.command == launch::Command::kTrain &&
      identity.launcher != launch::LauncherKind::kBuiltIn) {
    worker->run_folder = worker->communicator.broadcast_text(worker->run_folder.string());
    if (!worker->is_rank0()) set_up_log(*worker);  // the folder of its log file is now known
  }
  return worker;
}

// Data and model of a worker.

/// Returns the failures of all ranks, in sample order. Collective.
std::vector<data::SampleFailure> all_failures(
    Worker& worker, const std::vector<data::SampleFailure>& local_failures) {
  nlohmann::json rows = nlohmann::json::array();
  for (const auto& failure : local_failures) rows.push_back({failure.sample, failure.message});
  const nlohmann::json gathered = worker.communicator.gather_text(json_text(rows));
  std::vector<data::SampleFailure> failures;
  for (const nlohmann::json& rank_rows :
       nlohmann::json::parse(worker.communicator.broadcast_text(json_text(gathered)))) {
    for (const auto& row : nlohmann::json::parse(rank_rows.get<std::string>())) {
      failures.push_back({row[0].get<std::int64_t>(), row[1].get<std::string>()});
    }
  }
  std::ranges::sort(failures, {}, &data::SampleFailure::sample);
  return failures;
}

data::Dataset open_streamed(Worker& worker, data::Splits splits) {
  const settings::DataOptions& options = worker.config.data;
  data::require_decoder(options.decode);
  data::DatasetReader reader(options, splits, worker.job.dataset_record);
  if (options.on_bad_sample == settings::OnBadSample::kError) return reader.stream();
  std::int64_t batch = 0;
  const auto failed =
      reader.check(worker.identity.rank, worker.identity.world_size,
                   static_cast<int>(options.decode_threads.value_or(at::get_num_threads())),
                   [&] { worker.enter(launch::Phase::kLoadingData, ++batch); });
  return reader.stream(all_failures(worker, failed));
}

data::Dataset read_or_attach(Worker& worker, data::Splits splits) {
  const settings::DataOptions& options = worker.config.data;
  if (options.decode != settings::Decode::kOnce) return open_streamed(worker, splits);
  if (!launch::was_handed_over("dataset")) {
    return data::DatasetReader(options, splits, worker.job.dataset_record).read();
  }
  // While the launcher decodes, waiting counts as progress; the wait ends if the launcher exits.
  const bool decodes = options.is_encoded();
  std::int64_t waited = 0;
  return data::attach({launch::kDatasetFd, launch::kDatasetReadyFd}, [&] {
    if (decodes) worker.enter(launch::Phase::kLoadingData, ++waited);
  });
}

/// Throws unless all ranks have opened the same data: they would train on a mixture, or wait for
/// one another in different steps. Collective.
void require_same_data(Worker& worker, const data::Dataset& dataset) {
  nlohmann::ordered_json facts{{"host", host_name()}};
  for (const auto& [name, set] : data::kSplits) {
    facts[std::string(name) + " images"] = (dataset.*set).count;
  }
  facts["classes"] = dataset.train.classes;
  facts["hash"] = hash_hex(dataset.hash + json_text(nlohmann::json(dataset.class_names)));
  worker.communicator.barrier();  // unlike an exchange of text, ends if a rank could not open it
  std::string refusal;
  const std::vector<std::string> gathered = worker.communicator.gather_text(json_text(facts));
  for (std::size_t rank = 1; rank < gathered.size() && refusal.empty(); ++rank) {
    const auto others = nlohmann::ordered_json::parse(gathered[rank]);
    for (const auto& [key, ours] : facts.items()) {
      if (key == "host" || others.at(key) == ours) continue;
      refusal = fmt::format(
          "rank {} on {} has different data than rank 0 on {} ({}: {} instead of {}): give every "
          "process the same files",
          rank, others.at("host").get<std::string>(), host_name(), key, others.at(key).dump(),
          ours.dump());
      break;
    }
  }
  refusal = worker.communicator.broadcast_text(refusal);
  if (refusal.empty()) return;
  worker.communicator.barrier();  // rank 0 may serve the store, so it must not exit first
  throw Error(ExitCode::kData, refusal);
}

/// Warns about a training set with one class, for which every network is always right.
void warn_of_single_class(const data::Dataset& dataset, const settings::DataOptions& options) {
  if (dataset.train.count == 0 || dataset.train.classes != 1) return;
  spdlog::warn("{}: the training set has only one class{}, so there is nothing to learn{}",
               dataset.train.source,
               dataset.class_names.empty() ? "" : " (" + dataset.class_names.front() + ")",
               options.format == settings::DataFormat::kImageFolder
                   ? "; expected a folder of images for each class"
                   : "");
}

}  // namespace

at::Device Worker::device() const {
  return placement.cuda
             ? at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(placement.device_index))
             : at::Device(at::kCPU);
}

std::unique_ptr<Worker> start_worker() {
  launch::Job job = launch::read_job(handed_over_or("job", launch::kJobFd, -1));
  try {
    return join_run(job);
  } catch (const std::exception&) {
    // No other rank knows the folder yet. Our own launcher discards it itself.
    if (!launch::was_handed_over("failure")) {
      report::discard_run_folder(job.run_folder, job.created_folders);
    }
    throw;
  }
}

void prepare_kernels(const Worker& worker) {
  const bool is_off = worker.config.train.gpu_kernels == settings::GpuKernels::kOff;
  if (worker.placement.cuda && !is_off) kernels::prepare(worker.device());
}

void record_stop_signals() { recording = true; }

int stop_signal() { return recorded_signal; }

ExitCode stopped_exit_code() {
  return static_cast<ExitCode>(launch::stopped_exit_code(recorded_signal));
}

void requeue_if_asked(Worker& worker) {
  const bool is_asked = worker.communicator.sum_over_ranks(stop_signal() == SIGUSR1 ? 1 : 0) > 0;
  const auto job = environment_variable("SLURM_JOB_ID");
  if (!is_asked || !worker.is_rank0() || !job) return;
  const std::string command = "scontrol requeue " + shell_word(*job);
  // Its output does not belong on standard output, which is for results.
  if (std::system((command + " >&2").c_str()) == 0) {
    spdlog::info("requeued Slurm job {}", *job);
  } else {
    spdlog::error("{} failed: requeue the job manually", command);
  }
}

void log_left_out(const data::Dataset& dataset) {
  constexpr std::ptrdiff_t kMaxWarned = 10;
  const std::string left_out = data::left_out_text(dataset.left_out);
  if (!left_out.empty()) spdlog::warn("left out: {}", left_out);
  if (dataset.left_out.added > 0) {
    spdlog::info("ignored {} added since the run began", counted(dataset.left_out.added, "file"));
  }
  for (const std::string& note : dataset.notes) spdlog::warn("{}", note);
  if (dataset.skipped.empty()) return;
  const std::ptrdiff_t count = std::ssize(dataset.skipped);
  spdlog::warn("skipped {} (data.on_bad_sample: skip)", counted(count, "unusable image"));
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    if (i == kMaxWarned) spdlog::warn("skipped: {} more", count - i);
    spdlog::log(i < kMaxWarned ? spdlog::level::warn : spdlog::level::debug, "skipped: {}",
                dataset.skipped[static_cast<std::size_t>(i)]);
  }
}

data::Dataset open_dataset(Worker& worker, data::Splits splits) {
  worker.enter(launch::Phase::kLoadingData);
  const bool has_training_set = splits != data::Splits::kTest;
  if (has_training_set) {
    settings::require_set_per_process(worker.config.data, worker.identity.world_size);
  }
  data::Dataset dataset = read_or_attach(worker, splits);
  if (worker.is_rank0()) {
    log_left_out(dataset);
    warn_of_single_class(dataset, worker.config.data);
  }
  if (has_training_set && std::ranges::count(dataset.train_parts, 0) > 0) {
    throw Error(ExitCode::kData, "data.train_per_process: one of the sets has no usable samples");
  }
  if (!launch::was_handed_over("dataset")) require_same_data(worker, dataset);
  return dataset;
}

data::ImageSet image_shape(const Worker& worker) {
  const settings::DataOptions& options = worker.config.data;
  std::optional<network::ImageShape> shape;
  if (!worker.job.checkpoint.empty()) {
    if (const auto facts = checkpoint::facts_of(worker.job.checkpoint)) shape = facts->images;
  }
  if (!shape) shape = network::known_images(options);
  if (!shape && options.size && options.channels && !worker.job.dataset_record.empty()) {
    const auto record = data::read_dataset_record(worker.job.dataset_record, options.format);
    shape = network::ImageShape{*options.channels, options.size->height, options.size->width,
                                record.classes};
  }
  if (!shape && !worker.job.dataset_record.empty()) {  // a weights file in the folder of a run
    const auto folder = worker.job.dataset_record.parent_path() / settings::run_files::kCheckpoints;
    const auto other = newest_intact_checkpoint(folder);
    if (const auto facts = other ? checkpoint::facts_of(*other) : std::nullopt) {
      shape = facts->images;
    }
  }
  if (!shape) return data::read_image_shape(options, worker.job.dataset_record);
  if (options.channels) shape->channels = *options.channels;
  if (options.size) {
    shape->height = options.size->height;
    shape->width = options.size->width;
  }
  return data::empty_image_set({shape->channels, shape->height, shape->width}, shape->classes);
}

std::shared_ptr<loader::Augmenter> make_augmenter(const Worker& worker,
                                                  const data::ImageSet& images,
                                                  bool mixes_across_ranks) {
  if (worker.config.data.augment.empty()) return nullptr;
  const settings::AugmentList list = settings::list_for_images(
      worker.config.data.augment, images.channels, worker.config.data.background);
  const bool is_global =
      mixes_across_ranks && settings::mixing_scope(list) == settings::MixupScope::kGlobal;
  loader::ReceiveFromNext receive;
  const std::int64_t shards = worker.config.train.shards.value_or(worker.communicator.world_size());
  const bool gathers_partners = is_global && worker.config.train.shards && shards > 1;
  if (is_global && shards == 1) {
    spdlog::warn(
        "{} with scope global mixes samples across processes or shards, but this run has one "
        "process and one shard: samples are not mixed",
        settings::find<settings::MixupOptions>(list) != nullptr ? "mixup" : "cutmix");
  } else if (is_global && !gathers_partners) {
    receive = [&communicator = worker.communicator](const at::Tensor& local, std::int64_t count) {
      return communicator.receive_from_next(local, count);
    };
  }
  return std::make_shared<loader::Augmenter>(list, settings::ImageSize{images.height, images.width},
                                             worker.config.train.seed, worker.device(),
                                             std::move(receive), gathers_partners);
}

network::ImageShape model_input(const settings::RunConfig& config, const data::ImageSet& images) {
  return network::model_input(config.data,
                              {images.channels, images.height, images.width, images.classes});
}

std::shared_ptr<models::Model> make_model(const settings::RunConfig& config,
                                          const data::ImageSet& images) {
  auto model = models::make_model(config.model, model_input(config, images), config.train.seed);
  const auto names_head = [](const settings::ParameterOptions& entry) {
    return std::ranges::count(entry.match, settings::kHead) > 0;
  };
  if (std::ranges::any_of(config.train.parameters, names_head)) {
    checkpoint::require_head("/parameters: ", *model, images.classes);
  }
  return model;
}

}  // namespace mnist_train::app
