#include "base/limits.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "support/catch.h"
#include "support/file_size_limit.h"
#include "support/temp_folder.h"

namespace mnist_train {
namespace {

using Catch::Matchers::ContainsSubstring;

TEST_CASE("the refusing limit is the one closest to exhaustion") {
  const testing::TempFolder root;
  root.write("proc/self/cgroup", "0::/job\n");
  root.write("proc/self/mountinfo", "31 24 0:26 / /sys/fs/cgroup rw - cgroup2 none rw\n");
  root.write("proc/loadavg", "0.10 0.20 0.30 2/300 4711\n");
  root.write("proc/sys/kernel/threads-max", "96364\n");
  root.write("proc/sys/kernel/pid_max", "32768\n");
  const auto group = root.write("sys/fs/cgroup/job/pids.max", "max\n").parent_path();
  root.write("sys/fs/cgroup/job/pids.current", "100\n");
  const auto limits = process_limits(root.path());
  CHECK(std::none_of(limits.begin(), limits.end(),
                     [](const ProcessLimit& limit) { return limit.name.starts_with("pids.max"); }));

  root.write("sys/fs/cgroup/job/pids.max", "101\n");
  CHECK_THAT(refusing_limit(root.path()).value_or(""),
             ContainsSubstring("pids.max of cgroup " + group.string() +
                               " allows 101 processes and threads, and 100 are in use"));
  root.write("sys/fs/cgroup/job/pids.max", "400\n");
  root.write("proc/sys/kernel/threads-max", "301\n");
  CHECK_THAT(refusing_limit(root.path()).value_or(""),
             ContainsSubstring("kernel.threads-max allows 301"));
}

TEST_CASE("an error names the limit that caused it and how to raise it") {
  CHECK(error_text(ENOENT) == "No such file or directory");
  CHECK_THAT(error_text(ENOSPC), ContainsSubstring("free some space"));
  CHECK_THAT(error_text(EMFILE), ContainsSubstring("ulimit -n is "));
  CHECK(error_text(EFBIG) == "File too large");
  const testing::FileSizeLimit limit(3 << 20);
  CHECK_THAT(error_text(EFBIG), ContainsSubstring("(ulimit -f is 3 MiB)"));
}

}  // namespace
}  // namespace mnist_train
