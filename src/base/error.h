#pragma once

#include <exception>
#include <stdexcept>
#include <string>

namespace mnist_train {

/// What the process ends with; the whole list is the program's contract with scripts and
/// schedulers.
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

/// The one exception type of the program: a kind, which is the exit code, and a message that says
/// what, where and what to do. Caught once, in each executable's `main`.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}

  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

/// Raised when this process failed only because another one did: a peer closed its connection or
/// did not answer in time. The launcher names the other one as the cause.
class PeerError : public Error {
 public:
  explicit PeerError(const std::string& message) : Error(ExitCode::kDistributed, message) {}
};

/// Returns what LibTorch or a backend says went wrong, on one line, without stack trace and without
/// the place in its sources: "[/pytorch/.../pair.cc:538] Read error" is "Read error".
std::string short_message(const std::exception& error);

}  // namespace mnist_train
