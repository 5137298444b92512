#include "strict_json/document.h"

#include "base/system.h"
#include "strict_json/schema.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/problem_line.h"

namespace mnist_train::strict_json {

namespace {

std::shared_ptr<const Source> source_of(const std::string& text) {
  return std::make_shared<const Source>(Source{"f", text, "/"});
}

Node parse(const std::string& text) {
  Problems problems;
  auto node = parse_document(source_of(text), problems);
  throw_if_any(problems);
  return std::move(*node);
}

}  // namespace

TEST_CASE("every value and key has its position") {
  const Node root = parse("{ \"a\\\"b\" : [1, -2, 3.5,\n\"x\", true , false,null], \"c\":{}}");
  CHECK(root.offset == 0);
  REQUIRE(root.members.size() == 2);
  CHECK(root.members[0].key == "a\"b");
  CHECK(root.members[0].key_offset == 2);
  const Node& list = root.members[0].value;
  REQUIRE(list.items.size() == 7);
  const std::string& text = root.source->text;
  CHECK(text.substr(root.members[1].key_offset) == "\"c\":{}}");
  CHECK(text.substr(root.members[1].value.offset) == "{}}");
  const std::string starts = "1-3\"tfn";
  for (std::size_t index = 0; index < starts.size(); ++index) {
    CHECK(text[list.items[index].offset] == starts[index]);
  }
  CHECK(to_json(list) == Json{1, -2, 3.5, "x", true, false, nullptr});
}

TEST_CASE("a document may start within a text") {
  Problems problems;
  const auto node = parse_document(source_of("a.b=[7,8]"), problems, 4);
  REQUIRE(node);
  CHECK(node->items[1].offset == 7);
  CHECK_FALSE(parse_document(source_of("a.b=[7,]"), problems, 4));
  REQUIRE(problems.size() == 1);
  CHECK(line_of(problems[0]) == "f:1:8: /: expected a value, found ] (remove the comma before it)");
}

TEST_CASE("objects are merged key by key, and other values are replaced") {
  const Node merged = merge(parse(R"({"a":{"x":1,"y":2},"b":[1,2],"c":3})"),
                            parse(R"({"a":{"y":5,"z":6},"b":[9],"d":null})"));
  CHECK(to_json(merged).dump() == R"({"a":{"x":1,"y":5,"z":6},"b":[9],"c":3,"d":null})");
}

TEST_CASE("objects of 100,000 keys are read, merged and searched quickly") {
  constexpr int kKeys = 100'000;
  std::string text = "{";
  for (int i = 0; i < kKeys; ++i)
    text += "\"k" + std::to_string(i) + "\":" + std::to_string(i) + ",";
  text.back() = '}';
  const double begin_s = monotonic_seconds();
  const Node merged = merge(parse(text), parse(text));
  CHECK(merged.members.size() == kKeys);
  CHECK(merged.find("k99999")->value == 99'999);
  CHECK(OrderedJson::parse(text).at("k99999") == 99'999);  // as headers of checkpoints are read
  CHECK(monotonic_seconds() - begin_s < 30);               // sanitized on a busy machine, too
}

TEST_CASE("problems are listed by text and position") {
  const auto first = source_of("0123\n5");
  const auto second = std::make_shared<const Source>(Source{"g\n", "01", "/"});
  const Problems problems{{first, 5, "/b", "late"},
                          {second, 1, "/c", "other"},
                          {first, 2, "/a/x~1", "early"},
                          {first, 9, "", "at the end"}};
  const auto failure = testing::error_of([&] { throw_if_any(problems); });
  CHECK(failure.code == ExitCode::kConfig);
  CHECK(failure.message ==
        "f:1:3: /a/x~1: early\nf:2:1: /b: late\nf:2:2: /: at the end\ng\\x0a:1:2: /c: other");
  CHECK_NOTHROW(throw_if_any({}));
}

TEST_CASE("pointers are escaped according to RFC 6901") {
  CHECK(join_pointer("/a", "b/c~d") == "/a/b~1c~0d");
  CHECK(join_pointer("", "") == "/");
}

}  // namespace mnist_train::strict_json
