#include "strict_json/document.h"

#include <sys/stat.h>

#include <thread>

#include "base/system.h"
#include "strict_json/schema.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/problem_line.h"
#include "support/temp_folder.h"

namespace mnist_train::strict_json {
namespace {

using namespace testing;

std::shared_ptr<const Source> source_of(const std::string& text) {
  return std::make_shared<const Source>(Source{"f", text, "/"});
}

Node parse(const std::string& text) {
  Problems problems;
  auto node = parse_document(source_of(text), problems);
  throw_if_any(problems);
  return std::move(*node);
}

struct Parsed {
  bool is_json = false;
  std::vector<std::string> lines;
};

Parsed parse_syntax(const std::string& text) {
  Problems problems;
  Parsed parsed{parse_document(source_of(text), problems).has_value(), {}};
  for (const Problem& problem : problems) parsed.lines.push_back(line_of(problem));
  return parsed;
}

TEST_CASE("every value and key has a position") {
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

TEST_CASE("a document may begin partway through the source") {
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

TEST_CASE("objects with 100,000 keys are read, merged and searched quickly") {
  constexpr int kKeys = 100'000;
  std::string text = "{";
  for (int i = 0; i < kKeys; ++i)
    text += "\"k" + std::to_string(i) + "\":" + std::to_string(i) + ",";
  text.back() = '}';
  const double begin_s = monotonic_seconds();
  const Node merged = merge(parse(text), parse(text));
  CHECK(merged.members.size() == kKeys);
  CHECK(merged.find("k99999")->value == 99'999);
  CHECK(monotonic_seconds() - begin_s < 30);  // generous: with sanitizers on a busy machine
}

TEST_CASE("problems are sorted by source and position") {
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

TEST_CASE("relative paths in a file are resolved against its folder") {
  const TempFolder folder;
  const auto file = folder.write("deep/cfg.json", "{}\n");
  const auto source = load_source(file.string());
  CHECK(source->name == file.string());
  CHECK(source->text == "{}\n");
  CHECK(source->base_folder == folder.path() / "deep");
}

TEST_CASE("relative paths in a pipe are resolved against the working directory") {
  const TempFolder folder;
  const std::string pipe = (folder.path() / "pipe").string();
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  std::thread writer([&] { std::ofstream(pipe) << "{\"a\":1}"; });
  const auto source = load_source(pipe);
  writer.join();
  CHECK(source->text == "{\"a\":1}");
  CHECK(source->base_folder == std::filesystem::current_path());
}

TEST_CASE("folders, missing files and files above 1 MiB are refused, and the error names them") {
  const TempFolder folder;
  const auto large = folder.write("large.json", "\n\n" + std::string(kMaxSourceBytes, ' '));
  const auto full = folder.write("full.json", std::string(kMaxSourceBytes, ' '));
  const std::string nowhere = (folder.path() / "nowhere.json").string();
  CHECK(load_source(full.string())->text.size() == kMaxSourceBytes);

  using Case = std::pair<std::string, const char*>;
  for (const auto& [path, problem] : std::vector<Case>{
           {large.string(), ":3:1048575: /: the text is larger than 1 MiB, the limit for configs"},
           {"/dev/zero", ":1:1048577: /: the text is larger than 1 MiB, the limit for configs"},
           {folder.path().string(), ": is a folder; a config is a JSON file"},
           {nowhere, ": cannot be opened: No such file or directory"}}) {
    const auto failure = error_of([&] { load_source(path); });
    CHECK(failure.code == ExitCode::kConfig);
    CHECK(failure.message == path + problem);
  }
}

TEST_CASE("offsets can be looked up in any order") {
  const Source source{"f", "ab\näö\n", "/"};
  TextLocator locator(source);
  CHECK(locator.place(5) == "f:2:2");
  CHECK(locator.place(0) == "f:1:1");
  CHECK(locator.place(2) == "f:1:3");
  CHECK(locator.place(3) == "f:2:1");
  CHECK(locator.place(7) == "f:2:3");
  CHECK(locator.place(100) == "f:3:1");
}

// Valid and invalid JSON, as in JSONTestSuite.

// Returns the error message for a malformed string at `column`.
std::string bad_string(int column) {
  return "f:1:" + std::to_string(column) +
         ": /0: malformed string: expected UTF-8 without control characters, and only valid "
         "escapes, such "
         "as \\n and \\u00e9";
}

TEST_CASE("strict JSON is accepted") {
  const std::string text = GENERATE(values<std::string>({
      "{}",
      "null",
      "true",
      "-0",
      "1.5",
      "1e5",
      "\"\"",
      "\t\r\n[1 ,\n2]",
      "{\"a\":{\"b\":[{},[]]}}",
      "{\"\":0}",
      R"(["\"\\\/\b\f\n\r\t\u0041"])",
      R"(["\ud83d\ude00"])",
      "[\"\xF0\x9F\x98\x80\"]",
      "[\"\x7f\"]",
      R"(["\u0000"])",
      "[1e-999]",
      "[123456789012345678901234567890]",
      "[-9223372036854775808,9223372036854775807,18446744073709551615]",
      "\xEF\xBB\xBF{}",
  }));
  CAPTURE(text);
  const Parsed parsed = parse_syntax(text);
  CHECK(parsed.is_json);
  CHECK(parsed.lines.empty());
}

TEST_CASE("syntax errors are reported with line, column in characters, and pointer") {
  using Case = std::pair<std::string, std::string>;
  const auto [text, line] = GENERATE(values<Case>({
      {"", "f:1:1: /: the document is empty; expected a JSON object"},
      {"\xEF\xBB\xBF", "f:1:1: /: the document is empty; expected a JSON object"},
      {"{", "f:1:2: /: expected a key in double quotes, found the end of the text"},
      {"[", "f:1:2: /: expected a value, found the end of the text"},
      {"{\"a\"", "f:1:5: /a: expected ':' after the key, found the end of the text"},
      {"{\"a\":", "f:1:6: /a: expected a value, found the end of the text"},
      {"{\"a\":1", "f:1:7: /: expected ',' or '}', found the end of the text"},
      {"{\"a\":1,", "f:1:8: /: expected a key in double quotes, found the end of the text"},
      {"[1", "f:1:3: /: expected ',' or ']', found the end of the text"},
      {"{\"a\":1,}",
       "f:1:8: /: expected a key in double quotes, found } (remove the comma before it)"},
      {"[1,]", "f:1:4: /: expected a value, found ] (remove the comma before it)"},
      {"[,1]", "f:1:2: /: expected a value, found ,"},
      {"{\"a\" 1}", "f:1:6: /a: expected ':' after the key, found 1"},
      {"{\"a\":1 \"b\":2}", "f:1:8: /: expected ',' or '}', found the string \"b\""},
      {"[1 2]", "f:1:4: /: expected ',' or ']', found 2"},
      {"{\"a\":1]", "f:1:7: /: expected ',' or '}', found ]"},
      {"{a:1}", "f:1:2: /: expected a key in double quotes, found a"},
      {"{'a':1}",
       "f:1:2: /: expected a key in double quotes, found ' (strings need double "
       "quotes)"},
      {"{}{}", "f:1:3: /: expected the end of the document, found {"},
      {"]", "f:1:1: /: expected a value, found ]"},
      {"{} // c", "f:1:4: /: expected the end of the document, found / (JSON has no comments)"},
      {"# c\n{}", "f:1:1: /: expected a value, found # (JSON has no comments)"},
      {"[\"a", "f:1:2: /0: this string has no closing quote"},
      {"[\"a\\\"]", "f:1:2: /0: this string has no closing quote"},
      {"[\"a\nb\"]", bad_string(4)},
      {"\xEF\xBB{}", "f:1:1: /: expected a value, found \\xef\\xbb"},
      {"\xFE\xFF{}", "f:1:1: /: expected a value, found \\xfe"},
      {std::string("{}\0", 3), "f:1:3: /: expected the end of the document, found \\x00"},
      {std::string("{\0}", 3), "f:1:2: /: expected a key in double quotes, found \\x00"},
      {R"({"a":{"b":[0,{"c":}]}})", "f:1:19: /a/b/1/c: expected a value, found }"},
      {"{\n  \"ä😀\" 1}", "f:2:8: /ä😀: expected ':' after the key, found 1"},
  }));
  CAPTURE(text);
  const Parsed parsed = parse_syntax(text);
  CHECK_FALSE(parsed.is_json);
  CHECK(parsed.lines == std::vector<std::string>{line});
}

TEST_CASE("a malformed scalar is reported with its position, and the rest is read") {
  using Case = std::pair<std::string, std::string>;
  const auto [text, line] = GENERATE(values<Case>({
      {"[NaN]", "f:1:2: /0: expected a value, found NaN (JSON has no such number)"},
      {"[-Infinity]", "f:1:2: /0: expected a value, found -Infinity (JSON has no such number)"},
      {"[True]", "f:1:2: /0: expected a value, found True (JSON uses true)"},
      {"[nul]", "f:1:2: /0: expected a value, found nul"},
      {"[01]", "f:1:2: /0: expected a value, found 01"},
      {"[+1]", "f:1:2: /0: expected a value, found +1"},
      {"[.5]", "f:1:2: /0: expected a value, found .5"},
      {"[5.]", "f:1:2: /0: expected a value, found 5."},
      {"[-]", "f:1:2: /0: expected a value, found -"},
      {"[1e999]", "f:1:2: /0: the number 1e999 is beyond the range of floats"},
      {"[\"\\x\"]", bad_string(4)},
      {"[\"\\u12\"]", bad_string(7)},
      {"[\"\\ud800\"]", bad_string(9)},
      {"[\"\\udc00\"]", bad_string(8)},
      {"[\"\xFF\"]", bad_string(3)},
      {"[\"\xC0\x80\"]", bad_string(3)},      // overlong encoding
      {"[\"\xED\xA0\x80\"]", bad_string(4)},  // a surrogate
      {"[\"caf\xE9\"]", bad_string(7)},
      {"[\"ä\xF4\x90\x80\x80\"]", bad_string(5)},
  }));
  CAPTURE(text);
  const Parsed parsed = parse_syntax(text);
  CHECK(parsed.is_json);
  CHECK(parsed.lines == std::vector<std::string>{line});
}

TEST_CASE("all malformed scalars and other errors are reported") {
  CHECK(parse_syntax(R"({"a":NaN,"b":[cpu,1,{"c":-Infinity}],"a":1})").lines ==
        std::vector<std::string>{
            "f:1:6: /a: expected a value, found NaN (JSON has no such number)",
            "f:1:15: /b/0: expected a value, found cpu",
            "f:1:26: /b/2/c: expected a value, found -Infinity (JSON has no such number)",
            "f:1:38: /a: duplicate key \"a\""});
  CHECK(parse_syntax("{\"a\":\"\xFF\",\"b\":[NaN}").lines ==
        std::vector<std::string>{
            "f:1:7: /a: malformed string: expected UTF-8 without control characters, and only "
            "valid escapes, such as \\n and \\u00e9",
            "f:1:15: /b/0: expected a value, found NaN (JSON has no such number)",
            "f:1:18: /b: expected ',' or ']', found }"});
}

TEST_CASE("a malformed scalar whose end is unclear causes no false errors") {
  for (const char* text :
       {"{\"a\":runs/b,\"c\":x}", "{\"a\":- 5}", "{\"a\":\"b\n,\"c\":1}", "NaN"}) {
    CAPTURE(text);
    const Parsed parsed = parse_syntax(text);
    CHECK_FALSE(parsed.is_json);
    CHECK(parsed.lines.size() == 1);
  }
}

TEST_CASE("64 levels of nesting are accepted, and more are refused") {
  const auto nested = [](std::size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  CHECK(parse_syntax(nested(64)).is_json);
  for (const std::string& text : {nested(65), nested(100000), std::string(100000, '[')}) {
    const Parsed parsed = parse_syntax(text);
    CHECK_FALSE(parsed.is_json);
    REQUIRE(parsed.lines.size() == 1);
    CHECK_THAT(parsed.lines[0], StartsWith("f:1:65: /0/0/"));
    CHECK_THAT(parsed.lines[0], EndsWith(": nested more than 64 levels deep"));
  }
}

TEST_CASE("duplicate keys are reported at the second occurrence, and the document is still read") {
  const Parsed parsed = parse_syntax(R"({"a":1,"b":{"c":1,"c":2},"\u0061":3})");
  CHECK(parsed.is_json);
  CHECK(parsed.lines == std::vector<std::string>{"f:1:19: /b/c: duplicate key \"c\"",
                                                 "f:1:26: /a: duplicate key \"a\""});
  CHECK(parse_syntax("\xEF\xBB\xBFx").lines ==
        std::vector<std::string>{"f:1:1: /: expected a value, found x"});
  // Control bytes are escaped in the message.
  CHECK(parse_syntax(R"({"a\u001b\n":1,"a\u001b\n":2})").lines ==
        std::vector<std::string>{"f:1:16: /a\\x1b\\x0a: duplicate key \"a\\x1b\\x0a\""});
}

}  // namespace
}  // namespace mnist_train::strict_json
