#pragma once

#include <ostream>

#include "base/error.h"
#include "support/catch.h"

namespace mnist_train::testing {

/// An Error that an action threw; `message` is empty if it threw nothing.
struct Failure {
  ExitCode code = ExitCode::kDone;
  std::string message;
  bool is_peer_error = false;

  friend std::ostream& operator<<(std::ostream& out, const Failure& failure) {
    return out << "exit code " << static_cast<int>(failure.code) << ": " << failure.message;
  }
};

/// Runs an action and returns the Error it throws; other exceptions propagate.
template <typename Action>
Failure error_of(const Action& action) {
  try {
    action();
  } catch (const PeerError& error) {
    return {error.code(), error.what(), true};
  } catch (const Error& error) {
    return {error.code(), error.what(), false};
  }
  return {};
}

/// Matches a failure with this exit code whose message contains all of `parts`.
class IsError : public Catch::Matchers::MatcherBase<Failure> {
 public:
  template <typename... Parts>
  explicit IsError(ExitCode code, const Parts&... parts) : code_(code), parts_{parts...} {}

  bool match(const Failure& failure) const override {
    return failure.code == code_ && std::ranges::all_of(parts_, [&](const std::string& part) {
             return failure.message.find(part) != std::string::npos;
           });
  }
  std::string describe() const override {
    std::string text = "has exit code " + std::to_string(static_cast<int>(code_)) + " and contains";
    for (const std::string& part : parts_) text += " \"" + part + "\"";
    return text;
  }

 private:
  ExitCode code_;
  std::vector<std::string> parts_;
};

}  // namespace mnist_train::testing

/// Checks that an expression throws an Error with this exit code and a message that contains all
/// parts: CHECK_ERROR(open(path), ExitCode::kData, path.string(), "truncated").
#define CHECK_ERROR(expression, ...)                                        \
  CHECK_THAT(::mnist_train::testing::error_of([&] { (void)(expression); }), \
             ::mnist_train::testing::IsError(__VA_ARGS__))
