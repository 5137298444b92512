#pragma once

#include <exception>
#include <stdexcept>
#include <string>

namespace mnist_train {

/// Exit codes of the program, its contract with scripts and schedulers.
enum class ExitCode : int {
  kDone = 0,
  kRunFailed = 1,
  kConfig = 2,
  kData = 3,
  kDistributed = 4,
  kCheckpoint = 5,
  kInterrupted = 130,
  kTerminated = 143,
};

/// The exception of the program: an exit code, and a message that says what happened, where and
/// what to do. Caught once, in `main` of each executable.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}

  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

/// This process failed only because another one did: a peer closed its connection or did not answer
/// in time. The launcher reports the other one as the cause.
class PeerError : public Error {
 public:
  explicit PeerError(const std::string& message) : Error(ExitCode::kDistributed, message) {}
};

/// A mistake in the config that only the data, the machine or a user's library reveals. Each line
/// of the message begins with the pointer of a key; callers that know the text of the config
/// prepend FILE:LINE:COLUMN.
class ConfigKeyError : public Error {
 public:
  explicit ConfigKeyError(const std::string& message) : Error(ExitCode::kConfig, message) {}
};

/// Returns the message of LibTorch or a backend on one line, without stack trace and source
/// location:
/// "[/pytorch/.../pair.cc:538] Read error" is "Read error".
std::string short_message(const std::exception& error);

}  // namespace mnist_train
