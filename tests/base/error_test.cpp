#include "base/error.h"

#include <stdexcept>

#include "support/catch.h"

namespace mnist_train {
namespace {

TEST_CASE("short_message returns one line without the source location") {
  const auto said = [](const std::string& text) { return short_message(std::runtime_error(text)); };
  CHECK(
      said("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] Read error [::1]:7: gone") ==
      "Read error [::1]:7: gone");
  CHECK(said("[1] ranks are gone\nframe #0: ...") == "[1] ranks are gone");
  CHECK(said("[a.cpp:1]") == "[a.cpp:1]");
  CHECK(said("").empty());
}

}  // namespace
}  // namespace mnist_train
