#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace mnist_train {

/// A limit on the number of processes and threads, which count alike.
struct ProcessLimit {
  std::string name;
  double most = 0;
  double used = 0;
};

/// Returns the limits on processes and threads that bind this process.
std::vector<ProcessLimit> process_limits(const std::filesystem::path& root = "/");

/// Returns a sentence on the limit that refused a process or a thread just now, the one of which
/// most is used, and what to lower; nothing if there is none.
std::optional<std::string> refusing_limit(const std::filesystem::path& root = "/");

/// Returns the end of a message on an error of a system call: the limit behind it, on processes and
/// threads (EAGAIN), open files (EMFILE), file sizes (EFBIG) or address space (ENOMEM); "" if there
/// is none.
std::string error_limit(int error);

/// Returns what strerror says of an error, and the limit behind it.
std::string error_text(int error);

}  // namespace mnist_train
