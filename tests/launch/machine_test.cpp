#include "launch/machine.h"

#include <sched.h>
#include <unistd.h>

#include "support/catch.h"

namespace mnist_train::launch {
namespace {

TEST_CASE("a process that is bound to one processor has one core") {
  cpu_set_t before;
  REQUIRE(::sched_getaffinity(0, sizeof before, &before) == 0);
  const int all = usable_cores();
  CHECK(all >= 1);
  CHECK(all <= CPU_COUNT(&before));
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &before)) continue;
    CPU_SET(core, &one);
    break;
  }
  REQUIRE(::sched_setaffinity(0, sizeof one, &one) == 0);
  const int bound = usable_cores();
  REQUIRE(::sched_setaffinity(0, sizeof before, &before) == 0);
  CHECK(bound == 1);
}

TEST_CASE("a machine without NVIDIA's driver shows no GPU") {
  const int gpus = visible_gpus();
  if (::access("/dev/nvidiactl", F_OK) != 0) {
    CHECK(gpus == 0);
  } else {
    CHECK(gpus >= 0);
  }
}

}  // namespace
}  // namespace mnist_train::launch
