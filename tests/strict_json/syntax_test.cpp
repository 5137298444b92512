// Valid and invalid JSON, in the manner of JSONTestSuite.

#include "strict_json/document.h"
#include "support/catch.h"
#include "support/problem_line.h"

namespace mnist_train::strict_json {

namespace {

using namespace testing;

// The line for a malformed string whose error is in this column.
std::string bad_string(int column) {
  return "f:1:" + std::to_string(column) +
         ": /0: malformed string: expected UTF-8 without control characters, and only escapes such "
         "as \\n and \\u00e9";
}

struct Parsed {
  bool is_json = false;
  std::vector<std::string> lines;
};

Parsed parse_syntax(const std::string& text) {
  Problems problems;
  const auto source = std::make_shared<const Source>(Source{"f", text, "/"});
  Parsed parsed;
  parsed.is_json = parse_document(source, problems).has_value();
  for (const Problem& problem : problems) parsed.lines.push_back(line_of(problem));
  return parsed;
}

}  // namespace

TEST_CASE("strict JSON is read") {
  const std::string text = GENERATE(values<std::string>({
      "{}",
      "[]",
      "null",
      "true",
      "false",
      "0",
      "-0",
      "-1",
      "1.5",
      "1e5",
      "1E+5",
      "1e-5",
      "\"\"",
      "\"a\"",
      " {} ",
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

TEST_CASE("syntax errors are reported with their position") {
  using Case = std::pair<std::string, std::string>;
  const auto [text, line] = GENERATE(values<Case>({
      {"", "f:1:1: /: the document is empty; expected a JSON object"},
      {" \n ", "f:1:1: /: the document is empty; expected a JSON object"},
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
      {"[1,,2]", "f:1:4: /: expected a value, found ,"},
      {"[,1]", "f:1:2: /: expected a value, found ,"},
      {"{,}", "f:1:2: /: expected a key in double quotes, found ,"},
      {"{\"a\" 1}", "f:1:6: /a: expected ':' after the key, found 1"},
      {"{\"a\"::1}", "f:1:6: /a: expected a value, found :"},
      {"{\"a\",1}", "f:1:5: /a: expected ':' after the key, found ,"},
      {"{\"a\":1 \"b\":2}", "f:1:8: /: expected ',' or '}', found the string \"b\""},
      {"[1 2]", "f:1:4: /: expected ',' or ']', found 2"},
      {"[1}", "f:1:3: /: expected ',' or ']', found }"},
      {"{\"a\":1]", "f:1:7: /: expected ',' or '}', found ]"},
      {"{a:1}", "f:1:2: /: expected a key in double quotes, found a"},
      {"{1:1}", "f:1:2: /: expected a key in double quotes, found 1"},
      {"{'a':1}",
       "f:1:2: /: expected a key in double quotes, found ' (strings need double "
       "quotes)"},
      {"{}{}", "f:1:3: /: expected the end of the document, found {"},
      {"{} x", "f:1:4: /: expected the end of the document, found x"},
      {"{}}", "f:1:3: /: expected the end of the document, found }"},
      {"]", "f:1:1: /: expected a value, found ]"},
      {"{} // c", "f:1:4: /: expected the end of the document, found / (JSON has no comments)"},
      {"# c\n{}", "f:1:1: /: expected a value, found # (JSON has no comments)"},
      {"[\"a", "f:1:2: /0: this string has no closing quote"},
      {"[\"", "f:1:2: /0: this string has no closing quote"},
      {"[\"a\\\"]", "f:1:2: /0: this string has no closing quote"},
      {"[\"a\nb\"]", bad_string(4)},
      {"[\"\t\"]", bad_string(3)},
      {"\xEF\xBB{}", "f:1:1: /: expected a value, found \\xef\\xbb"},
      {"\xFE\xFF{}", "f:1:1: /: expected a value, found \\xfe"},
      {std::string("{}\0", 3), "f:1:3: /: expected the end of the document, found \\x00"},
      {std::string("{\0}", 3), "f:1:2: /: expected a key in double quotes, found \\x00"},
  }));
  CAPTURE(text);
  const Parsed parsed = parse_syntax(text);
  CHECK_FALSE(parsed.is_json);
  REQUIRE(parsed.lines.size() == 1);
  CHECK(parsed.lines[0] == line);
}

TEST_CASE("a malformed scalar is reported with its position, and the rest is read") {
  using Case = std::pair<std::string, std::string>;
  const auto [text, line] = GENERATE(values<Case>({
      {"[NaN]", "f:1:2: /0: expected a value, found NaN (JSON has no such number)"},
      {"[Infinity]", "f:1:2: /0: expected a value, found Infinity (JSON has no such number)"},
      {"[-Infinity]", "f:1:2: /0: expected a value, found -Infinity (JSON has no such number)"},
      {"[True]", "f:1:2: /0: expected a value, found True (JSON uses true)"},
      {"[nul]", "f:1:2: /0: expected a value, found nul"},
      {"[truee]", "f:1:2: /0: expected a value, found truee"},
      {"[01]", "f:1:2: /0: expected a value, found 01"},
      {"[0x1]", "f:1:2: /0: expected a value, found 0x1"},
      {"[1_000]", "f:1:2: /0: expected a value, found 1_000"},
      {"[+1]", "f:1:2: /0: expected a value, found +1"},
      {"[.5]", "f:1:2: /0: expected a value, found .5"},
      {"[5.]", "f:1:2: /0: expected a value, found 5."},
      {"[1e]", "f:1:2: /0: expected a value, found 1e"},
      {"[-]", "f:1:2: /0: expected a value, found -"},
      {"[1e999]", "f:1:2: /0: the number 1e999 is too large"},
      {"[\"\\x\"]", bad_string(4)},
      {"[\"\\u12\"]", bad_string(7)},
      {"[\"\\ud800\"]", bad_string(9)},
      {"[\"\\udc00\"]", bad_string(8)},
      {"[\"\xFF\"]", bad_string(3)},
      {"[\"\xC0\x80\"]", bad_string(3)},      // overlong
      {"[\"\xED\xA0\x80\"]", bad_string(4)},  // a surrogate
      {"[\"caf\xE9\"]", bad_string(7)},
      {"[\"ä\xF4\x90\x80\x80\"]", bad_string(5)},
  }));
  CAPTURE(text);
  const Parsed parsed = parse_syntax(text);
  CHECK(parsed.is_json);
  CHECK(parsed.lines == std::vector<std::string>{line});
}

TEST_CASE("all malformed scalars and other mistakes are reported") {
  CHECK(parse_syntax(R"({"a":NaN,"b":[cpu,1,{"c":-Infinity}],"a":1})").lines ==
        std::vector<std::string>{
            "f:1:6: /a: expected a value, found NaN (JSON has no such number)",
            "f:1:15: /b/0: expected a value, found cpu",
            "f:1:26: /b/2/c: expected a value, found -Infinity (JSON has no such number)",
            "f:1:38: /a: duplicate key \"a\""});
  CHECK(parse_syntax("{\"a\":\"\xFF\",\"b\":[NaN}").lines ==
        std::vector<std::string>{
            "f:1:7: /a: malformed string: expected UTF-8 without control characters, and only "
            "escapes such as \\n and \\u00e9",
            "f:1:15: /b/0: expected a value, found NaN (JSON has no such number)",
            "f:1:18: /b: expected ',' or ']', found }"});
}

TEST_CASE("a malformed scalar with an uncertain end causes no false alarms") {
  for (const char* text :
       {"{\"a\":runs/b,\"c\":x}", "{\"a\":- 5}", "{\"a\":\"b\n,\"c\":1}", "NaN"}) {
    CAPTURE(text);
    const Parsed parsed = parse_syntax(text);
    CHECK_FALSE(parsed.is_json);
    CHECK(parsed.lines.size() == 1);
  }
}

TEST_CASE("a syntax error names its value") {
  CHECK(parse_syntax(R"({"a":{"b":[0,{"c":}]}})").lines ==
        std::vector<std::string>{"f:1:19: /a/b/1/c: expected a value, found }"});
}

TEST_CASE("lines are counted, and columns in characters") {
  CHECK(parse_syntax("{\n  \"ä😀\" 1}").lines ==
        std::vector<std::string>{"f:2:8: /ä😀: expected ':' after the key, found 1"});
  CHECK(parse_syntax("\xEF\xBB\xBFx").lines ==
        std::vector<std::string>{"f:1:1: /: expected a value, found x"});
}

TEST_CASE("64 levels are read, and one more is refused however many follow") {
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

TEST_CASE("every duplicate key is reported at its second position, and the document is read") {
  const Parsed parsed = parse_syntax(R"({"a":1,"b":{"c":1,"c":2},"\u0061":3})");
  CHECK(parsed.is_json);
  CHECK(parsed.lines == std::vector<std::string>{"f:1:19: /b/c: duplicate key \"c\"",
                                                 "f:1:26: /a: duplicate key \"a\""});
}

TEST_CASE("control bytes in a document do not reach the message") {
  CHECK(parse_syntax(R"({"a\u001b\n":1,"a\u001b\n":2})").lines ==
        std::vector<std::string>{"f:1:16: /a\\x1b\\x0a: duplicate key \"a\\x1b\\x0a\""});
}

}  // namespace mnist_train::strict_json
