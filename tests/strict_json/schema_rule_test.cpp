#include "strict_json/schema_rule.h"

#include "strict_json/document.h"
#include "support/catch.h"

namespace mnist_train::strict_json {

namespace {

bool meets(const std::string& text, const Json& condition) {
  Problems problems;
  const auto node =
      parse_document(std::make_shared<const Source>(Source{"f", text, "/"}), problems);
  REQUIRE(node);
  return matches(condition, *node);
}

}  // namespace

TEST_CASE("a condition is met by what its JSON Schema accepts") {
  CHECK(meets(R"({"a":1})", given("a")));
  CHECK_FALSE(meets(R"({"a":null})", given("a")));
  CHECK_FALSE(meets(R"({"b":1})", given("a")));
  CHECK_FALSE(meets("[1]", given("a")));

  CHECK(meets(R"({"a":"x"})", equal("a", "x")));
  CHECK(meets(R"({"a":true})", equal("a", true)));
  CHECK(meets(R"({"a":0.0})", equal("a", 0)));
  CHECK(meets(R"({"a":-3})", equal("a", -3)));
  CHECK_FALSE(meets(R"({"a":1})", equal("a", true)));
  CHECK_FALSE(meets(R"({"a":"1"})", equal("a", 1)));
  CHECK_FALSE(meets("{}", equal("a", 1)));

  CHECK(meets(R"({"a":{"b":2}})", holds("a", equal("b", 2))));
  CHECK_FALSE(meets(R"({"a":{"b":3}})", holds("a", equal("b", 2))));
  CHECK_FALSE(meets(R"({"a":2})", holds("a", equal("b", 2))));

  const Json cpu = {{"const", "cpu"}};
  CHECK(meets(R"({"a":["cuda","cpu"]})", lists("a", cpu)));
  CHECK_FALSE(meets(R"({"a":["cuda"]})", lists("a", cpu)));
  CHECK_FALSE(meets(R"({"a":[]})", lists("a", none_of(cpu))));
  CHECK_FALSE(meets(R"({"a":"cpu"})", lists("a", cpu)));
}

TEST_CASE("conditions are combined as their names say") {
  const Json one = equal("a", 1);
  const Json two = equal("b", 2);
  CHECK(meets(R"({"a":1,"b":2})", all_of({one, two})));
  CHECK_FALSE(meets(R"({"a":1})", all_of({one, two})));
  CHECK(meets(R"({"a":1})", any_of({one, two})));
  CHECK_FALSE(meets("{}", any_of({one, two})));
  CHECK(meets("{}", none_of(one)));
}

TEST_CASE("a condition with a keyword that the program does not check is refused") {
  CHECK_THROWS_AS(meets(R"({"a":1})", holds("a", {{"maximum", 1}})), std::logic_error);
}

TEST_CASE("a rule names the key that it is about, or the nearest group that is there") {
  const std::vector<Rule> rules{{"a/b", given("c"), "conflicts with c"}};
  const auto line_for = [&](const std::string& text) {
    Problems problems;
    const auto node =
        parse_document(std::make_shared<const Source>(Source{"f", text, "/"}), problems);
    ReadContext context{problems, {}};
    apply_rules(rules, JsonCursor(*node, "", context));
    return problems.empty() ? "" : format_problem(problems.front());
  };
  CHECK(line_for(R"({"c":1,"a":{"b":2}})") == "f:1:17: /a/b: conflicts with c");
  CHECK(line_for(R"({"c":1,"a":{}})") == "f:1:12: /a: conflicts with c");
  CHECK(line_for(R"({"c":1})") == "f:1:1: /: conflicts with c");
  CHECK(line_for(R"({"a":{"b":2}})").empty());
  CHECK(describe_rules(rules).dump() ==
        R"([{"description":"a/b: conflicts with c","not":{"type":"object","required":["c"],)"
        R"("properties":{"c":{"not":{"type":"null"}}}}}])");
}

}  // namespace mnist_train::strict_json
