#pragma once

#include "base/file.h"

namespace mnist_train::dali {

/// While it lives, what is written to standard error is lost.
class Silence {
 public:
  Silence();
  Silence(const Silence&) = delete;
  Silence& operator=(const Silence&) = delete;
  ~Silence();

 private:
  UniqueFd saved_;
};

}  // namespace mnist_train::dali
