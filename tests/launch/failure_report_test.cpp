#include "launch/failure_report.h"

#include <new>
#include <stdexcept>
#include <string>

#include "support/catch.h"

namespace mnist_train::launch {
namespace {

using Catch::Matchers::ContainsSubstring;

TEST_CASE("a report arrives as it was sent") {
  const FailureReport sent{ExitCode::kCheckpoint, "line one\n\"two\" … \x1b", "node-3", true};
  const auto received = failure_from_text(to_text(sent));
  REQUIRE(received);
  CHECK(received->code == sent.code);
  CHECK(received->message == sent.message);
  CHECK(received->host == sent.host);
  CHECK(received->is_victim);
}

TEST_CASE("a message that is not UTF-8 arrives with replacements") {
  const auto received = failure_from_text(to_text({ExitCode::kData, "file \xff\xfe", "h", false}));
  REQUIRE(received);
  CHECK_THAT(received->message, ContainsSubstring("file "));
}

TEST_CASE("a report fits into a pipe that nobody reads yet") {
  // The launcher reads when the process has ended, which cannot end before it has written.
  constexpr std::size_t kPipe_bytes = 65536;
  const FailureReport report{ExitCode::kCheckpoint, std::string(500000, '\x01') + "end", "h",
                             false};
  const std::string text = to_text(report);
  CHECK(text.size() <= kPipe_bytes);
  const auto received = failure_from_text(text);
  REQUIRE(received);
  CHECK(received->code == ExitCode::kCheckpoint);
  CHECK_THAT(received->message, ContainsSubstring("left out"));
}

TEST_CASE("a report that was cut off at any byte, or is something else, is none") {
  const std::string whole = to_text({ExitCode::kData, "message", "host", true});
  for (std::size_t size = 0; size < whole.size(); ++size) {
    REQUIRE_FALSE(failure_from_text(whole.substr(0, size)));
  }
  for (const char* other :
       {"[]", "3", "null", "{\"code\":\"five\"}", "{\"message\":3}", "{\"is_victim\":[]}",
        "{\"host\":{}}", "{\"code\":0}", "{\"code\":77}"}) {
    INFO(other);
    CHECK_FALSE(failure_from_text(other));
  }
}

TEST_CASE("exceptions become reports of their kind") {
  const FailureReport own = report_for(Error(ExitCode::kData, "bad file"));
  CHECK(own.code == ExitCode::kData);
  CHECK(own.message == "bad file");
  CHECK_FALSE(own.is_victim);
  CHECK_FALSE(own.host.empty());

  const FailureReport victim = report_for(PeerError("lost another rank"));
  CHECK(victim.code == ExitCode::kDistributed);
  CHECK(victim.is_victim);

  const FailureReport other = report_for(std::runtime_error("surprise"));
  CHECK(other.code == ExitCode::kRunFailed);
  CHECK(other.message == "surprise");

  const FailureReport memory = report_for(std::bad_alloc());
  CHECK(memory.code == ExitCode::kRunFailed);
  CHECK_THAT(memory.message, ContainsSubstring("lower batch_size"));
}

}  // namespace
}  // namespace mnist_train::launch
