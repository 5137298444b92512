#pragma once

#include <spdlog/spdlog.h>

#include <memory>

#include "base/print.h"

namespace mnist_train::testing {

/// Sets up logging; the destructor restores the previous logger.
class ScopedLogging {
 public:
  explicit ScopedLogging(const LogSetup& setup) : before_(spdlog::default_logger()) {
    set_up_logging(setup);
  }
  ScopedLogging(const ScopedLogging&) = delete;
  ScopedLogging& operator=(const ScopedLogging&) = delete;
  ~ScopedLogging() { spdlog::set_default_logger(before_); }

 private:
  std::shared_ptr<spdlog::logger> before_;
};

/// Suppresses log output in tests that do not check it.
class SilentLog : public ScopedLogging {
 public:
  SilentLog() : ScopedLogging(no_console()) {}

 private:
  static LogSetup no_console() {
    LogSetup setup;
    setup.console_fd = -1;
    return setup;
  }
};

}  // namespace mnist_train::testing
