#include "base/print.h"
#include "support/catch.h"

namespace mnist_train {
namespace {

TEST_CASE("globs match as Python's fnmatch.fnmatchcase says") {
  struct Case {
    const char* pattern;
    const char* name;
    bool matches;  // computed by Python 3.11
  };
  const std::vector<Case> cases{
      {"*", "a.b.c", true},
      {"*", "", true},
      {"", "", true},
      {"", "a", false},
      {"fc.*", "fc.weight", true},
      {"fc.*", "fc", false},
      {"*.bias", "layer1.0.bn1.bias", true},
      {"*bn*", "layer1.0.bn1.weight", true},
      {"layer?.*", "layer4.0.conv1.weight", true},
      {"layer?.*", "layer.0", false},
      {"layer[34].*", "layer3.0.weight", true},
      {"layer[!34].*", "layer3.0.weight", false},
      {"layer[!34].*", "layer1.0.weight", true},
      {"[a-c]x", "bx", true},
      {"[a-c]x", "dx", false},
      {"[]]", "]", true},
      {"[!]]", "a", true},
      {"[!]]", "]", false},
      {"[abc", "[abc", true},
      {"[", "[", true},
      {"[-a]", "-", true},
      {"[a-]", "-", true},
      {"a*b*c", "aXbXbc", true},
      {"a*b*c", "aXbXb", false},
      {"**", "x", true},
      {"FC.*", "fc.weight", false},
      {R"(a\*)", R"(a\x)", true},
      {"conv[0-9]", "conv1", true},
      {"conv[0-9]", "conv12", false},
      {"*.*.weight", "fc.weight", false},
      {"[z-a]", "m", false},
  };
  for (const Case& row : cases) {
    CAPTURE(row.pattern, row.name);
    CHECK(matches_glob(row.pattern, row.name) == row.matches);
  }
}

TEST_CASE("a glob with many stars takes no exponential time") {
  std::string pattern;
  for (int i = 0; i < 200; ++i) pattern += "*a";
  CHECK_FALSE(matches_glob(pattern + "b", std::string(5000, 'a')));
}

TEST_CASE("a glob without a match is explained by near modules and names") {
  const std::vector<std::string> names{"conv1.weight",      "layer1.0.conv1.weight",
                                       "layer1.0.bn1.bias", "layer2.0.conv1.weight",
                                       "head.weight",       "head.bias"};
  const auto about = [&](const char* pattern) { return unmatched_glob(pattern, names); };
  CHECK(about("haed.*") == R"("haed.*" matches no parameter; did you mean "head.*"?)");
  CHECK(about("layer3.*") ==
        R"("layer3.*" matches no parameter; did you mean "layer1.*", "layer2.*"?)");
  CHECK(about("layer1.0.bn1.bais") ==
        R"("layer1.0.bn1.bais" matches no parameter; did you mean "layer1.0.bn1.bias"?)");
  CHECK(
      about("classifier.*") ==
      "\"classifier.*\" matches no parameter; the network has conv1.*, layer1.*, layer2.*, head.*");
}

TEST_CASE("a swap of neighbours is one edit") {
  struct Case {
    const char* left;
    const char* right;
    std::size_t distance;
  };
  const Case row = GENERATE(values<Case>({{"", "", 0},
                                          {"", "abc", 3},
                                          {"abc", "", 3},
                                          {"abc", "abc", 0},
                                          {"abc", "acb", 1},
                                          {"abc", "abd", 1},
                                          {"abc", "ab", 1},
                                          {"ab", "xaby", 2},
                                          {"abcd", "badc", 2},
                                          {"kitten", "sitting", 3}}));
  CAPTURE(row.left, row.right);
  CHECK(edit_distance(row.left, row.right) == row.distance);
}

}  // namespace
}  // namespace mnist_train
