#include "dali/silence.h"

#include <fcntl.h>
#include <unistd.h>

namespace mnist_train::dali {

Silence::Silence() : saved_(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3)) {
  const UniqueFd nowhere(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  if (saved_.valid() && nowhere.valid()) ::dup2(nowhere.get(), STDERR_FILENO);
}

Silence::~Silence() {
  if (saved_.valid()) ::dup2(saved_.get(), STDERR_FILENO);
}

}  // namespace mnist_train::dali
