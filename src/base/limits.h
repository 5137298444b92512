#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace mnist_train {

/// A limit on the total number of processes and threads.
struct ProcessLimit {
  std::string name;
  double most = 0;
  double used = 0;
};

/// Returns the limits on processes and threads that apply to this process.
std::vector<ProcessLimit> process_limits(const std::filesystem::path& root = "/");

/// Returns a sentence on the limit that probably refused the last process or thread, the one
/// closest to exhaustion, with advice; nothing without limits.
std::optional<std::string> refusing_limit(const std::filesystem::path& root = "/");

/// Returns the end of a message on a failed system call: the limit on processes and threads
/// (EAGAIN), open files (EMFILE), file sizes (EFBIG) or address space (ENOMEM) that caused it, or
/// "".
std::string error_limit(int error);

/// Returns the text of strerror, and the limit that caused the error.
std::string error_text(int error);

}  // namespace mnist_train
