#include "launch/job.h"

#include <fcntl.h>
#include <sys/resource.h>

#include "base/cpu.h"
#include "base/error.h"
#include "base/file.h"
#include "support/error_of.h"
#include "support/scoped_environment.h"
#include "support/temp_folder.h"

namespace mnist_train::launch {
namespace {

using settings::BackendName;
using settings::DeviceName;
using settings::RunConfig;
using namespace testing;

TEST_CASE("a job arrives unchanged and can be read several times") {
  Job job;
  job.command = Command::kPreview;
  job.config = "{\"epochs\": 3}\n" + std::string(200000, ' ');
  job.config_path = "/configs/a \"b\" \xff\xfe.json";  // not UTF-8
  job.run_folder = "/runs/\xe9t\xe9";
  job.resume = "auto";
  job.checkpoint = "/runs/0/checkpoints/step-00000001.safetensors";
  job.export_format = "pt";
  job.export_input = "bytes";
  job.export_path = "/tmp/out.pt";
  job.log_level = "debug";
  job.quiet = true;
  job.progress_bar = true;
  job.started_s = 12345.678901234567;
  job.restarts = 2;
  const UniqueFd fd = publish_job(job);
  for (int reader = 0; reader < 2; ++reader) {
    const Job read = read_job(fd.get());
    const auto all = [](const Job& of) {
      return std::tie(of.command, of.config, of.config_path, of.run_folder, of.resume,
                      of.checkpoint, of.export_format, of.export_input, of.export_path,
                      of.log_level, of.quiet, of.progress_bar, of.started_s, of.restarts);
    };
    CHECK((all(read) == all(job)));
  }
}

TEST_CASE("a worker that was started manually is refused") {
  CHECK_THAT(error_of([] { read_job(-1); }),
             IsError(ExitCode::kConfig, "started by mnist-train, not manually"));
}

TEST_CASE("a descriptor without a job is an error") {
  const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  CHECK(error_of([&] { read_job(null.get()); }).code == ExitCode::kRunFailed);
}

TEST_CASE("the resume command can be pasted into a shell") {
  CHECK(resume_command("/runs/mnist/1") ==
        "mnist-train --config /runs/mnist/1/config.json --output /runs/mnist/1 --resume auto");
  CHECK(resume_command("/runs/it's b") ==
        "mnist-train --config '/runs/it'\\''s b/config.json' --output '/runs/it'\\''s b' --resume "
        "auto");
  CHECK(resume_command("/r", "mnist-train", "/r/checkpoints/best.safetensors") ==
        "mnist-train --config /r/config.json --output /r --resume /r/checkpoints/best.safetensors");
  CHECK(resume_command("/r", "/opt/my tools/mnist-train") ==
        "'/opt/my tools/mnist-train' --config /r/config.json --output /r --resume auto");
}

TEST_CASE("the advice after a failure depends on which checkpoints can be read") {
  const testing::TempFolder run;
  constexpr bool kIsMistake = true;
  const auto advice = [&run](ExitCode code = ExitCode::kDone, bool is_mistake = false) {
    return recovery_advice(run.path(), "mnist-train", code, is_mistake);
  };
  const std::string none = "  no checkpoint was written\n";
  CHECK(advice() == none);
  run.write("config.json", "{}");
  const std::string start_again = "  start again with: " + resume_command(run.path()) + "\n";
  CHECK(advice() == none + start_again);
  CHECK(advice(ExitCode::kDistributed) == none + start_again);
  CHECK(advice(ExitCode::kRunFailed) == none);
  CHECK(advice(ExitCode::kCheckpoint, kIsMistake) == none);
  const std::string damaged = "damaged, which is long enough for a seal";
  run.write("checkpoints/step-00000009.safetensors", damaged);
  for (const bool is_mistake : {false, kIsMistake}) {
    CHECK(advice(ExitCode::kCheckpoint, is_mistake) ==
          "  none of the run's checkpoints can be read\n  start again with: "
          "mnist-train --config " +
              (run.path() / "config.json").string() + " --output " + run.path().string() + "-2\n");
  }
  const std::string content = "weights";
  Hasher hasher;
  hasher.update(content.data(), content.size());
  const auto seal = hasher.digest();
  const std::string whole = content + std::string(seal.begin(), seal.end());
  const auto best = run.write("checkpoints/best.safetensors", whole);
  CHECK(advice(ExitCode::kCheckpoint, kIsMistake) ==
        "  newest checkpoint: " + best.string() + "\n  continue with: " +
            resume_command(run.path(), "mnist-train", best.string()) + "\n");
  const auto older = run.write("checkpoints/step-00000008.safetensors", whole);
  const std::string newest = "  newest checkpoint: " + older.string() + "\n";
  for (const ExitCode code : {ExitCode::kDone, ExitCode::kRunFailed, ExitCode::kCheckpoint}) {
    CHECK(advice(code) == newest + "  continue with: " + resume_command(run.path()) + "\n");
  }
  CHECK(advice(ExitCode::kCheckpoint, kIsMistake) == newest);
}

TEST_CASE("printed commands show paths inside the working directory as relative") {
  const auto here = std::filesystem::current_path();
  CHECK(predict_command(here / "a b.pt", "mnist-train") ==
        "mnist-train predict --checkpoint 'a b.pt' IMAGE.png");
}

TEST_CASE("an error about a config key states its position in the file") {
  const std::map<std::string, std::string> positions{{"/model/plugin", "c.json:3:5"},
                                                     {"/model/options", "c.json:4:7"}};
  CHECK(message_of(ConfigKeyError("/model/plugin: /a.so: cannot be loaded\n  because"),
                   positions) == "c.json:3:5: /model/plugin: /a.so: cannot be loaded\n  because");
  CHECK(
      message_of(ConfigKeyError("/model/options/width: wrong\n/model/options: wrong"), positions) ==
      "c.json:4:7: /model/options/width: wrong\nc.json:4:7: /model/options: wrong");
  for (const char* other : {"/data/train: wrong", "/file: wrong", "wrong: /model/plugin: x", "/"}) {
    CHECK(message_of(ConfigKeyError(other), positions) == other);
  }
  // A path may look like a JSON pointer.
  const Error path(ExitCode::kConfig, "/model/plugin/runs/first: already contains a run");
  CHECK(message_of(path, positions) == path.what());
}

constexpr Machine kLaptop{8, 0};
constexpr Machine kOneGpu{8, 1};
constexpr Machine kTwoGpus{8, 2};

RunConfig asking(DeviceName device, BackendName backend = BackendName::kAuto,
                 std::vector<std::string> devices = {}) {
  RunConfig config;
  config.train.device = device;
  config.train.backend = backend;
  config.launch.devices = std::move(devices);
  return config;
}

RunConfig on_devices(std::vector<std::string> devices) {
  return asking(DeviceName::kAuto, BackendName::kAuto, std::move(devices));
}

/// Returns the device and backend of one of `world` ranks on one machine, such as "cuda:1 nccl".
std::string place(const RunConfig& config, const Machine& machine, int rank, int world) {
  const Placement placement = choose_placement(config, machine, rank, world);
  return placement.device_name() + " " + placement.backend;
}

TEST_CASE("the limit on open files is raised for the descriptors of many processes") {
  rlimit before{};
  rlimit raised{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit low{600, before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &low);
  require_open_files();
  ::getrlimit(RLIMIT_NOFILE, &raised);
  ::setrlimit(RLIMIT_NOFILE, &before);
  CHECK(raised.rlim_cur == std::min<rlim_t>(before.rlim_max, 65536));
}

TEST_CASE("by default the launcher starts one process per GPU, or one per core up to two") {
  const RunConfig config;
  CHECK(choose_process_count(config, {1, 0}) == 1);
  CHECK(choose_process_count(config, {2, 0}) == 2);
  CHECK(choose_process_count(config, {64, 0}) == 2);
  CHECK(choose_process_count(config, {64, 1}) == 1);
  CHECK(choose_process_count(config, {2, 8}) == 8);
  CHECK(choose_process_count(asking(DeviceName::kCpu), {64, 8}) == 2);
}

TEST_CASE("with small batches or large linear layers, two cores run one process with two threads") {
  RunConfig config;
  config.model.name = settings::ModelName::kMlp;
  CHECK(choose_process_count(config, {2, 0}) == 1);
  CHECK(choose_placement(config, {2, 0}, 0, 1).threads == 2);
  CHECK(
      placement_note(config, {2, 0}).starts_with("using one process with a thread for each core"));
  CHECK(choose_process_count(config, {4, 0}) == 2);
  CHECK(placement_note(config, {4, 0}).empty());
  CHECK(choose_process_count(config, {2, 3}) == 3);

  config.data.format = settings::DataFormat::kLmdb;  // images of unknown size
  CHECK(choose_process_count(config, {2, 0}) == 1);
  config.data.augment = {settings::RandomCropOptions{.size = {{224, 224}}}};
  CHECK(choose_process_count(config, {2, 0}) == 2);
  config.data = {};

  RunConfig small_batch;
  small_batch.train.batch_size = 32;
  CHECK(choose_process_count(small_batch, {2, 0}) == (cpu_features().avx512 ? 1 : 2));
  CHECK(choose_process_count(small_batch, {4, 0}) == 2);
  small_batch.train.batch_size = 33;
  CHECK(choose_process_count(small_batch, {2, 0}) == 2);

  using Change = void (*)(RunConfig&);
  for (const Change change : std::initializer_list<Change>{
           [](RunConfig& with) { with.train.deterministic = true; },
           [](RunConfig& with) { with.launch.threads_per_process = 1; },
           [](RunConfig& with) { with.train.batch_size_per_process = 32; },
           [](RunConfig& with) {
             with.data.augment = {
                 settings::MixupOptions{1, std::nullopt, settings::MixupScope::kGlobal}};
           }}) {
    RunConfig changed = config;
    change(changed);
    CHECK(choose_process_count(changed, {2, 0}) == 2);
  }
}

TEST_CASE("the configured number of processes is used") {
  RunConfig config;
  config.launch.processes_per_node = 5;
  CHECK(choose_process_count(config, kLaptop) == 5);
  CHECK(choose_process_count(config, kTwoGpus) == 5);
  CHECK(choose_process_count(on_devices({"cuda:0", "cuda:0", "cpu"}), kOneGpu) == 3);
}

TEST_CASE("ranks run on GPUs if there are any, and share them if there are too few") {
  const RunConfig config;
  CHECK(place(config, kLaptop, 0, 1) == "cpu gloo");
  CHECK(place(config, kLaptop, 1, 2) == "cpu gloo");
  CHECK(place(config, kOneGpu, 0, 1) == "cuda:0 nccl");
  CHECK(place(config, kTwoGpus, 0, 2) == "cuda:0 nccl");
  CHECK(place(config, kTwoGpus, 1, 2) == "cuda:1 nccl");
  // NCCL refuses two ranks on one GPU, so they use Gloo.
  CHECK(place(config, kTwoGpus, 2, 3) == "cuda:0 gloo");
  CHECK(place(config, kOneGpu, 1, 2) == "cuda:0 gloo");
}

TEST_CASE("the configured device and backend are used") {
  CHECK(place(asking(DeviceName::kCpu), kTwoGpus, 1, 2) == "cpu gloo");
  CHECK(place(asking(DeviceName::kCuda, BackendName::kGloo), kTwoGpus, 1, 2) == "cuda:1 gloo");
  CHECK(place(asking(DeviceName::kCuda, BackendName::kNccl), kTwoGpus, 1, 2) == "cuda:1 nccl");
}

TEST_CASE("listed devices are assigned to ranks in order") {
  const RunConfig mixed = on_devices({"cuda:1", "cpu", "cuda:1"});
  CHECK(place(mixed, kTwoGpus, 0, 3) == "cuda:1 gloo");
  CHECK(place(mixed, kTwoGpus, 1, 3) == "cpu gloo");
  CHECK(place(mixed, kTwoGpus, 2, 3) == "cuda:1 gloo");
  const RunConfig swapped = on_devices({"cuda:1", "cuda:0"});
  CHECK(place(swapped, kTwoGpus, 0, 2) == "cuda:1 nccl");
  CHECK(place(swapped, kTwoGpus, 1, 2) == "cuda:0 nccl");
  const RunConfig unnumbered = on_devices({"cuda", "cuda"});
  CHECK(place(unnumbered, kTwoGpus, 0, 2) == "cuda:0 nccl");
  CHECK(place(unnumbered, kTwoGpus, 1, 2) == "cuda:1 nccl");
}

TEST_CASE("if there are more ranks than listed devices, they share them and use Gloo") {
  const RunConfig one = on_devices({"cuda:0"});
  CHECK(place(one, kTwoGpus, 0, 1) == "cuda:0 nccl");
  CHECK(place(one, kTwoGpus, 1, 2) == "cuda:0 gloo");
}

TEST_CASE("equal GPU indices do not imply sharing unless all ranks see the same GPUs") {
  Machine own_view = kOneGpu;
  own_view.same_for_all = false;
  CHECK(place({}, own_view, 1, 2) == "cuda:0 nccl");
  CHECK(place(asking(DeviceName::kAuto, BackendName::kNccl), own_view, 1, 2) == "cuda:0 nccl");
  CHECK(place(asking(DeviceName::kAuto, BackendName::kGloo), own_view, 1, 2) == "cuda:0 gloo");
  const RunConfig mixed = on_devices({"cuda", "cpu"});
  CHECK(place(mixed, own_view, 0, 2) == "cuda:0 gloo");
}

TEST_CASE("ranks take unused GPUs as long as there are any") {
  using Lists = std::vector<std::vector<std::string>>;
  struct Case {
    Lists allowed;
    std::vector<std::size_t> indices;
    int first;
    int second;
  };
  for (const Case& entry : {
           Case{{{"a", "b"}, {"a", "b"}}, {0, 1}, -1, -1},
           Case{{{"a"}, {"b"}}, {0, 0}, -1, -1},  // --gpus-per-task=1
           Case{{{"a"}, {"a"}}, {0, 0}, 0, 1},    // both see only the same GPU
           Case{{{"a", "b"}, {"c", "d"}, {"a", "b"}, {"c", "d"}}, {0, 0, 1, 1}, -1, -1},
           Case{{{"a", "b"}, {"b", "a"}}, {0, 0}, -1, -1},
           Case{{{"a", "b"}, {"a", "b"}, {"a", "b"}}, {0, 1, 0}, 0, 2},
           Case{{{}, {"a"}, {"a"}}, {0, 0, 0}, 1, 2},
           Case{{{}, {}}, {0, 0}, -1, -1},
       }) {
    const GpuAssignment assignment = assign_gpus(entry.allowed);
    CHECK(assignment.indices == entry.indices);
    CHECK(assignment.first == entry.first);
    CHECK(assignment.second == entry.second);
    CHECK(assignment.is_exclusive() == (entry.first < 0));
  }
}

TEST_CASE("ranks that share a GPU use Gloo, or are refused if the config requires NCCL") {
  GpuAssignment assignment;
  assignment.first = 1;
  assignment.second = 4;
  CHECK(backend_for_shared_gpu({}, assignment) == "gloo");
  CHECK_THAT(error_of([&] {
               (void)backend_for_shared_gpu(asking(DeviceName::kAuto, BackendName::kNccl),
                                            assignment);
             }),
             IsError(ExitCode::kConfig, "ranks 1 and 4 share one"));
}

TEST_CASE("an unusable device or backend is refused, never replaced by another one") {
  struct Case {
    RunConfig config;
    Machine machine;
    int processes;
    const char* reason;
  };
  const std::vector<Case> bad{
      {asking(DeviceName::kCuda), kLaptop, 1, "device \"cuda\", but no GPU is visible"},
      {asking(DeviceName::kAuto, BackendName::kNccl), kLaptop, 2, "backend \"nccl\", but"},
      {on_devices({"cpu", "cuda"}), kLaptop, 2, "no GPU"},
      {on_devices({"cuda:0", "cuda:2"}), kTwoGpus, 2,
       "\"cuda:2\", but this machine has 2 visible GPUs"},
      {asking(DeviceName::kAuto, BackendName::kNccl), kTwoGpus, 3, "3 processes share 2 GPUs"},
      {asking(DeviceName::kCuda, BackendName::kNccl), kOneGpu, 2,
       "a separate GPU for every process"},
      {asking(DeviceName::kAuto, BackendName::kNccl, {"cuda:0", "cuda:0"}), kTwoGpus, 2,
       "a separate GPU for every process"},
  };
  for (const Case& entry : bad) {
    INFO(entry.reason);
    CHECK_THAT(error_of([&] {
                 for (int rank = 0; rank < entry.processes; ++rank) {
                   (void)place(entry.config, entry.machine, rank, entry.processes);
                 }
               }),
               IsError(ExitCode::kConfig, entry.reason));
  }
  CHECK_THAT(error_of([] { choose_process_count(asking(DeviceName::kCuda), kLaptop); }),
             IsError(ExitCode::kConfig, "\"gloo\""));
}

TEST_CASE("ranks divide the cores unless the config or environment sets the number of threads") {
  const auto threads = [](const RunConfig& config, int world) {
    return choose_placement(config, kLaptop, 0, world).threads;
  };
  RunConfig config;
  RunConfig named;
  named.launch.threads_per_process = 3;
  RunConfig deterministic;
  deterministic.train.deterministic = true;
  {
    const ScopedEnvironment unset("OMP_NUM_THREADS", nullptr);
    CHECK(threads(config, 1) == 8);
    CHECK(threads(config, 2) == 4);
    CHECK(threads(config, 3) == 2);
    CHECK(threads(config, 100) == 1);
    CHECK(threads(deterministic, 1) == 1);
  }
  const ScopedEnvironment set("OMP_NUM_THREADS", "5");
  CHECK(threads(config, 2) == 5);
  CHECK(threads(named, 2) == 3);
  CHECK(threads(deterministic, 2) == 1);
  named.train.deterministic = true;
  CHECK(threads(named, 2) == 3);
}

TEST_CASE("an invalid OMP_NUM_THREADS is ignored") {
  RunConfig config;
  for (const char* value : {"", "many", "0", "-3", "99999999999999999999"}) {
    const ScopedEnvironment set("OMP_NUM_THREADS", value);
    INFO(value);
    CHECK(choose_placement(config, kLaptop, 0, 2).threads == 4);
  }
  const ScopedEnvironment nested("OMP_NUM_THREADS", "3,2");  // one number per nesting level
  CHECK(choose_placement(config, kLaptop, 0, 2).threads == 3);
}

}  // namespace
}  // namespace mnist_train::launch
