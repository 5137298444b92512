#include "base/error.h"

#include <string_view>

namespace mnist_train {

std::string short_message(const std::exception& error) {
  std::string_view line = error.what();
  line = line.substr(0, line.find('\n'));
  const std::size_t end = line.find("] ");
  const std::string_view place = line.substr(0, end);
  const bool names_place = line.starts_with('[') && end != std::string_view::npos &&
                           (place.find(".cpp:") != std::string_view::npos ||
                            place.find(".cc:") != std::string_view::npos);
  return std::string(names_place ? line.substr(end + 2) : line);
}

}  // namespace mnist_train
