#include "launch/job.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "support/error_of.h"
#include "support/temp_folder.h"

namespace mnist_train::launch {
namespace {

using namespace testing;

TEST_CASE("a job arrives unchanged, as often as it is read") {
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
    CHECK(read.command == job.command);
    CHECK(read.config == job.config);
    CHECK(read.config_path == job.config_path);
    CHECK(read.run_folder == job.run_folder);
    CHECK(read.resume == job.resume);
    CHECK(read.checkpoint == job.checkpoint);
    CHECK(read.export_format == job.export_format);
    CHECK(read.export_input == job.export_input);
    CHECK(read.export_path == job.export_path);
    CHECK(read.log_level == job.log_level);
    CHECK(read.quiet);
    CHECK(read.progress_bar);
    CHECK(read.started_s == job.started_s);
    CHECK(read.restarts == job.restarts);
  }
}

TEST_CASE("a worker that was started by hand says so") {
  CHECK_THAT(error_of([] { read_job(-1); }),
             IsError(ExitCode::kConfig, "started by mnist-train, not by hand"));
}

TEST_CASE("a descriptor without a job is an error") {
  const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  CHECK(error_of([&] { read_job(null.get()); }).code == ExitCode::kRunFailed);
}

TEST_CASE("the command that resumes can be pasted into a shell") {
  CHECK(resume_command("/runs/mnist/1") ==
        "mnist-train --config /runs/mnist/1/config.json --output /runs/mnist/1 --resume auto");
  CHECK(resume_command("/runs/it's b") ==
        "mnist-train --config '/runs/it'\\''s b/config.json' --output '/runs/it'\\''s b' --resume "
        "auto");
  CHECK(resume_command("/runs/a\x1b'b\n") ==
        "mnist-train --config $'/runs/a\\033\\'b\\012/config.json' --output "
        "$'/runs/a\\033\\'b\\012' --resume auto");
  CHECK(resume_command("/r", "mnist-train", "/r/checkpoints/best.safetensors") ==
        "mnist-train --config /r/config.json --output /r --resume /r/checkpoints/best.safetensors");
  CHECK(resume_command("/r", "/opt/my tools/mnist-train") ==
        "'/opt/my tools/mnist-train' --config /r/config.json --output /r --resume auto");
}

TEST_CASE("the advice after a failure is a command that can work") {
  const testing::TempFolder run;
  CHECK(recovery_advice(run.path()) == "  no checkpoint was written\n");
  const std::string damaged = "damaged, which is long enough for a seal";
  run.write("checkpoints/step-00000009.safetensors", damaged);
  CHECK(recovery_advice(run.path()) ==
        "  none of its checkpoints can be read\n  start again with: "
        "mnist-train --config " +
            (run.path() / "config.json").string() + "\n");
  const std::string content = "weights";
  Hasher hasher;
  hasher.update(content.data(), content.size());
  const auto seal = hasher.digest();
  const std::string whole = content + std::string(seal.begin(), seal.end());
  const auto best = run.write("checkpoints/best.safetensors", whole);
  CHECK(recovery_advice(run.path()) ==
        "  newest checkpoint: " + best.string() + "\n  continue with: " +
            resume_command(run.path(), "mnist-train", best.string()) + "\n");
  const auto older = run.write("checkpoints/step-00000008.safetensors", whole);
  CHECK(recovery_advice(run.path()) == "  newest checkpoint: " + older.string() +
                                           "\n  continue with: " + resume_command(run.path()) +
                                           "\n");
}

TEST_CASE("commands name paths in the working directory by relative paths") {
  const auto here = std::filesystem::current_path();
  CHECK(predict_command(here / "a b.pt", "mnist-train") ==
        "mnist-train predict --checkpoint 'a b.pt' IMAGE.png");
}

TEST_CASE("a message on a config key names its place in the file") {
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
  // A path may begin like a pointer.
  const Error path(ExitCode::kConfig, "/model/plugin/runs/first: already contains a run");
  CHECK(message_of(path, positions) == path.what());
}

}  // namespace
}  // namespace mnist_train::launch
