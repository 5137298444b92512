#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace mnist_train {

/// The first line of one of the kernel's files, without blanks around it; nothing when there is no
/// such file or it cannot be read.
std::optional<std::string> first_line(const std::filesystem::path& path);

/// What stands behind "key:" in a file such as /proc/cpuinfo or /proc/meminfo, in its first line of
/// that key.
std::optional<std::string> value_of(const std::filesystem::path& path, const std::string& key);

/// A whole number; nothing for "max" and other text.
std::optional<double> number_in(const std::optional<std::string>& text);

/// Bytes that are free on the file system of a folder; nothing when there is no such folder.
std::optional<double> free_space(const std::filesystem::path& folder);

/// Bytes that one more process may take: free memory, cut by the limit of this process's cgroup.
struct Memory {
  double total = 0;
  double available = 0;
  bool limited = false;  // by a cgroup
};
Memory memory_here();

}  // namespace mnist_train
