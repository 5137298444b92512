#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

#include "base/error.h"
#include "data/dataset.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/idx_bytes.h"
#include "support/open_dataset.h"
#include "support/temp_folder.h"

namespace mnist_train::data {
namespace {

using namespace testing;
using std::chrono::milliseconds;

settings::DataOptions shared_at(const std::filesystem::path& folder) {
  return data_at(settings::DataFormat::kIdx, folder, folder);
}

/// Returns duplicates of the descriptors, like those that another worker inherits.
SharedDatasetHandle copy_of(const SharedDatasetHandle& handle) {
  return {::fcntl(handle.memory_fd, F_DUPFD_CLOEXEC, 3),
          ::fcntl(handle.ready_fd, F_DUPFD_CLOEXEC, 3)};
}

/// Runs a function in a child process, which exits with the result as its status.
pid_t start(const std::function<int()>& run) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  int result = 99;
  try {
    result = run();
  } catch (...) {  // exceptions must not reach the test framework
  }
  ::_exit(result);
}

int status_of(pid_t child) {
  int status = 0;
  if (::waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

bool same_samples(const ImageSet& a, const ImageSet& b) {
  return a.count == b.count && a.channels == b.channels && a.height == b.height &&
         a.width == b.width && a.classes == b.classes && a.source == b.source &&
         std::equal(a.images.begin(), a.images.end(), b.images.begin(), b.images.end()) &&
         std::equal(a.labels.begin(), a.labels.end(), b.labels.begin(), b.labels.end());
}

bool same(const Dataset& a, const Dataset& b) {
  return a.hash == b.hash && same_samples(a.train, b.train) &&
         same_samples(a.validation, b.validation) && same_samples(a.test, b.test);
}

TEST_CASE("a late worker finds the samples, even after the launcher has exited") {
  const TempFolder folder;
  SmallDataset{}.write(folder.path());
  SharedDatasetHandle late;
  {
    SharedDataset shared;
    shared.publish(shared_at(folder.path()));
    shared.wait();
    late = copy_of(shared.handle());
  }
  CHECK(same(attach(late), open_dataset(shared_at(folder.path()))));
}

TEST_CASE("workers detect a launcher that dies before the samples are published") {
  std::array<int, 2> result{};
  REQUIRE(::pipe(result.data()) == 0);
  const auto started = std::chrono::steady_clock::now();
  const pid_t launcher = start([&] {
    auto shared = std::make_unique<SharedDataset>();
    start([&] {
      const SharedDatasetHandle handle = copy_of(shared->handle());
      shared.reset();  // as exec would, because the launcher's end is close-on-exec
      const auto failure = error_of([&] { attach(handle); });
      const char verdict = failure.is_peer_error ? 'y' : 'n';
      return ::write(result[1], &verdict, 1) == 1 ? 0 : 1;
    });
    return ::kill(::getpid(), SIGKILL);
  });
  CHECK(status_of(launcher) == -1);
  ::close(result[1]);
  char verdict = 0;
  CHECK(::read(result[0], &verdict, 1) == 1);
  ::close(result[0]);
  CHECK(verdict == 'y');
  CHECK(std::chrono::steady_clock::now() - started < milliseconds(5000));
}

TEST_CASE("if the data is broken, the launcher's error is the cause and the workers are victims") {
  const TempFolder folder;
  SmallDataset{}.write(folder.path());
  folder.write("train-labels-idx1-ubyte", "not labels");
  SharedDataset shared;
  shared.publish(shared_at(folder.path()));
  const auto worker = error_of([&] { attach(copy_of(shared.handle())); });
  CHECK(worker.is_peer_error);
  CHECK_ERROR(shared.wait(), ExitCode::kData, "train-labels-idx1-ubyte: byte 0:");
}

}  // namespace
}  // namespace mnist_train::data
