#pragma once

#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>

namespace mnist_train {

/// The program's exit codes, which scripts and schedulers rely on.
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

/// The program's exception: an exit code, and a message that reports what happened, where, and what
/// to do. Only callers that can continue, clean up or add context catch it before `main` does.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}

  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

/// This process failed only because another one did: a peer closed its connection or did not answer
/// in time. The launcher reports the other process as the cause.
class PeerError : public Error {
 public:
  explicit PeerError(const std::string& message) : Error(ExitCode::kDistributed, message) {}
};

/// An error about a config key or a flag that is detected only with the network, the data, this
/// machine or a file. Lines about a key begin with its JSON pointer; callers that know the key's
/// position prepend FILE:LINE:COLUMN.
class ConfigKeyError : public Error {
 public:
  explicit ConfigKeyError(const std::string& message, ExitCode code = ExitCode::kConfig)
      : Error(code, message) {}
};

/// Returns the first line of a LibTorch or backend error without its source location:
/// "[/pytorch/.../pair.cc:538] Read error" becomes "Read error".
inline std::string short_message(const std::exception& error) {
  std::string_view line = error.what();
  line = line.substr(0, line.find('\n'));
  const std::size_t end = line.find("] ");
  const std::string_view location = line.substr(0, end);
  const bool has_location = line.starts_with('[') && end != std::string_view::npos &&
                            (location.find(".cpp:") != std::string_view::npos ||
                             location.find(".cc:") != std::string_view::npos);
  return std::string(has_location ? line.substr(end + 2) : line);
}

}  // namespace mnist_train
