#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace mnist_train::fetch {

/// How an attempt to bring a URL into a file ended.
struct Transfer {
  bool done = false;
  bool may_resume = false;  // broken off: another attempt can begin where it ended
  std::string problem;      // when not done
};

/// Appends to `part` what is missing of the content of `url` (http, https, file). The server is
/// asked to start at the present size; one that cannot is asked for everything. What was received
/// stays in the file in any case. Content beyond `max_bytes` is refused. Throws Error(kData) when
/// the file cannot be written.
Transfer download(const std::string& url, const std::filesystem::path& part,
                  std::uint64_t max_bytes);

}  // namespace mnist_train::fetch
