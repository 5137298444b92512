#include "launch/launcher_variables.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <charconv>
#include <cstdint>
#include <vector>

#include "base/error.h"

namespace mnist_train::launch {

namespace {

/// Returns a port that all processes of a job find by themselves and few other jobs share.
int port_from(const std::string& job) {
  constexpr int kFirst = 15000;  // below the ports that systems hand out by themselves
  constexpr std::uint32_t kPorts = 17000;
  std::uint32_t hash = 2166136261U;  // FNV-1a
  for (const char character : job) {
    hash = (hash ^ static_cast<unsigned char>(character)) * 16777619U;
  }
  return kFirst + static_cast<int>(hash % kPorts);
}

}  // namespace

void refuse_environment(const std::string& message) { throw Error(ExitCode::kConfig, message); }

int integer_variable(const EnvironmentLookup& lookup, const char* name, int least, int most) {
  const std::string text = lookup(name).value_or("");
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    refuse_environment(std::string("environment variable ") + name + ": expected an integer from " +
                       std::to_string(least) + " to " + std::to_string(most) + ", found \"" + text +
                       "\"");
  }
  return value;
}

int optional_integer(const EnvironmentLookup& lookup, const char* name, int least, int most,
                     int otherwise) {
  return lookup(name) ? integer_variable(lookup, name, least, most) : otherwise;
}

void choose_port(const EnvironmentLookup& lookup, const std::string& job, const std::string& source,
                 WorkerIdentity& identity) {
  const bool is_set = lookup("MASTER_PORT").has_value();
  identity.master_port =
      is_set ? integer_variable(lookup, "MASTER_PORT", 1, 65535) : port_from(job);
  identity.decided_by += ", " + (is_set ? "MASTER_PORT" : source);
}

void require_all_variables(const EnvironmentLookup& lookup,
                           std::initializer_list<const char*> names, const char* launcher) {
  std::vector<const char*> present;
  std::vector<const char*> missing;
  for (const char* name : names) (lookup(name) ? present : missing).push_back(name);
  if (missing.empty()) return;
  refuse_environment(
      fmt::format("environment variables {} are set but {} are not: unset them to let "
                  "mnist-train start its own processes, or start it with {}",
                  fmt::join(present, ", "), fmt::join(missing, ", "), launcher));
}

}  // namespace mnist_train::launch
