#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace mnist_train::fetch {

/// How an attempt to bring a URL into a file ended.
struct Transfer {
  bool done = false;
  bool may_go_on = false;  // broken off: another attempt can take up where it ended
  std::string problem;     // when not done
};

/// Appends to `part` what it lacks of the content of `url` (http, https, file), asking the server
/// to start at the present size; one that cannot is asked for everything. What has been received
/// stays in the file whatever happens. Content beyond `max_bytes` is refused. Throws Error(kData)
/// when the file cannot be written.
Transfer download(const std::string& url, const std::filesystem::path& part,
                  std::uint64_t max_bytes);

}  // namespace mnist_train::fetch
