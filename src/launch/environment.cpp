#include "launch/environment.h"

#include <charconv>
#include <cstdlib>

#include "base/error.h"

namespace mnist_train::launch {

std::optional<std::string> environment_variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

int integer_variable(const EnvironmentLookup& lookup, const char* name, int least, int most) {
  const std::string text = lookup(name).value_or("");
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    throw Error(ExitCode::kConfig, std::string("environment variable ") + name +
                                       ": expected an integer from " + std::to_string(least) +
                                       " to " + std::to_string(most) + ", found \"" + text + "\"");
  }
  return value;
}

int optional_integer(const EnvironmentLookup& lookup, const char* name, int least, int most,
                     int otherwise) {
  return lookup(name) ? integer_variable(lookup, name, least, most) : otherwise;
}

}  // namespace mnist_train::launch
